"""What the command line and the notebooks call: plans, submits, and finds runs again.

orchestrator = Orchestrator()
plan = orchestrator.plan(overrides={"recipe": "tiny", "train.steps": 200})
print(plan.summary())
run = orchestrator.submit(plan)
run.wait().metrics["validation_mlm_loss"]
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.backends import load_backend, remember, used_backends
from orchestrator.backends.base import Backend, Request
from orchestrator.backends.log_query import LogBlock, LogLine, LogQuery, choose_ranks
from orchestrator.delivery import deliver
from orchestrator.runs.status import Handle, RunState, RunStatus
from orchestrator.support.errors import ConflictError, JobFailed, NotFoundError, TimeoutExceeded
from orchestrator.support.home import home_folder
from orchestrator.support.lookup import find_name
from train_jobs.artifacts.store_manifest import MANIFEST_FILE
from train_jobs.config.telemetry import no_telemetry

if TYPE_CHECKING:  # loaded where they are called for: whoever looks at runs needs none of them
    from orchestrator.backends.retention import Pruned, Pruning
    from orchestrator.estimates.cost import RunCost
    from orchestrator.jobs.base import Plan
    from orchestrator.reports.pages.comparison import Subject
    from orchestrator.runs.differences import Difference, Side
    from orchestrator.runs.lineage_report import CheckedLineage
    from orchestrator.specs.resolved import Flag
    from orchestrator.sweep import Sweeps

WATCH_SECONDS = 2.0
FIRST_POLL = 0.1  # seconds; a run takes minutes to weeks
LAST = "@last"


class Run:
    """A run that was submitted, here or elsewhere.

    Args:
        backend: where it runs.
        handle: its handle.
        created: False if it was there before the submission that returned it.
    """

    def __init__(self, backend: Backend, handle: Handle, *, created: bool = False) -> None:
        self._backend = backend
        self.handle = handle
        self.created = created

    @property
    def name(self) -> str:
        """The run's name."""
        return self.handle.name

    @property
    def folder(self) -> Path | None:
        """Its folder, where that is on this machine."""
        return self._backend.folder(self.name)

    def status(self) -> RunStatus:
        """How it stands now."""
        return self._backend.describe(self.name)

    def logs(
        self,
        *,
        follow: bool = False,
        rank: int | Collection[int] = (),
        all_ranks: bool = False,
        node: int | None = None,
        launcher: bool = False,
        tail: int | None = None,
        since: float | None = None,
        grep: str | re.Pattern[str] | None = None,
    ) -> Iterator[LogLine]:
        """Lines of its logs, of several in the order of their time, to the second; `orchestrator logs` as Python.

        Args:
            follow: go on until the run has ended.
            rank: of these ranks. Without any, `all_ranks`, `node` and `launcher`: of rank 0.
            all_ranks: of all ranks.
            node: of the ranks of this machine.
            launcher: of what starts the ranks and watches them.
            tail: of what there is already, only the last so many lines of each log.
            since: only lines written after this time, seconds since the epoch.
            grep: only lines in which this regular expression is found.

        Raises:
            NotFoundError: there is no such rank or node.
        """
        query = LogQuery(
            ranks=choose_ranks((rank,) if isinstance(rank, int) else rank, all_ranks, node=node, launcher=launcher),
            node=node,
            launcher=launcher,
            follow=follow,
            tail=tail,
            since=since,
            grep=None if grep is None else re.compile(grep),
        )
        return self._backend.logs(self.name, query)

    def log_blocks(self, query: LogQuery) -> Iterator[LogBlock]:
        """Lines of its logs that a `query` asks for, in blocks, as they were written: for gigabytes of them."""
        return self._backend.log_blocks(self.name, query)

    def plan(self) -> dict[str, Any]:
        """The plan that it was made from, as `Plan.as_dict` gave it."""
        return self._backend.plan(self.name)

    def metrics(self, *, seed: int | None = None) -> Iterator[dict[str, Any]]:
        """What the job reported: {step, time, metrics}.

        Args:
            seed: of a fine-tuning with several seeds: while it trained with this one. None: the job's own reports, of
                several seeds one for each that is done.
        """
        return self._backend.metrics(self.name, seed=seed)

    def _seeds(self, status: RunStatus, plan: Mapping[str, Any]) -> dict[int, list[dict[str, Any]]]:
        """Of a fine-tuning with several seeds: what was reported with each that has begun."""
        seeds = plan["job"]["seeds"] if status.counts == "runs" else ()
        return {seed: list(self.metrics(seed=seed)) for seed in seeds[: (status.step or 0) + 1]}

    def wait(self, timeout: float | None = None, *, max_restarts: int | None = None) -> RunStatus:
        """Waits until it has ended, and sees to its restarts where its backend has nobody who does.

        Args:
            timeout: seconds; None waits for ever.
            max_restarts: how often it may be started again; None: as it was submitted.

        Raises:
            TimeoutExceeded: it goes on after `timeout`.
        """
        started, pause = time.monotonic(), FIRST_POLL
        while not (status := self._tended(max_restarts)).state.terminal:
            left = None if timeout is None else timeout - (time.monotonic() - started)
            if left is not None and left <= 0:
                raise TimeoutExceeded(
                    f"run {self.name} is {status.state} after {timeout:g} s",
                    fix=f"orchestrator wait {self.name}",
                )
            time.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 1.5, self._backend.poll_seconds)
        return status

    def watch(self, *, every: float = WATCH_SECONDS) -> RunStatus:
        """As `wait`, and in a notebook shows meanwhile how it stands: figures and curves, drawn anew as they come.

        Interrupting the cell, or losing the kernel, ends the watching and never the job, which `attach("@last")` finds
        again.

        Args:
            every: seconds between two looks.
        """
        from orchestrator.reports.pages.notebook import display_of

        draw = display_of(self)
        while not (status := self._tended(None)).state.terminal:
            draw()
            time.sleep(every)
        draw()
        return status

    def _repr_html_(self) -> str:
        """How it stands, as a notebook shows it."""
        from orchestrator.reports.pages.notebook import run_html

        status, plan = self.status(), self.plan()
        result, seeds = self._backend.result(self.name), self._seeds(status, plan)
        return run_html(status, self.metrics(), plan, result, seeds=seeds)

    def _tended(self, max_restarts: int | None) -> RunStatus:
        """How it stands, unless it has ended and was started again."""
        while True:
            status = self.status()
            if not (status.state.terminal and self._backend.tend(self.name, max_restarts)):
                return status

    def raise_for_status(self) -> RunStatus:
        """The status of a completed run.

        Raises:
            JobFailed: it ended otherwise; carries the job's exit code.
        """
        status = self.status()
        if status.state.resumable:
            raise JobFailed(
                f"run {self.name} {'was ' if status.state != RunState.FAILED else ''}{status.state}",
                exit_code=status.exit_code or 1,
                facts={"reason": status.reason or "unknown"},
                fix=f"orchestrator resume {self.name}",
            )
        return status

    def lineage(self) -> CheckedLineage:
        """Where it comes from, each link held against what lies on this machine.

        Raises:
            NotFoundError: it has not begun to train.
            ConflictError: its lineage does not verify.
        """
        return self._backend.lineage(self.name)

    def report(self, to: Path | None = None, *, beside: Sequence[Run] = ()) -> Path:
        """Writes one self-contained HTML page about the run, or about several compared; returns where.

        Args:
            to: the file; None: report.html in the run's folder, or comparison.html here.
            beside: runs to compare it with.

        Raises:
            UsageError: it trains nothing, or these runs have no figures in common.
            StorageError: it cannot be written there.
        """
        from orchestrator.reports.pages.written_pages import write_report

        return write_report([run._subject() for run in (self, *beside)], to)

    def pictures(self, folder: Path, *, beside: Sequence[Run] = ()) -> list[Path]:
        """Writes the figures of that page as PNGs into `folder`; returns where. `beside` and errors as of `report`."""
        from orchestrator.reports.pages.written_pages import write_pictures

        return write_pictures([run._subject() for run in (self, *beside)], folder)

    def download(
        self,
        *outputs: str,
        to: Path | None = None,
        force: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Path]:
        """Copies outputs, all of them or none; returns where they are now.

        Args:
            outputs: `model`, `checkpoints`, `logs`, `metrics`, ...; none: all that there are.
            to: folder; None: one of the run's name in the current folder.
            force: replace what is there.
            progress: told bytes done and bytes in all.

        Raises:
            NotFoundError: the run has no such output; tells those that it has.
            ConflictError: there is something in the place of one.
            StorageError: `to` cannot be written.
        """
        return self._backend.download(self.name, outputs, to or Path(self.name), force=force, progress=progress)

    def deliver(self, to: Path | None = None) -> Path | None:
        """Puts the predictions of a completed run where they were asked for; returns where, None if nobody asked.

        Args:
            to: the file; None: as its submission said. What is there is replaced.

        Raises:
            NotFoundError: it has none.
            StorageError: they cannot be written there.
        """
        asked = Path(self.plan()["spec"]["output"]) if to is None else to
        if not asked.is_absolute() or not asked.parent.is_dir():  # asked on another machine
            return None
        deliver(self._backend, self.name, asked)
        return asked

    def cost(self) -> RunCost:
        """What it took and cost until now, and what of that was done twice."""
        from orchestrator.estimates.cost import run_cost

        plan, status = self._backend.plan(self.name), self.status()
        compute, origin = plan["compute"], plan["changes"].get("compute.price_per_hour", {})
        return run_cost(
            self.name,
            status.attempts,
            list(self.metrics()),
            nodes=compute["nodes"],
            processes=plan["world_size"],
            price_per_hour=compute.get("price_per_hour"),
            price_origin=origin.get("from") or compute.get("price_origin"),
            now=time.time(),
        )

    def compare(self, other: Run, *, patch: bool = False) -> Difference:
        """What this run (a) and the `other` (b) have not in common; with `patch`, changed code line by line."""
        from orchestrator.runs.differences import compare

        return compare(self._side(), other._side(), patch=patch)

    def _side(self) -> Side:
        from orchestrator.runs.differences import Side

        folder, backend = self.folder, self._backend
        return Side(
            status=self.status(),
            plan=backend.plan(self.name),
            result=backend.result(self.name),
            code=folder / "code" if folder else None,
        )

    def _subject(self) -> Subject:
        from orchestrator.reports.pages.comparison import Subject

        side = self._side()
        return Subject(side, list(self.metrics()), self._seeds(side.status, side.plan))

    def cancel(self) -> None:
        """Asks it to end; it saves a checkpoint first."""
        self._backend.cancel(self.name)

    def preempt(self) -> None:
        """Simulates a preemption: the job saves a checkpoint and stops; `max_restarts` may start it again."""
        self._backend.preempt(self.name)

    def stacks(self, *, rank: int | None = None) -> dict[int, str]:
        """Where each rank stands, or one of them: rank -> Python stacks of all its threads, innermost frame first.

        Raises:
            ConflictError: the run is not running.
            NotFoundError: it has no such rank.
        """
        found = self._backend.stacks(self.name)
        if rank is None:
            return found
        if rank not in found:
            raise NotFoundError(f"run {self.name} has no rank {rank}", facts={"ranks": f"0 to {max(found)}"})
        return {rank: found[rank]}

    def register_model(self, name: str | None = None) -> dict[str, Any]:
        """Puts its model into the registry, with its lineage: {name, version, uri, tags}.

        Its `name` there is, if None is given, the run's without its hash.

        Raises:
            ConflictError: it did not complete.
        """
        return self._backend.register_model(self.name, name)

    def deploy_model(self, endpoint: str, *, sku: str | None = None) -> dict[str, Any]:
        """Answers requests with its model: {endpoint, uri}.

        Args:
            endpoint: its name.
            sku: the machine size behind it, on Azure; None: the backend's own choice.

        Raises:
            ConflictError: it did not complete, or there is such an endpoint.
        """
        return self._backend.deploy_model(self.name, endpoint, sku=sku)

    def resume(self, *, processes: int | None = None) -> None:
        """Starts it again from its newest checkpoint.

        Args:
            processes: on each node, from now on; the global batch stays what it was. None: as many as before.
        """
        self._backend.resume(self.name, processes=processes)


class Orchestrator:
    """The SDK's entry.

    Args:
        backend: where to look for runs and, if the spec does not say, to send them. None: as the spec says, or local.
        home: folder of runs, caches and the tracking store. None: ORCHESTRATOR_HOME, or ~/.orchestrator.
        environ: environment variables; None: those of this process.
    """

    def __init__(
        self, backend: str | None = None, *, home: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        no_telemetry()
        self._environ = dict(os.environ if environ is None else environ)
        self._home = home or home_folder(self._environ)
        self._backend = backend

    def plan(
        self,
        kind: str = "pretrain",
        *,
        file: Path | None = None,
        overrides: Mapping[str, Any] | None = None,
        flags: Mapping[str, Flag] | None = None,
        sets: Iterable[str] = (),
    ) -> Plan:
        """What would be done: validated, offline.

        Args:
            kind: which job.
            file: a spec file.
            overrides: dotted path -> value, over the file.
            flags: the same from a command line, with the flag's name for messages.
            sets: `a.b=c` strings, over everything.

        Raises:
            SpecError, DataError: all that is wrong, with file and line.
        """
        from orchestrator.jobs.pretrain.plan import make_plan
        from orchestrator.jobs.resolve import resolve_spec
        from orchestrator.jobs.starts import model_of, outputs_of
        from orchestrator.specs.resolved import Flag, find_project

        given = {path: Flag(value, "overrides") for path, value in (overrides or {}).items()}
        if self._backend is not None:
            given.setdefault("backend", Flag(self._backend, "Orchestrator(backend)"))
        resolved = resolve_spec(
            kind,
            file=file,
            sets=sets,
            flags={**given, **(flags or {})},
            environ=self._environ,
            project=find_project(Path.cwd()),
            model_of=lambda name: model_of(name, self.attach),
            outputs_of=lambda name: outputs_of(name, self.attach),
        )
        return make_plan(resolved, home=self._home)

    def request(self, plan: Plan, *, new: bool = False) -> Request:
        """The very object that `submit` would send of a `plan`; `new`: under a name that is free."""
        backend = load_backend(plan.spec.backend, self._home)
        return backend.request(plan, self._free_name(backend, plan) if new else plan.name)

    def notes(self, plan: Plan, request: Request) -> list[str]:
        """What is to be known of the `request` of a `plan` beside the plan itself, a line each."""
        return load_backend(plan.spec.backend, self._home).notes(request, plan)

    def submit(self, plan: Plan, *, new: bool = False) -> Run:
        """Starts the plan, or returns the run of the same hash that is going on or completed.

        A preparation whose token store was deleted since is started again.

        Args:
            new: start another run whatever there is.

        Raises:
            ConflictError: there is a run of the same hash that did not complete; it is for the user to resume.
        """
        backend = load_backend(plan.spec.backend, self._home)
        names = [] if new else self._same_hash(backend, plan)
        earlier = backend.describe(names[0]) if names else None
        if earlier is not None and not _store_is_gone(earlier):
            if not earlier.state.resumable:
                return Run(backend, backend.handle(earlier.name))
            whole = "" if earlier.steps is None else f" of {earlier.steps}"
            raise ConflictError(
                f"a run of the same plan {'was ' if earlier.state != RunState.FAILED else ''}{earlier.state}",
                facts={
                    "run": f"{earlier.name}, step {earlier.step or 0}{whole}",
                    "reason": earlier.reason or "unknown",
                    "or": "--new, to start another from the beginning",
                },
                fix=f"orchestrator resume {earlier.name}",
            )
        request = self.request(plan, new=new or earlier is not None)
        remember(backend.name, self._home)  # a submission that is cut off may have made a run
        handle = backend.schedule(request, plan)
        return Run(backend, handle, created=True)

    def runs(self, *, states: Collection[RunState] = (), limit: int | None = None) -> list[RunStatus]:
        """Runs, the newest first.

        Args:
            states: only those in one of these states; empty: in any.
            limit: at most so many.
        """
        if self._backend is not None:  # only who asks for this one by name waits for an answer from elsewhere
            self._backends()[0].discover()
        found = merge(*(backend.runs() for backend in self._backends()), key=lambda status: -status.created)
        return list(islice((status for status in found if not states or status.state in states), limit))

    def pruning(
        self,
        *,
        keep_last: int | None = None,
        older_than: float | None = None,
        states: Collection[RunState] = (),
        stores: bool = False,
    ) -> Pruning:
        """What `prune` would delete by these rules; nothing is touched.

        Args:
            keep_last: not the newest so many runs that have ended.
            older_than: only runs that ended more than so many seconds ago.
            states: only runs that ended in one of these states; empty: in any.
            stores: also token stores of texts that no remaining run is of.
        """
        from orchestrator.backends.retention import plan_pruning

        return plan_pruning(
            self.runs(),
            {backend.name: backend for backend in self._backends()},
            self._home,
            keep_last=keep_last,
            older_than=older_than,
            states=states,
            stores=stores,
        )

    def prune(self, pruning: Pruning) -> Pruned:
        """Deletes what `pruning` lists; a run that goes on again is left alone.

        Raises:
            StorageError: something cannot be deleted.
        """
        from orchestrator.backends.retention import prune

        return prune(pruning, {backend.name: backend for backend in self._backends()}, self._home)

    def delete_endpoint(self, endpoint: str) -> None:
        """Ends an endpoint of the backend that this was made for, or of this machine.

        Raises:
            NotFoundError: there is none of that name.
        """
        load_backend(self._backend or "local", self._home).delete_endpoint(endpoint)

    @property
    def sweeps(self) -> Sweeps:
        """Sweeps: planned, submitted, found again."""
        from orchestrator.jobs.starts import model_of, outputs_of
        from orchestrator.sweep import Sweeps

        return Sweeps(
            self._home,
            environ=self._environ,
            model_of=lambda name: model_of(name, self.attach),
            outputs_of=lambda name: outputs_of(name, self.attach),
        )

    def attach_all(self) -> list[Run]:
        """Every run, the newest of each backend first."""
        return [Run(backend, backend.handle(name)) for backend in self._backends() for name in backend.names()]

    def attach(self, run: str) -> Run:
        """Finds a run again.

        Args:
            run: handle, name, unique beginning of a name, or @last.

        Raises:
            NotFoundError: none, or more than one, fits.
        """
        if "://" in run:
            handle = Handle.parse(run)
            backend = load_backend(handle.backend, self._home)
            backend.describe(handle.path)
            remember(backend.name, self._home)
            return Run(backend, handle)
        found = {name: backend for backend in reversed(self._backends()) for name in backend.names()}
        name = find_name(run, found) if run != LAST else self._newest()
        return Run(found[name], found[name].handle(name))

    def _backends(self) -> list[Backend]:
        """Where runs are looked for; of two runs of one name the first backend's is meant."""
        if self._backend is not None:
            return [load_backend(self._backend, self._home)]
        preferred = self._environ.get("ORCHESTRATOR_BACKEND")
        names = [*([preferred] if preferred else []), *used_backends(self._home)]
        return [load_backend(name, self._home) for name in dict.fromkeys(names)]

    def _newest(self) -> str:
        newest = [status for backend in self._backends() for status in islice(backend.runs(), 1)]
        if not newest:
            raise NotFoundError("there are no runs yet", fix="orchestrator submit pretrain")
        return max(newest, key=lambda status: status.created).name

    def _same_hash(self, backend: Backend, plan: Plan) -> list[str]:
        """Names of runs of this plan's hash, the newest first."""
        of_hash = re.compile(rf".*-{plan.run_hash}(-\d+)?")
        return [name for name in backend.names() if of_hash.fullmatch(name)]

    def _free_name(self, backend: Backend, plan: Plan) -> str:
        taken, number = set(backend.names()), 2
        if plan.name not in taken:
            return plan.name
        while f"{plan.name}-{number}" in taken:
            number += 1
        return f"{plan.name}-{number}"


def _store_is_gone(status: RunStatus) -> bool:
    """True of a preparation whose token store, on this machine, was deleted since."""
    made = status.store if status.state == RunState.COMPLETED else None
    return made is not None and "://" not in made and not Path(made, MANIFEST_FILE).is_file()
