"""Trials of earlier sweeps that a sweep begins with: what tpe and gp are told of them, as of trials that have ended.

What counts of an earlier trial is its job: the value that each setting of the new space had in it, varied there or not.
One whose value the new space cannot draw says nothing of it, and is left out and counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.specs.space import Space
from orchestrator.specs.sweep_spec import SweepSpec, as_tree
from orchestrator.support.errors import SpecError
from orchestrator.sweeps.design.points import Latents, latents_of
from orchestrator.sweeps.design.sampling import distributions
from orchestrator.sweeps.design.sweep_record import EarlierSweep, SweepRecord
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.driver.sweep_status import TrialRow
from train_jobs.artifacts.layers import Layer, merge
from train_jobs.config.base import Config
from train_jobs.config.own import NAMED

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


class EarlierTrial(Config):
    """A trial of an earlier sweep, as a point of the new one."""

    sweep: str
    """Whose it was."""
    trial: int
    """Its number there."""
    latents: Latents
    """Where it lies in the new space."""
    outcome: float
    """What it came to."""
    reports: int
    """How often it had reported."""
    stopped: bool
    """Whether a policy stopped it."""


class WarmStart(Config):
    """All that a sweep begins with."""

    earlier: list[EarlierSweep] = []  # noqa: RUF012 - pydantic copies defaults
    """The sweeps, as they were asked for."""
    trials: list[EarlierTrial] = []  # noqa: RUF012
    """Their trials."""

    @property
    def digest(self) -> str:
        """SHA-256 of what they say."""
        told = [past.model_dump(mode="json") for past in self.trials]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def read_history(spec: SweepSpec, kind: str, sweeps: Iterable[tuple[SweepRecord, Sequence[TrialRow]]]) -> WarmStart:
    """What earlier sweeps have to tell a new one, whoever drove them.

    Args:
        spec: the new one.
        kind: of its job.
        sweeps: the earlier ones, each with its trials.

    Raises:
        SpecError: one looked for something else, or none of their trials is a point of the space.
    """
    earlier: list[EarlierSweep] = []
    trials: list[EarlierTrial] = []
    for record, rows in sweeps:
        _require_the_same(spec, kind, record)
        told = [row for row in rows if row.outcome is not None]
        used = [past for row in told if (past := _past(spec.space, record, row)) is not None]
        earlier.append(EarlierSweep(sweep=record.name, used=len(used), outside=len(told) - len(used)))
        trials += used
    if earlier and not trials:
        raise SpecError(
            "warm_start: no trial of the earlier sweeps is a point of this space",
            facts={one.sweep: f"{one.outside} outside of it" for one in earlier},
            fix="--set warm_start=[]",
        )
    return WarmStart(earlier=earlier, trials=trials)


def as_trials(folder: SweepFolder, space: Space) -> list[FrozenTrial]:
    """What a sweep began with, as an Optuna study has trials that have ended; those that were stopped as such."""
    if not folder.history.exists():
        return []
    from optuna.trial import TrialState, create_trial

    history = WarmStart.model_validate_json(folder.history.read_text())
    return [
        create_trial(
            state=TrialState.PRUNED if past.stopped else TrialState.COMPLETE,
            value=past.outcome,
            params=past.latents,
            distributions=distributions(space, past.latents),
            intermediate_values={past.reports: past.outcome} if past.reports else {},
        )
        for past in history.trials
    ]


def _require_the_same(spec: SweepSpec, kind: str, record: SweepRecord) -> None:
    one, other = record.spec.objective, spec.objective
    was, wanted = (record.kind, one.goal, one.metric), (kind, other.goal, other.metric)
    if was != wanted:
        raise SpecError(
            f"warm_start: sweep {record.name} looked for something else",
            facts={"need": f"{kind}, {other.goal} {other.metric}", "have": f"{record.kind}, {one.goal} {one.metric}"},
            fix="--set warm_start=[] , or sweeps with the same job, metric and goal",
        )


def _past(space: Space, record: SweepRecord, row: TrialRow) -> EarlierTrial | None:
    """An earlier trial as a point of a space; None: it is none."""
    assert row.outcome is not None, "it came to nothing"
    job = merge([Layer("trial", record.trial), Layer("space", as_tree(row.settings))]).tree
    found = latents_of(space, lambda path: _setting(job, path))
    if found is None:
        return None
    return EarlierTrial(
        sweep=record.name,
        trial=row.trial,
        latents=found,
        outcome=row.outcome,
        reports=row.reports,
        stopped=row.state == "stopped",
    )


def _setting(job: Mapping[str, Any], path: str) -> Any:
    """The value of a dotted setting; of a section that its name stands for, the name. None: there is none."""
    found: Any = job
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found.get("name") if path in NAMED and isinstance(found, Mapping) else found
