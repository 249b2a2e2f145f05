"""The driver of a sweep: asks for points, starts trials, watches them, stops those that fall behind, tells the study.

    python -m orchestrator.sweeps.driver.driver SWEEP_FOLDER HOME READY_FD

It may be killed at any moment. A trial is in the study, with its point and the names of its runs, before one of them is
submitted, and a name is submitted once; a decision is on the disk before a run is cancelled for it; what a trial
reported is with its runs. So a driver that starts anew has only to look, and taking a sweep up again is going on.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from orchestrator.backends import load_backend, remember, require
from orchestrator.backends.base import Backend
from orchestrator.backends.capabilities import Resumes
from orchestrator.backends.run_progress import metric_values
from orchestrator.runs.status import RunState, RunStatus
from orchestrator.specs.local_machine import visible_gpus
from orchestrator.specs.sweep_spec import trials
from orchestrator.support.errors import (
    CapacityError,
    ConflictError,
    DataError,
    NotFoundError,
    ServiceError,
    SpecError,
    UserError,
)
from orchestrator.sweeps.design.points import values
from orchestrator.sweeps.design.sampling import distributions, propose
from orchestrator.sweeps.driver.history import as_trials
from orchestrator.sweeps.driver.parent import ParentRun
from orchestrator.sweeps.driver.sweep_folder import SweepFolder, append
from orchestrator.sweeps.driver.trials import GPUS, TrialPlanner, place, run_names
from orchestrator.sweeps.driver.weight_pruning import WeightPruner
from orchestrator.sweeps.policy.limits import HOUR, reached
from orchestrator.sweeps.policy.termination import Decision, best, judge, outcome, together

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

    from orchestrator.jobs.base import Plan

POLL_SECONDS, SHORTEST_POLL = 0.2, 0.01
WRONG_INPUT = 2  # exit code of a job that would only fail again
ENDING = "ending"  # attribute of a trial whose runs are being cancelled: as what it ends, and why


@dataclass
class LiveTrial:
    """A trial that goes on."""

    number: int
    settings: dict[str, Any]
    runs: list[str]
    gpus: list[list[str]]
    """Of each run; none where there are none to share out."""
    started: float
    end: tuple[str, str] | None = None
    """As what it ends and why, once that is clear: its runs are cancelled. None: it goes on."""
    unborn: set[str] = field(default_factory=set)
    """Runs that certainly are not there yet: to look for one takes the longer the more others there are."""
    moved: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Run -> where it stood when its reports were last read: the same step may be reported of twice."""


class Driver:
    """Drives a sweep to its end. Whoever calls `drive` holds the sweep's lock.

    Args:
        folder: of the sweep.
        home: the home folder.
    """

    planner: TrialPlanner
    study: Study
    earlier: list[FrozenTrial]

    def __init__(self, folder: SweepFolder, home: Path) -> None:
        self.folder, self.home = folder, home
        self.record = folder.record()
        self.spec = self.record.spec
        self.state = folder.stored_state()
        self.backend: Backend = load_backend(self.record.trial["backend"], home)
        self.parent = ParentRun(folder, self.record, home)
        self.asked_to_stop = False
        self.live: dict[int, LiveTrial] = {}
        self.histories: dict[int, list[float]] = {}
        self.seeds: dict[int, list[list[float]]] = {}
        self.outcomes: dict[int, float | None] = {}
        self.pruner = WeightPruner(self.record, self.backend)
        self.costs: dict[int, float] = {}

    def begin(self) -> None:
        """Hears of a wish to end (SIGTERM) from now on, and says that it drives."""
        signal.signal(signal.SIGTERM, self._note_stop)
        self.folder.reserve()
        self._update(state=RunState.RUNNING, reason=None, ended=None, pid=os.getpid())

    def drive(self) -> None:
        """Until all trials have ended, or it is asked to stop.

        Raises:
            UserError: it can't go on; what was done until then stays, and the sweep can be taken up again.
        """
        state: RunState = RunState.FAILED
        reason: str | None = "a mistake of ours: see driver.log"
        try:
            if not self.backend.own_tracking:
                self._update(mlflow_run_id=self.parent.open(self.state.mlflow_run_id))
            self.planner = TrialPlanner(self.record, self.home, self.parent.tags())
            self._take_stock()
            state, reason = self._loop()
        except UserError as problem:
            reason = problem.message
            raise
        except OSError as problem:  # a full disk, above all
            reason = f"{problem.strerror or problem}: {problem.filename or self.folder.path}"
            raise
        finally:
            self.parent.end(state)
            self._update(state=state, reason=reason, ended=time.time())

    def _take_stock(self) -> None:
        """What is in the study goes on, whatever became of its runs meanwhile."""
        self.folder.mend()
        self.study = self.folder.study()
        self.decided = self.folder.decisions()
        self.earlier = as_trials(self.folder, self.spec.space)
        on_gpus = self.planner.first.compute.device == "gpu" and self.backend.shares_machine
        self.gpus = _gpus() if on_gpus else []
        for trial in self._trials():
            self.histories[trial.number] = list(trial.intermediate_values.values())
            if trial.state.is_finished():
                end = trial.user_attrs["end"]
                self.costs[trial.number] = end["cost"]
                self.outcomes[trial.number] = end["outcome"]
                self.seeds[trial.number] = end["seeds"]
                continue
            live = self.live[trial.number] = _live(trial)
            stops = [found.text for (number, _), found in self.decided.items() if number == live.number and found.stop]
            live.end = ("stopped", stops[0]) if stops else live.end

    def _loop(self) -> tuple[RunState, str | None]:
        while True:
            for live in list(self.live.values()):
                self._look(live)
            if self.folder.cancel_file.exists():
                return self._cancel()
            if self.asked_to_stop:
                return RunState.PREEMPTED, "the driver was stopped; trials that were running go on"
            settled = self.pruner.settle(self.outcomes)
            limit = self._limit()
            for live in self.live.values() if limit else ():
                live.end = live.end or ("ended early", str(limit))
            if limit is None and self._start():
                continue
            if settled and not self.live:
                return RunState.COMPLETED, limit
            self._pause()

    def _pause(self) -> None:
        """Until the next look: here a hundredth of what the youngest trial has taken, so that none waits for long."""
        if self.backend.remote:
            return time.sleep(self.backend.poll_seconds)
        age = time.time() - max((live.started for live in self.live.values()), default=0.0)
        return time.sleep(min(max(age / 100, SHORTEST_POLL), POLL_SECONDS))

    def _start(self) -> bool:
        """Begins the next trial, if there is one, and a place for it."""
        past = self._trials()
        number = len(past)
        if number >= trials(self.spec) or len(self.live) >= self.spec.limits.concurrent:
            return False
        runs = run_names(self.record.name, number, self.spec.replicates)
        gpus = self._places(len(runs))
        if gpus is None:
            if not self.live:
                raise CapacityError(
                    f"trial {number} needs more GPUs at a time than there are",
                    facts={"have": f"{', '.join(self.gpus)}, each for {self.spec.trials_per_gpu} at a time"},
                    fix=f"orchestrator resume {self.record.name}, where there are as many as before",
                )
            return False
        drawn = propose(self.spec, number, [*self.earlier, *past])
        settings = values(self.spec.space, drawn)
        self._add(drawn, {"settings": settings, "runs": runs, "gpus": gpus, "started": time.time()})
        self.live[number], self.histories[number] = _live(self._trials()[number]), []
        self.seeds[number] = [[] for _ in runs]
        self.live[number].unborn |= {*runs}
        self._look(self.live[number])
        return True

    def _places(self, runs: int) -> list[list[str]] | None:
        """GPUs for each run of a trial; None: not so many are free."""
        found: list[list[str]] = []
        for _ in range(runs if self.gpus else 0):
            used = [*(mine for live in self.live.values() for mine in live.gpus), *found]
            need = self.planner.first.compute.processes_per_node
            mine = place(used, self.gpus, per_gpu=self.spec.trials_per_gpu, need=need)
            if mine is None:
                return None
            found.append(mine)
        return found

    def _add(self, drawn: dict[str, Any], attributes: dict[str, Any]) -> None:
        """Puts a trial into the study in one write: there is never half of it."""
        from optuna.trial import TrialState, create_trial

        told = distributions(self.spec.space, drawn)
        trial = create_trial(state=TrialState.RUNNING, params=drawn, distributions=told, user_attrs=attributes)
        self.study.add_trial(trial)

    def _look(self, live: LiveTrial) -> None:
        """Sees to it that its runs are there, judges what they reported, and notes its end.

        While a cloud does not answer nothing is known of a trial, so nothing is decided: the next look may tell.
        """
        with reporting_outages():
            self._look_closely(live)

    def _look_closely(self, live: LiveTrial) -> None:
        found = [status for number in range(len(live.runs)) if (status := self._run(live, number)) is not None]
        self._read(live, found)
        if not self.live.keys() <= self.seeds.keys():
            return  # a driver that has just begun: who is compared seed by seed has to be read first
        self._judge(live)
        hours, bad = self.spec.limits.trial_hours, next((status for status in found if status.state.resumable), None)
        if live.end is None and bad is not None:
            live.end = ("failed", f"{bad.name} {bad.state}: {bad.reason or 'no reason given'}")
        if live.end is None and hours is not None and time.time() - live.started > hours * HOUR:
            live.end = ("timed out", f"took more than {hours:g} h")
        going = [status.name for status in found if not status.state.terminal]
        if live.end is not None and going:
            self._note_ending(live)
            for name in going:
                self._ask_to_end(name)
        self.costs[live.number] = sum(status.cost or 0.0 for status in found)
        expected = len(live.runs) if live.end is None else len(found)
        if len(found) == expected and all(status.state.terminal for status in found):
            self._finish(live, found)

    def _note_ending(self, live: LiveTrial) -> None:
        """Writes down as what a trial ends, before its runs are cancelled for it: afterwards nobody could tell."""
        if ENDING not in self._trials()[live.number].user_attrs:
            self._note(live.number, ENDING, live.end)

    def _run(self, live: LiveTrial, number: int) -> RunStatus | None:
        """A run of a trial: submitted if it never was, taken up again if it may be. None: there is none."""
        name = live.runs[number]
        try:
            status = None if name in live.unborn else self._status(name)
            live.unborn.discard(name)
            if status is None and live.end is None:
                self._submit(live, number)
                status = self.backend.describe(name)
            if status is not None and live.end is None and status.state.resumable and self._may_go_on(status):
                status = self._revive(status)
        except (SpecError, DataError) as problem:
            live.end = live.end or ("failed", problem.message)
            return None
        return status

    def _may_go_on(self, status: RunStatus) -> bool:
        """Whether a run that ended before its time is to be taken up again."""
        if status.state == RunState.FAILED:
            return status.exit_code != WRONG_INPUT and status.attempt <= self.spec.limits.retries
        return status.state == RunState.PREEMPTED or status.name in self.state.interrupted

    def _revive(self, status: RunStatus) -> RunStatus | None:
        """Takes a run up again; None: it can't be at this moment."""
        try:
            require(self.backend, Resumes).resume(status.name)
        except ConflictError:  # who watched it has said its last word, and is about to let go of it
            return None
        if status.name in self.state.interrupted:
            self._update(interrupted=[name for name in self.state.interrupted if name != status.name])
        print(f"{status.name} goes on, after: {status.reason}", flush=True)
        return self.backend.describe(status.name)

    def _status(self, name: str) -> RunStatus | None:
        try:
            return self.backend.describe(name)
        except NotFoundError:
            return None

    def _submit(self, live: LiveTrial, number: int) -> None:
        seed = self.spec.seeds[number] if self.spec.seeds else None
        plan = self.planner.plan(live.number, live.settings, seed)
        if live.gpus:
            plan = plan.with_variables({GPUS: ",".join(live.gpus[number])})
        submission = self.backend.prepare(plan, run=live.runs[number])
        remember(self.backend.name, self.home)  # first: a submission that is cut off leaves a run that is found
        try:
            self.backend.submit(submission)
        except ConflictError as problem:
            self._adopt(live.runs[number], plan, problem)

    def _adopt(self, name: str, plan: Plan, refusal: ConflictError) -> None:
        """Takes a run that has the name already for a trial's own, if it is of the same plan: the folder of the sweep
        may have been deleted, and its runs not. One that was cancelled with the sweep then goes on."""
        there = self._status(name)
        if there is None:
            raise refusal
        if there.run_hash != plan.run_hash:
            raise ConflictError(
                f"run {name} is there, and of another plan than this trial",
                facts={"need": plan.run_hash, "have": there.run_hash},
                fix=f"orchestrator submit sweep with another --name, or delete the runs {self.record.name}-t*",
            ) from refusal
        print(f"{name} was there already, of the same plan: it is this trial's", flush=True)
        self._update(interrupted=[*self.state.interrupted, name])

    def _read(self, live: LiveTrial, found: list[RunStatus]) -> None:
        """What each of its runs has reported until now."""
        seeds = [*self.seeds.get(live.number, [[] for _ in live.runs])]
        for status in found:
            stands = (status.step, status.state, status.metrics.get(self.spec.objective.metric))
            if live.moved.get(status.name) != stands:
                values = metric_values(self.backend.metrics(status.name), self.spec.objective.metric)
                seeds[live.runs.index(status.name)] = values
                live.moved[status.name] = stands
        self.seeds[live.number] = seeds

    def _judge(self, live: LiveTrial) -> None:
        """Tells the study each report that is new; what is decided of it is written down first."""
        history, reports = self.histories[live.number], together(self.seeds[live.number], self.spec.objective)
        while len(history) < len(reports) and not self._is_stopped(live.number, len(history)):
            history.append(reports[len(history)])
            decision = self._decide(live.number, len(history))
            self._report(live.number, len(history), history[-1])
            if decision is not None and decision.stop:
                live.end = ("stopped", decision.text)

    def _is_stopped(self, number: int, report: int) -> bool:
        """Whether a trial was stopped at a report, and later ones count for nothing."""
        found = self.decided.get((number, report))
        return found is not None and found.stop

    def _decide(self, number: int, report: int) -> Decision | None:
        """What the policy says of a report: what it said before, if it did; else what it says now, which is kept."""
        if (number, report) in self.decided:
            return self.decided[number, report]
        spec = self.spec
        decision = judge(
            *(spec.early_termination, spec.objective, self.histories, number), report=report, replicates=self.seeds
        )
        if decision is not None:
            self.folder.decide(number, decision)
            self.decided[number, report] = decision
            print(f"trial {number} {decision.text}", flush=True)
        return decision

    def _report(self, number: int, report: int, value: float) -> None:
        from optuna.trial import Trial

        Trial(self.study, self._trials()[number]._trial_id).report(value, report)

    def _finish(self, live: LiveTrial, found: list[RunStatus]) -> None:
        """Tells the study what a trial came to."""
        from optuna.trial import TrialState

        value = outcome(self.histories[live.number], self.spec.objective)
        state, why = live.end or ("completed", None)
        if value is None and state != "failed":
            state, why = "failed", why or f"it never reported {self.spec.objective.metric}"
        value = None if state == "failed" else value
        for status in found if state == "stopped" else ():
            self.parent.note(status.mlflow_run_id, str(why))
        self.outcomes[live.number] = value
        if value is not None:
            top = best(
                [found for found in self.outcomes.values() if found is not None],
                maximize=self.spec.objective.goal == "maximize",
            )
            metrics = {"trial": value, "best": top}
            append(self.folder.metrics, {"step": len(self.outcomes), "time": time.time(), "metrics": metrics})
        end = {
            "state": state,
            "why": why,
            "outcome": value,
            "cost": self.costs[live.number],
            "ended": time.time(),
            "seeds": self.seeds.get(live.number, []),
        }
        number, told = live.number, {"failed": TrialState.FAIL, "stopped": TrialState.PRUNED}.get(state)
        self._note(number, "end", end)
        self.study.tell(number, None if told else value, state=told)
        print(f"trial {number} ended as {state}" + (f": {value:.6g}" if value is not None else f": {why}"), flush=True)
        del self.live[number]

    def _limit(self) -> str | None:
        """Which limit of the sweep is reached."""
        limit = reached(self.record, sum(self.costs.values()))
        return None if limit is None else limit.why

    def _cancel(self) -> tuple[RunState, str | None]:
        """Asks every run to end, and waits until it has; to the study their trials go on, to be taken up again."""
        names = [name for live in self.live.values() for name in live.runs]
        self._update(interrupted=names)
        while going := [name for name in names if self._may_run(name)]:
            for name in going:
                self._ask_to_end(name)
            self._pause()
        return RunState.CANCELLED, "it was cancelled"

    def _may_run(self, name: str) -> bool:
        """Return whether a run is live, or may be: its backend does not answer."""
        with reporting_outages():
            found = self._status(name)
            return found is not None and not found.state.terminal
        return True

    def _ask_to_end(self, name: str) -> None:
        """Cancel a run; during an outage the next look, which finds it live, tries again."""
        with reporting_outages():
            self.backend.cancel(name)

    def _note(self, number: int, key: str, value: Any) -> None:
        """Write an attribute of a trial; Optuna itself lets only the objective do so."""
        self.study._storage.set_trial_user_attr(self._trials()[number]._trial_id, key, value)

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _update(self, **changes: Any) -> None:
        self.state = self.state.model_copy(update=changes)
        self.folder.write_state(self.state)

    def _note_stop(self, number: int, frame: FrameType | None) -> None:
        self.asked_to_stop = True


def _live(trial: FrozenTrial) -> LiveTrial:
    told = trial.user_attrs
    end = tuple(told[ENDING]) if ENDING in told else None
    return LiveTrial(trial.number, told["settings"], told["runs"], told["gpus"], told["started"], end)


@contextmanager
def reporting_outages() -> Iterator[None]:
    """Report that a backend does not answer, and leave the rest to the next look."""
    try:
        yield
    except ServiceError as problem:
        print(problem, file=sys.stderr, flush=True)


def _gpus() -> list[str]:
    """Names of the GPUs that this process may use."""
    named = os.environ.get(GPUS)
    return named.split(",") if named else [str(number) for number in range(visible_gpus(os.environ))]


def main() -> int:
    """Takes the lock, says so, drives."""
    folder, home, ready = SweepFolder(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
    with folder.lock():
        driver = Driver(folder, home)
        driver.begin()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.write(ready, b"ready")
        os.close(ready)
        try:
            driver.drive()
        except UserError as problem:
            print(problem, file=sys.stderr, flush=True)
            return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
