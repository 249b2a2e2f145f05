"""Sweep record."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from orchestrator.runs.status import RunState
from orchestrator.specs.sweep_spec import SweepSpec
from train_jobs.config.base import Config


class EarlierSweep(Config):
    """A sweep that another begins with."""

    sweep: str
    """Its name."""
    used: int
    """How many of its trials the other was told of."""
    outside: int
    """How many are no points of the other's space."""

    @property
    def text(self) -> str:
        """`24 trials of search-1a2b3c4d (3 others lie outside of this space)`."""
        lie = f"{self.outside} other{'s lie' if self.outside > 1 else ' lies'}"
        return f"{self.used} trials of {self.sweep}" + (f" ({lie} outside of this space)" if self.outside else "")


class SweepRecord(Config):
    """sweep.json."""

    name: str
    """The sweep's name."""
    created: float
    """Submission, seconds since the epoch."""
    kind: str
    """Which job its trials are."""
    sweep: dict[str, Any]
    """The sweep as it was written, without its trial."""
    trial: dict[str, Any]
    """The resolved spec of the trial, without a setting of the space."""
    compute: dict[str, Any]
    """What the trial runs on, nothing left on auto."""
    changes: dict[str, Any]
    """What of the trial differs from its presets and the defaults, and where it was written."""
    snapshot: str
    """SHA-256 of the code that all trials run."""
    data: str | None = None
    """SHA-256 of what all trials read, as far as the space does not vary it. None: nobody took note of it."""
    environment: dict[str, str] = Field(default={})
    """Version of Python and of each package that shapes a result; empty likewise."""
    warnings: list[str]
    """Of the trial."""
    keep: int | None = None
    """How many trials keep their checkpoints and models; None: all."""
    earlier: list[EarlierSweep] = Field(default=[])
    """Sweeps whose trials it begins with; the trials are in history.json."""

    @property
    def spec(self) -> SweepSpec:
        """What the user wants."""
        return SweepSpec.model_validate({**self.sweep, "trial": {}})


class SweepState(Config):
    """state.json."""

    state: RunState
    """Where the sweep stands."""
    reason: str | None = None
    """Why it ended so."""
    pid: int | None = None
    """The driver's process id; to be trusted only while the lock is held."""
    ended: float | None = None
    """When it ended, seconds since the epoch."""
    mlflow_run_id: str | None = None
    """The parent of its trials in MLflow."""
    interrupted: list[str] = Field(default=[])
    """Runs that were cancelled with the sweep, and not by their user: it takes them up again when it goes on."""
