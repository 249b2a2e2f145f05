"""A sweep as the service that drives it reports it: see `SweepsNatively` in `capabilities.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from orchestrator.runs.status import RunState, RunStatus
    from orchestrator.specs.settings import Settings


class NativeTrial(NamedTuple):
    """One trial of a sweep that a service drives."""

    number: int
    """From 0, in the order of their start."""
    settings: Settings
    """Settings that the service chose."""
    status: RunStatus
    """Of its run."""
    reports: Sequence[float]
    """Values of the objective, in the order of the reports."""


class NativeSweep(NamedTuple):
    """A sweep as the service that drives it reports it."""

    state: RunState
    """Of the sweep."""
    reason: str | None
    """Error that the service gives for its end."""
    ended: float | None
    """Seconds since the epoch; None while it runs."""
    cancelled: bool
    """Whether a user cancelled it."""
    best: int | None
    """Number of the trial that the service calls the best."""
    mlflow_run_id: str | None
    """Parent of the trials' runs in MLflow."""
    trials: Sequence[NativeTrial]
    """Trials that have begun and were not known before, by number."""
