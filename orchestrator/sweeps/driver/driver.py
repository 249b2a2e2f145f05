"""Drive a sweep: draw points, submit and watch trials, stop trials that fall behind, report results to the study.

    python -m orchestrator.sweeps.driver.driver SWEEP_FOLDER HOME READY_FD

A driver may be killed at any moment, and continues from its files after a restart. The order of writes ensures this:

- A trial is in the study, with its point and the names of its runs, before the first of these runs is submitted.
- Each name is submitted once.
- A decision is on the disk before a run is cancelled because of it.
- Reports are stored with the run, and are read again.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from orchestrator.backends import load_backend, remember, require
from orchestrator.backends.base import Backend
from orchestrator.backends.capabilities import Resumes
from orchestrator.backends.run_progress import metric_values
from orchestrator.jobs.base import Plan
from orchestrator.runs.restarts import Backoff, Pauses, Restart, RestartLimits, decide_restart, ends_of
from orchestrator.runs.status import RunState, RunStatus, attempt_seconds
from orchestrator.specs.compute import visible_gpus
from orchestrator.specs.sweep_spec import trial_count
from orchestrator.support.errors import (
    CapacityError,
    ConflictError,
    DataError,
    NotFoundError,
    ServiceError,
    SpecError,
    UserError,
)
from orchestrator.sweeps.design.points import distributions, propose, values
from orchestrator.sweeps.driver.history import as_trials
from orchestrator.sweeps.driver.parent import ParentRun
from orchestrator.sweeps.driver.sweep_folder import END, ENDING, RESUMED, SweepFolder, append, last_step
from orchestrator.sweeps.driver.trials import GPUS, TrialPlanner, pick_gpus, run_names
from orchestrator.sweeps.driver.weight_pruning import WeightPruner
from orchestrator.sweeps.policy.limits import HOUR, reached_limit
from orchestrator.sweeps.policy.termination import combine_seeds, judge, outcome, ranked_trials
from train_jobs.artifacts.host import RunClock
from train_jobs.artifacts.mounts import write_error
from train_jobs.artifacts.redaction import redact_output

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

POLL_SECONDS, MIN_POLL_SECONDS = 0.2, 0.01  # of trials on this machine
BACKOFF_POLLS = 3, 300  # first and longest pause before a retry without progress, in polls of the backend


@contextmanager
def reporting_outages() -> Iterator[None]:
    """Report an outage of the backend on stderr, and skip the rest of the block until the next poll.

    During an outage the state of a trial is unknown. A failure now would cost a trial that may be running well.
    """
    try:
        yield
    except ServiceError as problem:
        print(problem, file=sys.stderr, flush=True)


@dataclass
class LiveTrial:
    """A running trial."""

    number: int
    settings: dict[str, Any]
    runs: list[str]
    gpus: list[list[str]]
    """GPUs of each run; empty on a machine without GPUs to share."""
    started: float
    end: tuple[str, str] | None = None
    """Its final state and the reason, once decided: its runs are being cancelled. None: it continues."""
    resumed: bool = False
    """Whether an earlier driver started it, and its duration until then is not yet in the study."""
    unsubmitted: set[str] = field(default_factory=set)
    """Runs known not to exist yet. Looking up a missing name is slow in a home folder with many runs."""
    progress: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Run -> its progress when its reports were last read; the metric is part of it, as a step may report twice."""
    completed: set[int] = field(default_factory=set)
    """Indices of the runs that had completed then."""

    @classmethod
    def of(cls, trial: FrozenTrial) -> LiveTrial:
        """Return the live trial that corresponds to an unfinished trial of the study."""
        stored = trial.user_attrs
        end = tuple(stored[ENDING]) if ENDING in stored else None
        return cls(trial.number, stored["settings"], stored["runs"], stored["gpus"], stored["started"], end)


class Driver:
    """The driver of one sweep. The caller holds the sweep's lock.

    Args:
        folder: the folder of the sweep.
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
        self.parent = ParentRun(folder, home)
        self.stop_requested = False
        self.live: dict[int, LiveTrial] = {}
        self.histories: dict[int, list[float]] = {}
        self.seeds: dict[int, list[list[float]]] = {}
        self.outcomes: dict[int, float | None] = {}
        self.ends: dict[int, str] = {}
        self.pruner = WeightPruner(self.record, self.backend)
        self.costs: dict[int, float] = {}
        self.gpus: list[str] = []
        self.pauses = Pauses()

    def begin(self) -> None:
        """Install the handler of SIGTERM, and record that this process drives the sweep."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self.folder.reserve()
        self._update(state=RunState.RUNNING, reason=None, ended=None, **self.folder.own_process())

    def drive(self) -> None:
        """Run until all trials have finished, or until the sweep is cancelled or the driver stopped.

        Raises:
            UserError: it cannot continue; finished trials are kept, and the sweep can be resumed.
        """
        # What is recorded if an exception is not one of those below, so that the state never claims a success.
        state: RunState = RunState.FAILED
        reason: str | None = "a bug in the driver: see driver.log"
        try:
            if not self.backend.own_tracking:
                self.parent.start_sync()
            self._load()
            if self.folder.cancel_file.exists():  # first: trials that cannot be planned can still be cancelled
                state, reason = self._cancel()
            else:
                self._plan()
                state, reason = self._loop()
        except UserError as problem:
            reason = problem.message
            raise
        except OSError as problem:  # most often a full disk
            where = Path(problem.filename or self.folder.path)
            fix, then = "free some space", f"; then: orchestrator resume {self.folder.name}"
            reason = str(write_error("cannot run the sweep", problem, where, fix=fix, then=then))
            raise
        finally:
            self._update(state=state, reason=reason, ended=self.state.now())
            if not self.backend.own_tracking:
                self.parent.start_sync()

    def _load(self) -> None:
        """Read the study; unfinished trials become live again, regardless of what happened to their runs meanwhile."""
        self.folder.repair()
        self.study = self.folder.study()
        self.decided = self.folder.decisions()
        self.earlier = as_trials(self.folder, self.spec.space)
        trials = self._trials()
        moments = [moment for trial in trials for moment in recorded_moments(trial)]
        clock = self.state.clock or RunClock.start()
        self._update(clock=clock.continued(max(moments, default=self.record.created)))
        unreported = {}
        for trial in trials:
            number = trial.number
            self.histories[number] = list(trial.intermediate_values.values())
            if END in trial.user_attrs:
                end = trial.user_attrs[END]
                self.costs[number], self.seeds[number] = end["cost"], end["seeds"]
                self._count(number, end)
                if not trial.state.is_finished():  # a driver was killed after it had stored the end
                    unreported[number] = end
                continue
            live = self.live[number] = LiveTrial.of(trial)
            live.resumed = True
            # A decision that was stored before the previous driver was killed, but may not have been carried out.
            stops = [
                decision.text for (judged, _), decision in self.decided.items() if judged == number and decision.stop
            ]
            live.end = ("stopped", stops[0]) if stops else live.end
        for number, end in unreported.items():  # once all results are known: one of them is the best
            self._report(number, end)

    def _plan(self) -> None:
        """Plan a trial, and read the GPUs that trials share."""
        self.planner = TrialPlanner(self.record, self.home, self.parent.tags())
        if self.planner.first.compute.device == "gpu" and self.backend.shares_machine:
            named = os.environ.get(GPUS)
            self.gpus = named.split(",") if named else [str(number) for number in range(visible_gpus(os.environ))]

    def _loop(self) -> tuple[RunState, str | None]:
        while True:
            for live in list(self.live.values()):
                self._poll(live)
            if self.folder.cancel_file.exists():
                return self._cancel()
            if self.stop_requested:
                return RunState.PREEMPTED, "the driver was stopped"
            # Before new trials start: the disk is sized for the best trials and the concurrent ones, not for all.
            # A failed trial keeps its checkpoints, from which a retry continues.
            counted = {number: value for number, value in self.outcomes.items() if self.ends[number] != "failed"}
            pruned = self.pruner.prune(counted, self._completed())
            limit = reached_limit(self.record, sum(self.costs.values()), self.state.now())
            if limit is not None:
                for live in self.live.values():
                    live.end = live.end or ("ended early", limit.why)
            elif self._start():
                continue
            if pruned and not self.live:
                return RunState.COMPLETED, limit.why if limit else None
            self._pause()

    def _pause(self) -> None:
        """Wait until the next poll; on this machine for 1% of the youngest trial's age, within limits.

        Trials of seconds then lose little time between two of them, and trials of hours cost few polls.
        """
        if self.backend.remote:
            return time.sleep(self.backend.poll_seconds)
        age = self.state.now() - max((live.started for live in self.live.values()), default=0.0)
        return time.sleep(min(max(age / 100, MIN_POLL_SECONDS), POLL_SECONDS))

    def _start(self) -> bool:
        """Start the next trial if one is left and enough GPUs are free; return whether one was started.

        Raises:
            CapacityError: this machine has too few GPUs for a trial, even with none running.
        """
        past = self._trials()
        number = len(past)
        if number >= trial_count(self.spec) or len(self.live) >= self.spec.limits.concurrent:
            return False
        runs = run_names(self.record.name, number, self.spec.replicates)
        if (gpus := self._free_gpus(len(runs))) is None:
            if self.live:
                return False
            raise CapacityError(
                f"cannot start trial {number}: it needs more GPUs at a time than this machine has",
                facts={"have": f"{', '.join(self.gpus)}, each for {self.spec.trials_per_gpu} at a time"},
                fix=f"orchestrator resume {self.record.name}, on a machine with the original number of GPUs",
            )
        self._add(propose(self.spec, number, [*self.earlier, *past]), runs=runs, gpus=gpus)
        live = self.live[number] = LiveTrial.of(self._trials()[number])
        self.histories[number], self.seeds[number] = [], [[] for _ in runs]
        live.unsubmitted |= {*runs}
        self._poll(live)
        return True

    def _free_gpus(self, runs: int) -> list[list[str]] | None:
        """Return GPUs for each run of a trial; None: not enough are free."""
        granted: list[list[str]] = []
        for _ in range(runs if self.gpus else 0):
            used = [*(gpus for live in self.live.values() for gpus in live.gpus), *granted]
            need = self.planner.first.compute.processes_per_node
            if (picked := pick_gpus(used, self.gpus, per_gpu=self.spec.trials_per_gpu, need=need)) is None:
                return None
            granted.append(picked)
        return granted

    def _add(self, drawn: dict[str, Any], **attributes: Any) -> None:
        """Add a trial to the study in one write, so that a kill cannot leave a part of it.

        Optuna's `ask` would write it in several: the trial, each parameter, each attribute.
        """
        from optuna.trial import TrialState, create_trial

        attributes |= {"settings": values(self.spec.space, drawn), "started": self.state.now()}
        known = distributions(self.spec.space, drawn)
        self.study.add_trial(
            create_trial(state=TrialState.RUNNING, params=drawn, distributions=known, user_attrs=attributes)
        )

    @reporting_outages()
    def _poll(self, live: LiveTrial) -> None:
        """Submit the runs of a trial that are missing, judge new reports, and finish the trial if it is complete."""
        statuses = [status for number in range(len(live.runs)) if (status := self._run(live, number)) is not None]
        self._read(live, statuses)
        if not self.live.keys() <= self.seeds.keys():
            return  # after a restart: policies compare seeds, so the reports of all trials must be read first
        self._judge(live)
        hours, failed = (
            self.spec.limits.trial_hours,
            next((status for status in statuses if status.state.resumable), None),
        )
        if live.end is None and failed is not None:
            live.end = ("failed", f"{failed.name} {failed.state}: {failed.reason or 'no reason given'}")
        took = _seconds(statuses)
        if live.resumed and statuses:
            self._set_attribute(live.number, RESUMED, {"at": self.state.now(), "seconds": took})
            live.resumed = False
        if live.end is None and hours is not None and took > hours * HOUR:
            live.end = ("timed out", f"took more than {hours:g} h")
        running = [status.name for status in statuses if not status.state.terminal]
        if live.end is not None and running:
            # Stored first: a run that is cancelled does not show why, and a restarted driver would call it a failure.
            if ENDING not in self._trials()[live.number].user_attrs:
                self._set_attribute(live.number, ENDING, live.end)
            for name in running:
                self._request_cancel(name)
        self.costs[live.number] = sum(status.cost or 0.0 for status in statuses)
        # A trial that is ending does not wait for runs that were never submitted.
        expected = len(live.runs) if live.end is None else len(statuses)
        if len(statuses) == expected and not running:
            self._finish(live, statuses)

    def _run(self, live: LiveTrial, number: int) -> RunStatus | None:
        """Return the status of a trial's run after submitting or resuming it where necessary. None: no such run."""
        name = live.runs[number]
        try:
            status = None if name in live.unsubmitted else self._status(name)
            live.unsubmitted.discard(name)
            if status is None and live.end is None:
                self._submit(live, number)
                status = self.backend.describe(name)
            if status is not None and live.end is None and status.state.resumable:
                status = self._retry(live, status)
        except (SpecError, DataError) as problem:
            live.end = live.end or ("failed", problem.message)
            return None
        return status

    def _retry(self, live: LiveTrial, status: RunStatus) -> RunStatus | None:
        """Resume a run that finished without completing, if its end allows it; return its status until then.

        Only errors of the run itself count as retries: a lost supervisor, an eviction or a full disk is not its fault.
        """
        restart = self._next_retry(status)
        if restart.why_not:
            live.end = ("failed", f"{status.name} {status.state}: {status.reason} ({restart.why_not})")
        if not restart.due:
            return status
        if not self._pause_is_over(status, restart.pause):
            return status.model_copy(update={"state": RunState.QUEUED})
        return self._resume(status)

    def _pause_is_over(self, status: RunStatus, seconds: float) -> bool:
        """Return whether the pause before a retry is over; a run on this machine has just ended when it is seen."""
        # The clock of a run here may differ from that of the sweep: each starts with the wall clock, which may be set.
        ended = status.ended or 0.0
        return self.pauses.over(status.name, ended, seconds, self.state.now() if self.backend.remote else ended)

    def _next_retry(self, status: RunStatus) -> Restart:
        if status.name in self.state.interrupted:
            return Restart(True)
        first, longest = (polls * self.backend.poll_seconds for polls in BACKOFF_POLLS)
        limits = RestartLimits(self.spec.limits.retries, preemptions=None, disk_is_error=False)
        return decide_restart(status.name, ends_of(status), limits, Backoff(first, longest))

    def _resume(self, status: RunStatus) -> RunStatus | None:
        """Resume a run; None: it cannot be resumed at this moment."""
        try:
            require(self.backend, Resumes).resume(status.name)
        except ConflictError:  # its supervisor still holds the lock after its final state: try at the next poll
            return None
        if status.name in self.state.interrupted:
            self._update(interrupted=[name for name in self.state.interrupted if name != status.name])
        print(f"{status.name} resumed, after: {status.reason}", flush=True)
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
        remember(self.backend.name, self.home)  # first: a run of an interrupted submission must be found by `list`
        try:
            self.backend.submit(submission)
        except ConflictError as problem:
            self._adopt(live.runs[number], plan, problem)

    def _adopt(self, name: str, plan: Plan, refusal: ConflictError) -> None:
        """Adopt an existing run of that name if it has the same plan: the folder of its sweep may have been deleted.

        If it was cancelled with that sweep, it is resumed.

        Raises:
            ConflictError: the run has another plan.
        """
        if (existing := self._status(name)) is None:
            raise refusal
        if existing.run_hash != plan.run_hash:
            raise ConflictError(
                f"run {name} already exists with another plan",
                facts={"need": plan.run_hash, "have": existing.run_hash},
                fix=f"orchestrator submit sweep with another --name, or delete the runs {self.record.name}-t*",
            ) from refusal
        print(f"adopted {name}: it exists with the same plan", flush=True)
        self._update(interrupted=[*self.state.interrupted, name])

    def _read(self, live: LiveTrial, statuses: list[RunStatus]) -> None:
        """Read the reports of each run of a trial."""
        metric, seeds = self.spec.objective.metric, [*self.seeds.get(live.number, [[] for _ in live.runs])]
        for status in statuses:
            progress = (status.step, status.state, status.metrics.get(metric))
            if live.progress.get(status.name) != progress:
                seeds[live.runs.index(status.name)] = metric_values(self.backend.metrics(status.name), metric)
                live.progress[status.name] = progress
        live.completed = {live.runs.index(one.name) for one in statuses if one.state == RunState.COMPLETED}
        self.seeds[live.number] = seeds

    def _judge(self, live: LiveTrial) -> None:
        """Judge each new report of a trial, and add it to the study; reports after a stop are ignored.

        A decision is stored before it takes effect, and a restarted driver applies the stored one. With the reports
        that other trials made since, it could decide differently.
        """
        from optuna.trial import Trial

        spec, number, history = self.spec, live.number, self.histories[live.number]
        combined = combine_seeds(self.seeds[number], spec.objective, completed=live.completed)
        for value in combined[len(history) :]:
            if (last := self.decided.get((number, len(history)))) is not None and last.stop:
                break
            history.append(value)
            report = len(history)
            if (decision := self.decided.get((number, report))) is None:
                policy, objective = spec.early_termination, spec.objective
                decision = judge(policy, objective, self.histories, number, report=report, replicates=self.seeds)
                if decision is not None:
                    self.folder.decide(number, decision)
                    self.decided[number, report] = decision
                    print(f"trial {number} {decision.text}", flush=True)
            Trial(self.study, self._trials()[number]._trial_id).report(value, report)
            if decision is not None and decision.stop:
                live.end = ("stopped", decision.text)

    def _finish(self, live: LiveTrial, statuses: list[RunStatus]) -> None:
        """Store how a trial ended, and report its result."""
        number, value = live.number, outcome(self.histories[live.number], self.spec.objective)
        state, why = live.end or ("completed", None)
        if value is None and state not in {"failed", "completed", "stopped"}:  # stopped: it diverged
            state = "failed"
        if value is None:
            why = why or f"it never reported {self.spec.objective.metric}"
        value = None if state == "failed" else value
        end: dict[str, Any] = {"state": state, "why": why, "outcome": value, "cost": self.costs[number]}
        end |= {"ended": self.state.now(), "seconds": _seconds(statuses), "seeds": self.seeds.get(number, [])}
        self._count(number, end)
        if value is not None:
            # a retried trial was counted before, and each step is copied to MLflow once
            end["step"] = max(len(self.outcomes), last_step(self.folder.metrics) + 1)
        # First, with its step: if this process is killed, the next driver knows whether the line below is there.
        self._set_attribute(number, END, end)
        self._report(number, end)
        del self.live[number]

    def _count(self, number: int, end: Mapping[str, Any]) -> None:
        """Count a trial that ended."""
        self.outcomes[number], self.ends[number] = end["outcome"], end["state"]

    def _completed(self) -> set[int]:
        """Return the numbers of the trials that completed."""
        return {number for number, state in self.ends.items() if state == "completed"}

    def _report(self, number: int, end: Mapping[str, Any]) -> None:
        """Report the stored end of a trial: to the metrics of the sweep, unless they have it, then to the study."""
        from optuna.trial import TrialState

        value, step = end["outcome"], end.get("step", 0)  # none: without a result, or stored by an earlier version
        if step > last_step(self.folder.metrics):
            maximize = self.spec.objective.goal == "maximize"
            top = self.outcomes[ranked_trials(self.outcomes, self._completed(), maximize=maximize)[0]]
            line = {"step": step, "time": end["ended"], "metrics": {"trial": value, "best": top}}
            append(self.folder.metrics, line)
        final = {"stopped": TrialState.PRUNED}.get(end["state"], None if value is not None else TrialState.FAIL)
        self.study.tell(number, None if final else value, state=final)
        print(f"trial {number} {end['state']}: {end['why'] if value is None else f'{value:.6g}'}", flush=True)

    def _cancel(self) -> tuple[RunState, str | None]:
        """Cancel every run and wait until all have finished; in the study the trials remain running, to be resumed."""
        names = [name for live in self.live.values() for name in live.runs]
        self._update(interrupted=names)
        while running := [name for name in names if self._may_run(name)]:
            for name in running:
                self._request_cancel(name)
            self._pause()
        return RunState.CANCELLED, "it was cancelled"

    def _may_run(self, name: str) -> bool:
        """Return whether a run is live, or may be because its backend does not answer."""
        with reporting_outages():
            status = self._status(name)
            return status is not None and not status.state.terminal
        return True

    def _request_cancel(self, name: str) -> None:
        """Cancel a run; after an outage or a refusal, the next poll finds it live and tries again."""
        try:
            self.backend.cancel(name)
        except UserError as problem:  # an error here would leave the other runs without their cancel
            print(problem, file=sys.stderr, flush=True)

    def _set_attribute(self, number: int, key: str, value: Any) -> None:
        """Write an attribute of a trial, through the storage: Optuna's public interface needs a live `Trial`."""
        self.study._storage.set_trial_user_attr(self._trials()[number]._trial_id, key, value)

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _update(self, **changes: Any) -> None:
        self.state = self.state.model_copy(update=changes)
        self.folder.write_state(self.state)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self.stop_requested = True


def recorded_moments(trial: FrozenTrial) -> Iterator[float]:
    """Yield the moments that the study records of a trial, by the clock of its sweep."""
    stored = trial.user_attrs
    yield stored["started"]
    if RESUMED in stored:
        yield stored[RESUMED]["at"]
    if END in stored:
        yield stored[END]["ended"]


def _seconds(statuses: Sequence[RunStatus]) -> float:
    """Return the duration of a trial, whose runs are parallel; while it was cancelled or had failed, none passes."""
    return max((attempt_seconds(status.attempts, status.now) for status in statuses), default=0.0)


def main() -> int:
    """Take the lock, report readiness to the parent process, and drive; return the exit code."""
    folder, home, ready = SweepFolder(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
    with folder.lock():
        driver = Driver(folder, home)
        driver.begin()
        # Ctrl-C and a closed terminal stop the command that follows the sweep, never the sweep.
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.write(ready, b"ready")
        os.close(ready)
        try:
            driver.drive()
        except UserError as problem:
            print(problem, file=sys.stderr, flush=True)
            return problem.exit_code
    return 0


if __name__ == "__main__":
    redact_output()
    sys.exit(main())
