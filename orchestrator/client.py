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
from collections.abc import Collection, Iterable, Mapping
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.backends import load_backend, reader_of, remember, require, used_backends
from orchestrator.backends.base import Backend, Submission
from orchestrator.backends.capabilities import Discovers, ReadsJobFiles, Registers
from orchestrator.run import Run
from orchestrator.runs.status import Handle, RunState, RunStatus
from orchestrator.support.errors import ConflictError, NotFoundError
from orchestrator.support.home import home_folder
from orchestrator.support.lookup import find_name
from train_jobs.artifacts.store_manifest import MANIFEST_FILE
from train_jobs.config.telemetry import no_telemetry

if TYPE_CHECKING:  # loaded where they are called for: whoever looks at runs needs none of them
    from orchestrator.backends.retention import Pruned, Pruning
    from orchestrator.jobs.base import Plan
    from orchestrator.specs.resolved import Flag
    from orchestrator.sweep import Sweeps

LAST = "@last"


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
        from orchestrator.jobs.resolve import make_plan, resolve_spec
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

    def prepare(self, plan: Plan, *, new: bool = False) -> Submission:
        """Return all that `submit` would send of a plan.

        Args:
            plan: what to do.
            new: under a name that is free, whatever runs exist.
        """
        backend = load_backend(plan.spec.backend, self._home)
        new = new or _store_is_gone(backend, plan)
        return backend.prepare(plan, run=self._free_name(backend, plan) if new else plan.name)

    def prepare_file(self, file: Path) -> Submission:
        """Return all that `submit` would send of a job file of another program, such as `az ml`.

        Raises:
            UsageError: no backend takes it.
            SpecError: all that is wrong with it, with its line.
        """
        chosen = self._backend or reader_of(file, self._home)
        return require(load_backend(chosen, self._home), ReadsJobFiles).prepare_file(file)

    def submit(self, plan: Plan | Submission, *, new: bool = False) -> Run:
        """Start a plan, or what `prepare` returned for it; or return the run of the same hash.

        A preparation whose token store was deleted since is started again.

        Args:
            plan: what to do, or all that is sent for it.
            new: start another run whatever runs exist.

        Raises:
            ConflictError: a run of the same hash did not complete: resume it, or start a new one.
        """
        submission = plan if isinstance(plan, Submission) else self.prepare(plan, new=new)
        backend = load_backend(submission.backend, self._home)
        if submission.plan is not None and not (new or _store_is_gone(backend, submission.plan)):
            earlier = self._earlier(backend, submission.plan)
            if earlier is not None:
                return Run(backend, backend.handle(earlier.name))
        remember(backend.name, self._home)  # first: a submission that is cut off may have made a run
        return Run(backend, backend.submit(submission), created=True)

    def _earlier(self, backend: Backend, plan: Plan) -> RunStatus | None:
        """The newest run of a plan's hash.

        Raises:
            ConflictError: it ended before it completed.
        """
        name = _same_hash(backend, plan)
        earlier = backend.describe(name) if name else None
        if earlier is None or not earlier.state.resumable:
            return earlier
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

    def runs(self, *, states: Collection[RunState] = (), limit: int | None = None) -> list[RunStatus]:
        """Runs, the newest first.

        Args:
            states: only those in one of these states; empty: in any.
            limit: at most so many.
        """
        backends = self._backends()
        if self._backend is not None and isinstance(backends[0], Discovers):  # slow: only where it is asked for by name
            backends[0].discover()
        found = merge(*(backend.list() for backend in backends), key=lambda status: -status.created)
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
        require(load_backend(self._backend or "local", self._home), Registers).delete_endpoint(endpoint)

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
        newest = [status for backend in self._backends() for status in islice(backend.list(), 1)]
        if not newest:
            raise NotFoundError("there are no runs yet", fix="orchestrator submit pretrain")
        return max(newest, key=lambda status: status.created).name

    def _free_name(self, backend: Backend, plan: Plan) -> str:
        taken, number = set(backend.names()), 2
        if plan.name not in taken:
            return plan.name
        while f"{plan.name}-{number}" in taken:
            number += 1
        return f"{plan.name}-{number}"


def _same_hash(backend: Backend, plan: Plan) -> str | None:
    """The newest run of a plan's hash."""
    of_hash = re.compile(rf".*-{plan.run_hash}(-\d+)?")
    return next((name for name in backend.names() if of_hash.fullmatch(name)), None)


def _store_is_gone(backend: Backend, plan: Plan) -> bool:
    """Whether a plan's last run was a preparation on this machine whose token store was deleted since; offline."""
    name = _same_hash(backend, plan)
    if name is None or backend.folder(name) is None:
        return False
    status = backend.describe(name)
    made = status.store if status.state == RunState.COMPLETED else None
    return made is not None and not Path(made, MANIFEST_FILE).is_file()
