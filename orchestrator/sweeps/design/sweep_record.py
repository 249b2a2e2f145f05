"""Files of a sweep's folder that describe it: sweep.json and state.json."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from orchestrator.runs.supervised_folder import SupervisedState
from orchestrator.specs.sweep_spec import SweepSpec
from train_jobs.config.fields import Config


class EarlierSweep(Config):
    """A sweep whose trials another sweep starts with."""

    sweep: str
    """Its name."""
    used: int
    """Trials that the other sweep uses."""
    outside: int
    """Trials that are not points of the other sweep's space."""

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
    """Kind of its trials' job."""
    sweep: dict[str, Any]
    """The sweep as it was written, without its trial."""
    trial: dict[str, Any]
    """The resolved spec of the trial, without a setting of the space."""
    compute: dict[str, Any]
    """The trial's compute, with every auto resolved."""
    changes: dict[str, Any]
    """Settings of the trial that differ from its presets and the defaults, and where they were written."""
    snapshot: str
    """SHA-256 of the code that all trials run."""
    data: str | None = None
    """SHA-256 of the data that all trials read, as far as the space does not vary it. None: not recorded."""
    environment: dict[str, str] = Field(default={})
    """Version of Python and of each package that changes a result; empty: not recorded."""
    warnings: list[str]
    """Warnings about the trial."""
    keep: int | None = None
    """Number of trials that keep their checkpoints and models; None: all."""
    earlier: list[EarlierSweep] = Field(default=[])
    """Sweeps whose trials it starts with; the trials are in history.json."""

    @property
    def spec(self) -> SweepSpec:
        """The validated sweep."""
        return SweepSpec.model_validate({**self.sweep, "trial": {}})


class SweepState(SupervisedState):
    """state.json of a sweep."""

    ended: float | None = None
    """End, seconds since the epoch."""
    mlflow_run_id: str | None = None
    """The parent of its trials in MLflow."""
    interrupted: list[str] = Field(default=[])
    """Runs that were cancelled with the sweep, not by their user: they are resumed with it."""
