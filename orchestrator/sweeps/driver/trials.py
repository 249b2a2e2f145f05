"""The runs of a sweep's trials: what each is called, what its plan is, and on which GPUs it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.jobs.base import Plan
from orchestrator.jobs.registry import job_kind
from orchestrator.jobs.resolve import make_plan
from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.job import JobSpec
from orchestrator.specs.resolved import Change, Resolved
from orchestrator.specs.settings import seed_setting
from orchestrator.specs.site import spec_model
from orchestrator.specs.sweep_spec import Settings, as_tree
from orchestrator.support.errors import ConflictError
from train_jobs.artifacts.layers import Layer, build, merge

if TYPE_CHECKING:
    from orchestrator.sweeps.design.sweep_record import SweepRecord

GPUS = "CUDA_VISIBLE_DEVICES"
CHOOSE_DATA = ("data", "task", "per_task", "input")  # first parts of settings that say what a job reads


def run_names(sweep: str, trial: int, replicates: int) -> list[str]:
    """The runs of a trial: SWEEP-t0007, of a replicated one SWEEP-t0007-r0, -r1, ..."""
    name = f"{sweep}-t{trial:04d}"
    return [name] if replicates == 1 else [f"{name}-r{number}" for number in range(replicates)]


class TrialPlanner:
    """Plans of trials, all of one code and one environment.

    Args:
        record: what was asked for.
        home: the home folder, for the cache of content hashes.
        tags: of every run.

    Raises:
        ConflictError: the code, the data or the environment is no longer that of the trials before.
    """

    def __init__(self, record: SweepRecord, home: Path, tags: Mapping[str, str]) -> None:
        self._record, self._home, self._tags = record, home, tags
        self._model: type[JobSpec] = spec_model(job_kind(record.kind).spec, record.trial)
        self._base = build(self._model, merge([Layer("sweep.json", record.trial)]))
        self.first = make_plan(self._resolved(self._base, {}), home=home)
        if self.first.snapshot.digest != record.snapshot:
            raise self._changed("the code is", record.snapshot[:16], self.first.snapshot.digest[:16])
        self._check_data(self.first)
        before, now = record.environment, self.first.environment
        if before and before != now:
            changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
            need, have = (" ".join(f"{name} {one.get(name)}" for name in changed) for one in (before, now))
            raise self._changed("packages are", need, have)

    def plan(self, trial: int, settings: Settings, seed: int | None) -> Plan:
        """The plan of a run.

        Raises:
            SpecError, DataError: the job does not take these settings.
        ConflictError: the data are no longer those of the trials before.
        """
        more = (seed_setting(self._base, seed) or {}) if seed is not None else {}
        tags = {**self._base.tags, **self._tags, "orchestrator.trial": str(trial)}
        layers = [
            Layer("sweep.json", self._base.model_dump(mode="json")),
            Layer("space", {**as_tree({**settings, **more}), "tags": tags}),
        ]
        plan = make_plan(
            self._resolved(build(self._model, merge(layers)), {**settings, **more}), home=self._home, like=self.first
        )
        if not any(path.split(".")[0] in CHOOSE_DATA for path in settings):
            self._check_data(plan)
        return plan

    def _check_data(self, plan: Plan) -> None:
        need, have = self._record.data, plan.data.sha256
        if need is not None and need != have:
            raise self._changed("the data are", need[:16], have[:16])

    def _changed(self, what: str, need: str, have: str) -> ConflictError:
        name = self._record.name
        return ConflictError(
            f"{what} not what {'it was' if what.endswith('is') else 'they were'} when sweep {name} began",
            facts={"need": need, "have": have},
            fix=f"bring back what changed, then orchestrator resume {name}; or submit the sweep anew: what trials of"
            f" {name} came to would not compare",
        )

    def _resolved(self, spec: JobSpec, settings: Settings) -> Resolved:
        changes: dict[str, Any] = {**self._record.changes}
        changes |= {path: {"value": value, "from": "space"} for path, value in settings.items()}
        return Resolved(
            spec=spec,
            compute=ResolvedCompute.model_validate(self._record.compute),
            origins={},
            changes={path: Change.model_validate(change) for path, change in changes.items()},
            warnings=(),
        )


def place(used: Sequence[Sequence[str]], gpus: Sequence[str], *, per_gpu: int, need: int) -> list[str] | None:
    """GPUs for a run, the least used first; None: there are not so many free.

    Args:
        used: what every run that goes on has.
        gpus: those that there are.
        per_gpu: runs that may share one.
        need: GPUs of a run.
    """
    load = {gpu: sum(gpu in mine for mine in used) for gpu in gpus}
    free = sorted((gpu for gpu in gpus if load[gpu] < per_gpu), key=lambda gpu: load[gpu])
    return free[:need] if len(free) >= need else None
