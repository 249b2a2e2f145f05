"""Content of sweep.json and state.json in a sweep's folder."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from orchestrator.runs.supervised_folder import SupervisedState
from orchestrator.specs.sweep_spec import SweepSpec
from train_jobs.config.fields import Config


class EarlierSweep(Config):
    """An earlier sweep whose trials a sweep starts with (`warm_start`)."""

    sweep: str
    """Name of the earlier sweep."""
    used: int
    """Number of its trials that are points of the new space."""
    outside: int
    """Number of its trials that are not."""

    @property
    def text(self) -> str:
        """`24 trials of search-1a2b3c4d (3 others are outside this space)`."""
        others = f"{self.outside} other{'s are' if self.outside > 1 else ' is'}"
        return f"{self.used} trials of {self.sweep}" + (f" ({others} outside this space)" if self.outside else "")


class SweepRecord(Config):
    """A submitted sweep: sweep.json."""

    name: str
    """The sweep's name."""
    created: float
    """Submission, seconds since the epoch."""
    kind: str
    """Kind of its trials' job."""
    sweep: dict[str, Any]
    """The sweep as it was written, without its trial."""
    trial: dict[str, Any]
    """The resolved spec of the trial, before the settings of the space are applied."""
    compute: dict[str, Any]
    """The trial's compute, with every auto resolved."""
    changes: dict[str, Any]
    """Settings of the trial that differ from its presets and the defaults, and where they were written."""
    homes: list[str] = Field(default=[])
    """Paths of the home folder, as named and without symbolic links; empty: not recorded."""
    snapshot: str
    """SHA-256 of the code that all trials run."""
    data: str | None = None
    """SHA-256 of the data that all trials read, unless the space varies it. None: not recorded."""
    environment: dict[str, str] = Field(default={})
    """Version of Python and of each package that affects results; empty: not recorded."""
    warnings: list[str]
    """Warnings about the trial."""
    keep: int | None = None
    """Number of trials that keep their checkpoints and models; None: all."""
    earlier: list[EarlierSweep] = Field(default=[])
    """Earlier sweeps of its warm start; their trials are in history.json."""

    @property
    def spec(self) -> SweepSpec:
        """The validated sweep."""
        return SweepSpec.model_validate({**self.sweep, "trial": {}})


class SweepState(SupervisedState):
    """The state of a sweep: state.json."""

    ended: float | None = None
    """End, seconds since the epoch."""
    mlflow_run_id: str | None = None
    """MLflow run that is the parent of its trials' runs."""
    interrupted: list[str] = Field(default=[])
    """Runs that were cancelled with the sweep: they are resumed with it. A run that its user cancelled is not."""
