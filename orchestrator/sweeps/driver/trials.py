"""The runs of a sweep's trials: their names, plans and GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.jobs.base import Plan
from orchestrator.jobs.registry import job_kind
from orchestrator.jobs.resolve import make_plan
from orchestrator.runs.status import TRIAL_TAG
from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.job import JobSpec
from orchestrator.specs.resolved import Change, Resolved
from orchestrator.specs.settings import Settings, seed_setting
from orchestrator.specs.site import spec_model
from orchestrator.specs.sweep_spec import as_tree
from orchestrator.support.errors import ConflictError
from orchestrator.sweeps.design.sweep_record import SweepRecord
from train_jobs.artifacts.layers import ConfigLayer, build, merge
from train_jobs.artifacts.unreadable import unreadable

GPUS = "CUDA_VISIBLE_DEVICES"
DATA_SECTIONS = ("data", "task", "per_task", "input")  # sections whose settings select what a job reads
PATH_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


def run_names(sweep: str, trial: int, replicates: int) -> list[str]:
    """Return the names of a trial's runs: SWEEP-t0007, with several seeds SWEEP-t0007-r0, -r1, ..."""
    name = f"{sweep}-t{trial:04d}"
    return [name] if replicates == 1 else [f"{name}-r{number}" for number in range(replicates)]


class TrialPlanner:
    """The planner of a sweep's trials, which all have the same code, data and environment.

    Trials of different code are not comparable. A driver that is restarted after an edit must therefore refuse to
    continue, and not mix results.

    Args:
        record: the sweep.
        home: the home folder, for the cache of content hashes.
        tags: tags of every run.

    Raises:
        ConflictError: the code, the data or the environment has changed since the sweep started.
    """

    def __init__(self, record: SweepRecord, home: Path, tags: Mapping[str, str]) -> None:
        self._record, self._home, self._tags = record, home, tags
        self._model: type[JobSpec] = spec_model(job_kind(record.kind).spec, record.trial)
        self._base = build(self._model, merge([ConfigLayer("sweep.json", record.trial)]))
        self.first = make_plan(self._resolved(self._base, {}), home=home)
        if self.first.snapshot.digest != record.snapshot:
            raise self._changed("the code", record.snapshot[:16], self.first.snapshot.digest[:16])
        self._check_data(self.first)
        before, now = record.environment, self.first.environment
        if before and before != now:
            changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
            need, have = (" ".join(f"{name} {one.get(name)}" for name in changed) for one in (before, now))
            raise self._changed("the environment", need, have)

    def plan(self, trial: int, settings: Settings, seed: int | None) -> Plan:
        """Return the plan of one run of a trial.

        Args:
            trial: number of the trial.
            settings: its settings, dotted path -> value.
            seed: seed of the run; None: the trial's own.

        Raises:
            SpecError, DataError: the settings are invalid for the job, or a path among them cannot be read.
            ConflictError: the data has changed since the sweep started.
        """
        seeded = {**settings, **((seed_setting(self._base, seed) or {}) if seed is not None else {})}
        tags = {**self._base.tags, **self._tags, TRIAL_TAG: str(trial)}
        layers = [
            ConfigLayer("sweep.json", self._base.model_dump(mode="json")),
            ConfigLayer("space", {**as_tree(seeded), "tags": tags}),
        ]
        resolved = self._resolved(build(self._model, merge(layers)), seeded)
        try:
            plan = make_plan(resolved, home=self._home, reuse=self.first)
        except PATH_ERRORS as problem:  # others, such as a full disk, concern every trial
            raise unreadable(Path(problem.filename or ""), problem) from None
        # A space that varies the data has no single hash to compare with.
        if not any(path.split(".")[0] in DATA_SECTIONS for path in settings):
            self._check_data(plan)
        return plan

    def _check_data(self, plan: Plan) -> None:
        need, have = self._record.data, plan.data.sha256
        if need is not None and need != have:
            raise self._changed("the data", need[:16], have[:16])

    def _changed(self, what: str, need: str, have: str) -> ConflictError:
        name = self._record.name
        return ConflictError(
            f"{what} changed since sweep {name} started",
            facts={"need": need, "have": have},
            fix=f"restore {what} and run: orchestrator resume {name}; or submit a new sweep, whose results are not"
            f" comparable with those of {name}",
        )

    def _resolved(self, spec: JobSpec, settings: Settings) -> Resolved:
        drawn = {path: {"value": value, "from": "space"} for path, value in settings.items()}
        changes = {path: Change.model_validate(change) for path, change in {**self._record.changes, **drawn}.items()}
        compute = ResolvedCompute.model_validate(self._record.compute)
        return Resolved(spec=spec, compute=compute, origins={}, changes=changes, warnings=())


def pick_gpus(used: Sequence[Sequence[str]], gpus: Sequence[str], *, per_gpu: int, need: int) -> list[str] | None:
    """Return GPUs for a run, the least used first; None: not enough are free.

    Args:
        used: GPUs of each running run.
        gpus: all GPUs.
        per_gpu: maximum number of runs that share a GPU.
        need: number of GPUs of a run.
    """
    load = {gpu: sum(gpu in taken for taken in used) for gpu in gpus}
    free = sorted((gpu for gpu in gpus if load[gpu] < per_gpu), key=lambda gpu: load[gpu])
    return free[:need] if len(free) >= need else None
