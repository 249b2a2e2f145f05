"""The SDK: plan and submit jobs, and find runs again.

orchestrator = Orchestrator()
plan = orchestrator.plan(overrides={"recipe": "tiny", "train.steps": 200})
print(plan.summary())
run = orchestrator.submit(plan)
run.wait().metrics["validation_mlm_loss"]
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from heapq import merge
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.backends import load_backend, reader_of, remember, require, used_backends
from orchestrator.backends.base import Backend, Submission
from orchestrator.backends.capabilities import Discovers, ReadsJobFiles, Registers
from orchestrator.jobs.builders import Job
from orchestrator.run import Run
from orchestrator.runs.status import Handle, RunState, RunStatus, first_items
from orchestrator.support.access import open_home, shared_group
from orchestrator.support.errors import ConflictError, NotFoundError, StorageError, UsageError
from orchestrator.support.home import HOME_VARIABLE, SWEEPS, home_folder, similar_run
from train_jobs.artifacts.host import disable_telemetry

if TYPE_CHECKING:  # loaded when called: listing runs needs none of them
    from orchestrator.backends.purging import Purging
    from orchestrator.backends.retention import Pruned, Pruning
    from orchestrator.jobs.base import Plan
    from orchestrator.jobs.phases import Phases
    from orchestrator.runs.mlflow_runs import MlflowRun
    from orchestrator.specs.resolved import Flag, Resolved
    from orchestrator.sweep import Sweeps
    from train_jobs.artifacts.tracking.model_registry import Registry

LAST = "@last"


class Orchestrator:
    """Entry point of the SDK.

    Args:
        backend: backend of runs to find, and of jobs whose spec does not set one. None: the spec's, or local.
        home: folder of runs, caches and the tracking store. None: ORCHESTRATOR_HOME, or ~/.orchestrator.
        environ: environment variables; None: those of this process.

    Raises:
        StorageError: other users have access to the home folder, or it is a file; see `open_home`.
    """

    def __init__(
        self,
        backend: str | None = None,
        *,
        home: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        disable_telemetry()
        self._environ = dict(os.environ if environ is None else environ)
        self._home = home_folder(self._environ) if home is None else Path(home)
        self._environ[HOME_VARIABLE] = str(self._home)
        open_home(self._home)
        self._backend = backend

    def __repr__(self) -> str:
        backend = f"{self._backend!r}, " if self._backend is not None else ""
        return f"Orchestrator({backend}home={str(self._home)!r})"

    def plan(
        self,
        kind: str | Job = "pretrain",
        *,
        file: str | os.PathLike[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
        flags: Mapping[str, Flag] | None = None,
        sets: Iterable[str] = (),
    ) -> Plan:
        """Return the validated plan of a job; works offline.

        Args:
            kind: kind of job, or a job of `orchestrator.pretrain(...)` or a similar function.
            file: a spec file.
            overrides: dotted key -> value, overrides the file.
            flags: overrides from a command line, with the flags' names for messages.
            sets: `a.b=c` strings, override everything else.

        Raises:
            SpecError, DataError: the spec or the data has mistakes; all are listed, with file and line. Or the
                recipe continues that of an earlier phase, and no run of it is given; see `plan_phases`.
        """
        from orchestrator.jobs.phases import require_start
        from orchestrator.jobs.resolve import make_plan

        resolved = self._resolve(kind, file, overrides, flags, sets)
        require_start(resolved)
        return make_plan(resolved, home=self._home)

    def plan_phases(
        self,
        kind: str | Job = "pretrain",
        *,
        file: str | os.PathLike[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
        flags: Mapping[str, Flag] | None = None,
        sets: Iterable[str] = (),
    ) -> Plan | Phases:
        """Return the plan of a job, or of two phases if its recipe continues another one and it has no start.

        A completed run of the earlier phase is used again.

        Args:
            kind, file, overrides, flags, sets: see `plan`.

        Raises:
            SpecError, DataError: see `plan`.
        """
        from orchestrator.jobs.phases import Phases, earlier_flags, required_recipe
        from orchestrator.jobs.registry import job_kind
        from orchestrator.jobs.resolve import make_plan, resolve_spec
        from orchestrator.specs.resolved import Flag

        resolved = self._resolve(kind, file, overrides, flags, sets)
        if (recipe := required_recipe(resolved)) is None:
            return make_plan(resolved, home=self._home)
        alone = {name: value for name, value in self._environ.items() if not name.startswith("ORCHESTRATOR_")}
        first = make_plan(
            resolve_spec(resolved.spec.kind, flags=earlier_flags(resolved, recipe), environ=alone), home=self._home
        )
        backend = load_backend(first.spec.backend, self._home)
        name = _newest_of_hash(backend, first)
        if name is None or backend.describe(name).state != RunState.COMPLETED or backend.folder(name) is None:
            later = job_kind(resolved.spec.kind).plan(resolved, self._home, first)
            return Phases(first, later.model_copy(update={"name": later.spec.slug, "run_hash": ""}), None)
        start = {"phase_from": Flag(name, f"completed run of recipe {recipe}")}
        later = make_plan(self._resolve(kind, file, overrides, {**(flags or {}), **start}, sets), home=self._home)
        return Phases(first, later, name)

    def _resolve(
        self,
        kind: str | Job,
        file: str | os.PathLike[str] | None,
        overrides: Mapping[str, Any] | None,
        flags: Mapping[str, Flag] | None,
        sets: Iterable[str],
    ) -> Resolved:
        """Return the validated spec of a job; see `plan`."""
        from orchestrator.jobs.resolve import resolve_spec
        from orchestrator.specs.resolved import Flag, find_project

        named = kind if isinstance(kind, Job) else Job(kind, {})
        given = {path: Flag(value, f"orchestrator.{named.kind}()") for path, value in named.values.items()}
        given |= {path: Flag(value, "overrides") for path, value in (overrides or {}).items()}
        if self._backend is not None:
            given.setdefault("backend", Flag(self._backend, "Orchestrator(backend)"))
        model_of, outputs_of = self._start_finders()
        return resolve_spec(
            named.kind,
            file=None if file is None else Path(file),
            sets=sets,
            flags={**given, **(flags or {})},
            environ=self._environ,
            project=find_project(Path.cwd()),
            model_of=model_of,
            outputs_of=outputs_of,
        )

    def prepare(self, plan: Plan, *, new: bool = False) -> Submission:
        """Return the request that `submit` would send for a plan.

        Args:
            plan: the plan.
            new: use a free name even if a run of the same hash exists.
        """
        backend = load_backend(plan.spec.backend, self._home)
        new = new or _store_is_lost(backend, plan)
        submission = backend.prepare(plan, run=self._free_name(backend, plan) if new else plan.name)
        if (group := shared_group(self._home)) is None:
            return submission
        note = f"home: shared with group {group}, whose members can read and change this run"
        return replace(submission, notes=(*submission.notes, note))

    def prepare_file(self, file: str | os.PathLike[str]) -> Submission:
        """Return the request that `submit` would send for a job file of another program, such as `az ml`.

        Raises:
            UsageError: no backend reads it.
            SpecError: it has mistakes; all are listed, with their lines.
        """
        path = Path(file)
        chosen = self._backend or reader_of(path, self._home)
        return require(load_backend(chosen, self._home), ReadsJobFiles).prepare_file(path)

    def submit(self, plan: Plan | Submission | Job, *, new: bool = False) -> Run:
        """Start a plan or a prepared request; if a run of the same hash exists, return that run instead.

        A completed preparation is started again if its token store was deleted or is damaged. `deliver` of the returned
        run writes to the output of this plan, even if the run was submitted with another one.

        Args:
            plan: the plan, the prepared request, or a job of `orchestrator.pretrain(...)` or a similar function.
            new: start another run even if one of the same hash exists.

        Raises:
            UsageError: it is none of them, such as the name of a kind.
            ConflictError: a run of the same hash did not complete; resume it, or start a new one.
        """
        if isinstance(plan, str):
            raise UsageError(f"cannot submit {plan!r}: it is not a plan", fix=f"submit(orchestrator.plan({plan!r}))")
        if isinstance(plan, Job):
            plan = self.plan(plan)
        submission = plan if isinstance(plan, Submission) else self.prepare(plan, new=new)
        backend = load_backend(submission.backend, self._home)
        if submission.plan is not None and not (new or _store_is_lost(backend, submission.plan)):
            existing = self._existing_run(backend, submission.plan)
            if existing is not None:
                return Run(backend, backend.handle(existing.name), submitted=submission.plan)
        # Before the submission: if it is interrupted, the run it may have created must still be found by `list`.
        remember(backend.name, self._home)
        while True:
            try:
                return Run(backend, backend.submit(submission), created=True, submitted=submission.plan)
            except ConflictError:
                # another process has submitted the same plan since the search for an existing run, or for a free name
                if submission.plan is None or submission.run not in backend.names():
                    raise
                if not new and (existing := self._existing_run(backend, submission.plan)) is not None:
                    return Run(backend, backend.handle(existing.name), submitted=submission.plan)
                submission = self.prepare(submission.plan, new=True)

    def _existing_run(self, backend: Backend, plan: Plan) -> RunStatus | None:
        """Return the newest run of a plan's hash; None: there is no such run.

        Raises:
            ConflictError: that run finished without completing.
        """
        name = _newest_of_hash(backend, plan)
        existing = backend.describe(name) if name else None
        if existing is None or not existing.state.resumable:
            return existing
        total = "" if existing.steps is None else f" of {existing.steps}"
        raise ConflictError(
            f"a run of the same plan {'was ' if existing.state != RunState.FAILED else ''}{existing.state}",
            facts={
                "run": f"{existing.name}, step {existing.step or 0}{total}",
                "reason": existing.reason or "unknown",
                "or": "--new starts another run",
            },
            fix=f"orchestrator resume {existing.name}",
        )

    def runs(self, *, states: Collection[RunState] = (), limit: int | None = None) -> list[RunStatus]:
        """Return runs, newest first.

        Args:
            states: only runs in these states; empty: in any state.
            limit: maximum number of runs.
        """
        return first_items(self.iter_runs(states=states), limit)

    def iter_runs(self, *, states: Collection[RunState] = ()) -> Iterator[RunStatus]:
        """Yield runs, newest first, and read each only when it is needed.

        Args:
            states: only runs in these states; empty: in any state.
        """
        backends = [*self._backends()]
        if self._backend is not None and isinstance(backends[0], Discovers):  # slow: only for an explicit backend
            backends[0].discover()
        # Backends list lazily and newest first, so the first N runs read about N and not all of them.
        found = merge(*(backend.list() for backend in backends), key=lambda status: -status.created)
        return (status for status in found if not states or status.state in states)

    def mlflow_runs(
        self,
        uri: str,
        *,
        experiment: str | None = None,
        states: Collection[RunState] = (),
        limit: int | None = None,
    ) -> list[MlflowRun]:
        """Return the runs of an MLflow store or server, of whichever tool, with those of ours that it lacks.

        Args:
            uri: tracking URI, or the path of an SQLite file.
            experiment: only runs of this experiment, and none of ours that it lacks.
            states: only runs in these states; empty: in any state.
            limit: maximum number of runs.

        Raises:
            NotFoundError: there is no such experiment.
            ServiceError: the server is away, or refuses.
            StorageError: the file is missing, or not a store that this version of MLflow can read.
        """
        from orchestrator.runs.mlflow_runs import read_runs

        theirs = read_runs(uri, experiment=experiment)
        copied = {one.handle for one in theirs}
        ours = []
        for run in self.attach_all() if experiment is None else ():
            with suppress(NotFoundError, StorageError):  # deleted meanwhile; a damaged run: `list` shows it
                ours += [run.as_mlflow_run()] if str(run.handle) not in copied else []
        found = sorted([*theirs, *ours], key=lambda one: -one.created)
        return first_items((one for one in found if not states or one.state in states), limit)

    def pruning(
        self,
        *,
        keep_last: int | None = None,
        older_than: float | None = None,
        states: Collection[RunState] = (),
        stores: bool = False,
    ) -> Pruning:
        """Return the runs and files that `prune` would delete by these rules; delete nothing.

        Args:
            keep_last: keep the N newest finished runs.
            older_than: only runs that finished more than this many seconds ago.
            states: only runs that finished in these states; empty: in any state.
            stores: also token stores that no remaining run uses, and compiled code.
        """
        from orchestrator.backends.retention import plan_pruning

        return plan_pruning(
            self.runs(),
            self._needs(),
            {backend.name: backend for backend in self._backends()},
            self._home,
            keep_last=keep_last,
            older_than=older_than,
            states=states,
            stores=stores,
        )

    def prune(self, pruning: Pruning) -> Pruned:
        """Delete what `pruning` lists, except runs that were resumed, or that other runs need, since.

        Args:
            pruning: the result of `pruning`.

        Raises:
            StorageError: a file cannot be deleted.
        """
        from orchestrator.backends.retention import prune

        backends = {backend.name: backend for backend in self._backends()}
        return prune(pruning, self.runs(), self._needs(), backends, self._home)

    def _needs(self) -> dict[str, dict[str, Any]]:
        """Return the sweeps that may start trials on this machine, and its endpoints -> what they read."""
        from orchestrator.backends.folder.served_models import served_models

        served = served_models(self._home).items()
        found: dict[str, dict[str, Any]] = {f"endpoint {name}": {"model": model} for name, model in served}
        for sweep in self.sweeps.all() if (self._home / SWEEPS).is_dir() else ():
            with suppress(OSError, ValueError, StorageError):  # damaged, or deleted meanwhile
                if sweep.may_start_trials:
                    found[sweep.name] = sweep.folder.record().trial
        return found

    def purging(self, *names: str) -> Purging:
        """Return the traces of runs and sweeps that `purge` would delete, and those that would remain; delete nothing.

        Args:
            names: runs and sweeps, as for `attach`; a sweep includes its trials. Also the whole name of one that was
                pruned, if the home's MLflow store has it, or whose deletion was killed.

        Raises:
            ConflictError: one of them is running.
            NotFoundError: a name has no match.
        """
        from orchestrator.backends.purging import plan_purging, pruned_names, without_folder
        from orchestrator.runs.tracked_run import default_uri

        runs: dict[str, Run] = {}
        sweeps: dict[str, str] = {}
        pruned: set[str] = set()
        for name in names:
            if (sweep := self.sweeps.find(name)) is not None:
                sweeps[sweep.name] = str(sweep.folder.record().trial["tracking"]["uri"] or default_uri(self._home))
                known = {run.name: run for run in self.attach_all()}
                trials = {trial for row in sweep.status().rows for trial in row.runs}
                runs |= {trial: known[trial] for trial in sorted(trials & known.keys())}
                pruned |= without_folder(self._home, trials)
            elif name in pruned_names(self._home):
                pruned.add(name)  # before `attach`, which would take the name for the beginning of another one
            else:
                run = self.attach(name)
                runs[run.name] = run
        backends = {backend.name: backend for backend in self._backends()}
        statuses = [run.status() for run in runs.values()]
        return plan_purging(statuses, sweeps, backends, self._home, needs=self._needs(), pruned=pruned)

    def purge(self, purging: Purging) -> Purging:
        """Delete what `purging` lists, permanently, except for token stores and models that are in use by now.

        Return what was deleted, and what remains.

        Args:
            purging: the result of `purging`.

        Raises:
            ConflictError: a run was resumed since.
            ServiceError: MLflow refused.
            StorageError: a file cannot be deleted.
        """
        from orchestrator.backends.purging import purge

        return purge(purging, self._needs(), {backend.name: backend for backend in self._backends()}, self._home)

    def delete_endpoint(self, endpoint: str) -> None:
        """Delete an endpoint, and the machine behind it.

        Args:
            endpoint: its name on this client's backend; without a backend, on this machine.

        Raises:
            NotFoundError: no endpoint has that name.
        """
        require(load_backend(self._backend or "local", self._home), Registers).delete_endpoint(endpoint)

    @property
    def sweeps(self) -> Sweeps:
        """The sweeps of the home folder: plan, submit and find them."""
        from orchestrator.sweep import Sweeps

        model_of, outputs_of = self._start_finders()
        return Sweeps(self._home, environ=self._environ, model_of=model_of, outputs_of=outputs_of)

    def _start_finders(self) -> tuple[Callable[..., Path], Callable[[str], Path]]:
        """Return functions that find the folder of the model, or of the phase, that a job starts from."""

        def model_of(name: str, tracking_uri: str | None = None) -> Path:
            from orchestrator.jobs import start_points  # imports what only a plan needs

            return start_points.model_of(name, self.attach, self._registry, tracking_uri)

        def outputs_of(name: str) -> Path:
            from orchestrator.jobs import start_points

            return start_points.outputs_of(name, attach=self.attach)

        return model_of, outputs_of

    def _registry(self, tracking_uri: str | None) -> Registry:
        """Return the MLflow registry of models that jobs start from, given the tracking URI of a spec."""
        from orchestrator.runs.tracked_run import default_uri
        from orchestrator.runs.tracking_server import set_defaults
        from train_jobs.artifacts.tracking.model_registry import registry_of

        set_defaults()
        return registry_of(self._environ, tracking_uri, default_uri(self._home), self._home / "cache")

    def attach_all(self) -> list[Run]:
        """Return every run, newest first within each backend."""
        return [Run(backend, backend.handle(name)) for backend in self._backends() for name in backend.names()]

    def attach(self, run: str) -> Run:
        """Return an existing run.

        Args:
            run: handle, name, unique prefix of a name, or @last.

        Raises:
            NotFoundError: no run, or more than one, matches.
        """
        if "://" in run:
            handle = Handle.parse(run)
            backend = load_backend(handle.backend, self._home)
            backend.describe(handle.path)
            remember(backend.name, self._home)
            return Run(backend, handle)
        name = self._newest() if run == LAST else run
        for backend in self._backends():
            if backend.has(name):  # without listing other runs or importing other backends
                return Run(backend, backend.handle(name))
        # Reversed, so that the backend with the highest precedence is the last to write a shared name, and wins.
        found = {name: backend for backend in reversed([*self._backends()]) for name in backend.names()}
        name = find_name(name, found)
        return Run(found[name], found[name].handle(name))

    def _backends(self) -> Iterator[Backend]:
        """Yield the backends to search, in order of precedence for runs of the same name."""
        preferred = self._environ.get("ORCHESTRATOR_BACKEND")
        usual = [*([preferred] if preferred else []), *used_backends(self._home)]
        for name in dict.fromkeys(usual if self._backend is None else [self._backend]):
            yield load_backend(name, self._home)

    def _newest(self) -> str:
        newest = [status for backend in self._backends() for status in islice(backend.list(), 1)]
        if not newest:
            raise NotFoundError("no runs yet", fix="orchestrator submit pretrain")
        return max(newest, key=lambda status: status.created).name

    def _free_name(self, backend: Backend, plan: Plan) -> str:
        taken = set(backend.names())
        names = chain([plan.name], (f"{plan.name}-{number}" for number in count(2)))
        return next(name for name in names if name not in taken)


def _newest_of_hash(backend: Backend, plan: Plan) -> str | None:
    """Return the name of the newest run of a plan's hash; None: there is no such run."""
    of_hash = re.compile(rf".*-{plan.run_hash}(-\d+)?")  # --new appends a number: NAME-HASH-2
    return next((name for name in backend.names() if of_hash.fullmatch(name)), None)


def _store_is_lost(backend: Backend, plan: Plan) -> bool:
    """Return whether the newest run of a plan prepared a token store that no longer exists or is damaged."""
    from train_jobs.artifacts.store_manifest import read_manifest
    from train_jobs.artifacts.store_places import store_path

    name = _newest_of_hash(backend, plan)
    if name is None or backend.folder(name) is None:
        return False
    status = backend.describe(name)
    made = status.store if status.state == RunState.COMPLETED else None
    return made is not None and read_manifest(store_path(made)) is None


def find_name(run: str, known: Iterable[str]) -> str:
    """Return the full name of a run.

    Args:
        run: a unique prefix of it.
        known: names of all runs.

    Raises:
        NotFoundError: it is empty, or no run, or more than one, matches.
    """
    if not run:  # an unset variable of a script, and a prefix of every name
        raise NotFoundError("the name of the run is empty", fix="orchestrator list")
    names = list(known)
    fitting = [name for name in names if name.startswith(run)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise NotFoundError(
            f"more than one run begins with {run}",
            facts={"runs": ", ".join(fitting[:5]) + (", ..." if len(fitting) > 5 else "")},
            fix="type more of the run's name",
        )
    fix = "orchestrator list" if names else "orchestrator submit pretrain"
    raise NotFoundError(
        f"unknown run {run!r}{similar_run(run, names)}",
        fix=fix,
    )
