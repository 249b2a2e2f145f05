"""Warm start: trials of earlier sweeps, which tpe and gp treat as finished trials of the new one.

For each setting of the new space, an earlier trial has the value of its job, whether the earlier sweep varied it or
not. Trials with a value that the new space cannot draw are skipped and counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.specs.space import Space
from orchestrator.specs.sweep_spec import SweepSpec, as_tree
from orchestrator.support.errors import SpecError
from orchestrator.sweeps.design.points import Latents, distributions, latents_of
from orchestrator.sweeps.design.sweep_record import EarlierSweep, SweepRecord
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.driver.sweep_status import TrialRow
from train_jobs.artifacts.layers import ConfigLayer, merge
from train_jobs.config.fields import NAMED, Config

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


class EarlierTrial(Config):
    """A trial of an earlier sweep, as a point of the new one."""

    sweep: str
    """The earlier sweep."""
    trial: int
    """Its number there."""
    latents: Latents
    """Its point in the new space."""
    outcome: float
    """Its result."""
    reports: int
    """Number of its reports."""
    stopped: bool
    """Whether a policy stopped it."""


class WarmStart(Config):
    """Trials of earlier sweeps that a sweep starts with: history.json."""

    earlier: list[EarlierSweep] = []  # noqa: RUF012 - pydantic copies defaults
    """The earlier sweeps, in the order of the spec."""
    trials: list[EarlierTrial] = []  # noqa: RUF012
    """Their trials that are points of the new space."""

    @property
    def digest(self) -> str:
        """SHA-256 of the trials; part of the sweep's hash, because other history leads to other points."""
        trials = [past.model_dump(mode="json") for past in self.trials]
        return hashlib.sha256(json.dumps(trials, sort_keys=True).encode()).hexdigest()


def read_history(spec: SweepSpec, kind: str, sweeps: Iterable[tuple[SweepRecord, Sequence[TrialRow]]]) -> WarmStart:
    """Return the trials of earlier sweeps as points of a new one.

    Args:
        spec: the new sweep.
        kind: kind of its job.
        sweeps: the earlier sweeps, each with its trials.

    Raises:
        SpecError: a sweep has another kind, metric or goal, or no trial is a point of the space.
    """
    earlier: list[EarlierSweep] = []
    trials: list[EarlierTrial] = []
    objective = spec.objective
    for record, rows in sweeps:
        had = record.spec.objective
        if (record.kind, had.goal, had.metric) != (kind, objective.goal, objective.metric):
            raise SpecError(
                f"warm_start: sweep {record.name} has another job, metric or goal",
                facts={
                    "need": f"{kind}, {objective.goal} {objective.metric}",
                    "have": f"{record.kind}, {had.goal} {had.metric}",
                },
                fix="--set warm_start=[], or use sweeps with the same job, metric and goal",
            )
        finished = [row for row in rows if row.outcome is not None]
        used = [past for row in finished if (past := _as_earlier_trial(spec.space, record, row)) is not None]
        earlier.append(EarlierSweep(sweep=record.name, used=len(used), outside=len(finished) - len(used)))
        trials += used
    if earlier and not trials:
        raise SpecError(
            "warm_start: no trial of the earlier sweeps is a point of this space",
            facts={one.sweep: f"{one.outside} outside the space" for one in earlier},
            fix="--set warm_start=[]",
        )
    return WarmStart(earlier=earlier, trials=trials)


def as_trials(folder: SweepFolder, space: Space) -> list[FrozenTrial]:
    """Return the trials of a sweep's warm start as finished Optuna trials, stopped ones as pruned."""
    if not folder.history.exists():
        return []
    from optuna.trial import TrialState, create_trial

    return [
        create_trial(
            state=TrialState.PRUNED if past.stopped else TrialState.COMPLETE,
            value=past.outcome,
            params=past.latents,
            distributions=distributions(space, past.latents),
            intermediate_values={past.reports: past.outcome} if past.reports else {},
        )
        for past in WarmStart.model_validate_json(folder.history.read_text()).trials
    ]


def _as_earlier_trial(space: Space, record: SweepRecord, row: TrialRow) -> EarlierTrial | None:
    """Return an earlier trial as a point of a space; None: it is not one."""
    assert row.outcome is not None, "the trial has no result"
    job = merge([ConfigLayer("trial", record.trial), ConfigLayer("space", as_tree(row.settings))]).tree
    latents = latents_of(space, lambda path: _setting(job, path))
    if latents is None:
        return None
    return EarlierTrial(
        sweep=record.name,
        trial=row.trial,
        latents=latents,
        outcome=row.outcome,
        reports=row.reports,
        stopped=row.state == "stopped",
    )


def _setting(job: Mapping[str, Any], path: str) -> Any:
    """Return the value of a dotted setting, or the name of a named section; None: not set."""
    value: Any = job
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value.get("name") if path in NAMED and isinstance(value, Mapping) else value
