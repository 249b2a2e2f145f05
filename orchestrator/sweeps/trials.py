"""The runs of a sweep's trials: what each is called, what its plan is, and on which GPUs it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConflictError
from orchestrator.plan import Plan, make_plan
from orchestrator.specs import Change, JobSpec, Resolved, ResolvedCompute
from orchestrator.specs.job import KINDS
from orchestrator.specs.sweep import Settings, as_tree
from orchestrator.sweeps.settings import seed_setting
from train_jobs.config.load import Layer, build, merge

if TYPE_CHECKING:
    from orchestrator.sweeps.folder import SweepRecord

GPUS = "CUDA_VISIBLE_DEVICES"


def run_names(sweep: str, trial: int, replicates: int) -> list[str]:
    """The runs of a trial: SWEEP-t0007, of a replicated one SWEEP-t0007-r0, -r1, ..."""
    name = f"{sweep}-t{trial:04d}"
    return [name] if replicates == 1 else [f"{name}-r{number}" for number in range(replicates)]


class Planner:
    """Plans of trials, all of one code and one environment.

    Args:
        record: what was asked for.
        home: the home folder, for the cache of content hashes.
        tags: of every run.

    Raises:
        ConflictError: the code is no longer that of the trials before.
    """

    def __init__(self, record: SweepRecord, home: Path, tags: Mapping[str, str]) -> None:
        self._record, self._home, self._tags = record, home, tags
        self._model: type[JobSpec] = KINDS[record.kind].spec
        self._base = build(self._model, merge([Layer("sweep.json", record.trial)]))
        self.first = make_plan(self._resolved(self._base, {}), home=home)
        if self.first.snapshot.digest != record.snapshot:
            raise ConflictError(
                f"the code is not what it was when sweep {record.name} began",
                facts={"need": record.snapshot[:16], "have": self.first.snapshot.digest[:16]},
                fix=f"bring it back, or submit the sweep anew: what trials of {record.name} came to would not compare",
            )

    def plan(self, trial: int, settings: Settings, seed: int | None) -> Plan:
        """The plan of a run.

        Raises:
            SpecError, DataError: the job does not take these settings.
        """
        more = (seed_setting(self._base, seed) or {}) if seed is not None else {}
        tags = {**self._base.tags, **self._tags, "orchestrator.trial": str(trial)}
        layers = [
            Layer("sweep.json", self._base.model_dump(mode="json")),
            Layer("space", {**as_tree({**settings, **more}), "tags": tags}),
        ]
        return make_plan(
            self._resolved(build(self._model, merge(layers)), {**settings, **more}), home=self._home, like=self.first
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
