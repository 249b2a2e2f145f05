"""How a sweep stands: its trials in one table, whoever drives it, and the best of them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from orchestrator.runs.status import RunState
from orchestrator.specs.sweep_spec import trials
from orchestrator.sweeps.design.sweep_record import EarlierSweep, SweepRecord, SweepState
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.policy.termination import best
from train_jobs.config.base import Config

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

UNFINISHED = (RunState.RUNNING, RunState.CANCELLED)  # states of trials that have not ended, or not for good


class TrialRow(Config):
    """A trial."""

    trial: int
    """Its number, from 0 on."""
    state: str
    """running; cancelled with the sweep, to go on with it; or completed, stopped by the policy, timed out, ended early
    with the sweep, failed."""
    settings: dict[str, Any]
    """Dotted setting -> value."""
    runs: list[str]
    """Names of its runs, one for each seed."""
    last: float | None = None
    """Its last report."""
    best: float | None = None
    """The best of its reports."""
    outcome: float | None = None
    """What it came to."""
    reports: int = 0
    """How often it has reported the metric."""
    values: list[float] = Field(default=[])
    """Its reports, those left out that are no numbers."""
    started: float = 0.0
    """Seconds since the epoch when it began."""
    seconds: float = 0.0
    """Since it began, until it ended."""
    cost: float = 0.0
    """USD, where machines have a price."""
    why: str | None = None
    """The decision that stopped it, or what it failed of."""
    incumbent: bool = False
    """Whether it is the best of those that have ended."""


class SweepStatus(Config):
    """A sweep."""

    name: str
    """Its name."""
    state: RunState
    """Where it stands."""
    reason: str | None = None
    """Why it ended so."""
    metric: str
    """What trials are compared by."""
    goal: str
    """minimize or maximize."""
    trials: int
    """Trials that it is to have."""
    ended: int
    """Of these, those that have ended."""
    created: float
    """Seconds since the epoch when it was submitted."""
    folder: str
    """Where it lies."""
    mlflow_run_id: str | None = None
    """The parent of its trials in MLflow."""
    earlier: list[EarlierSweep] = Field(default=[])
    """Sweeps whose trials it began with."""
    keep: int | None = None
    """How many trials keep their checkpoints and models; None: all."""
    rows: list[TrialRow] = Field(default=[])
    """Trials that have begun, in the order of their numbers."""

    @property
    def best(self) -> TrialRow | None:
        """The incumbent."""
        return next((row for row in self.rows if row.incumbent), None)

    def as_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return self.model_dump(mode="json")


def sweep_status(folder: SweepFolder, study: Study | None = None) -> SweepStatus:
    """How it stands now.

    Args:
        folder: of the sweep.
        study: its study, if it is read again and again.
    """
    record, state = folder.record(), folder.state()
    maximize = record.spec.objective.goal == "maximize"
    found = (study or folder.study()).get_trials(deepcopy=False)
    rows = [_row(trial, state, maximize=maximize) for trial in found]
    return standing(folder, record, state, rows)


def standing(
    folder: SweepFolder, record: SweepRecord, state: SweepState, rows: list[TrialRow], incumbent: int | None = None
) -> SweepStatus:
    """How a sweep with these trials stands.

    Args:
        folder, record, state: of the sweep.
        rows: its trials, none of which is marked as the best.
        incumbent: the number of the best; None: the one that ended with the best outcome.
    """
    spec = record.spec
    values = {row.trial: row.outcome for row in rows if row.outcome is not None}
    if values and incumbent not in values:
        top = best(list(values.values()), maximize=spec.objective.goal == "maximize")
        incumbent = next(number for number, value in values.items() if value == top)
    rows = [row.model_copy(update={"incumbent": True}) if row.trial == incumbent else row for row in rows]
    return SweepStatus(
        name=record.name,
        state=state.state,
        reason=state.reason,
        metric=spec.objective.metric,
        goal=spec.objective.goal,
        trials=trials(spec),
        ended=sum(row.state not in UNFINISHED for row in rows),
        created=record.created,
        folder=str(folder.path),
        mlflow_run_id=state.mlflow_run_id,
        earlier=record.earlier,
        keep=record.keep,
        rows=rows,
    )


def row_of(reports: Sequence[float], *, maximize: bool, **known: Any) -> TrialRow:
    """Return the row of a trial.

    Args:
        reports: all of its reports.
        maximize: whether more is better.
        known: the other fields of the row.
    """
    values = [value for value in reports if math.isfinite(value)]
    return TrialRow(
        last=reports[-1] if reports and math.isfinite(reports[-1]) else None,
        best=best(values, maximize=maximize) if values else None,
        reports=len(reports),
        values=values,
        **known,
    )


def _row(trial: FrozenTrial, sweep: SweepState, *, maximize: bool) -> TrialRow:
    told = trial.user_attrs
    end = told.get("end", {}) if trial.state.is_finished() else {}
    left = sweep.state == RunState.CANCELLED  # its trials ended with it, and go on with it
    until = end.get("ended") or (sweep.ended if left else None) or time.time()
    return row_of(
        list(trial.intermediate_values.values()),
        maximize=maximize,
        trial=trial.number,
        state=end.get("state", (sweep.state if left else RunState.RUNNING).value),
        settings=told["settings"],
        runs=told["runs"],
        outcome=end.get("outcome"),
        started=told["started"],
        seconds=max(until - told["started"], 0.0),
        cost=end.get("cost") or 0.0,
        why=end.get("why"),
    )
