"""Runs: their handles, their states, and what a backend tells of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from orchestrator.runs.results import Results
from orchestrator.support.errors import UsageError
from train_jobs.config.base import Config

Counts = Literal["steps", "parts", "runs", "tasks", "rows"]


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"

    @property
    def terminal(self) -> bool:
        """True when nothing of the run is going on any more."""
        return self not in {RunState.QUEUED, RunState.STARTING, RunState.RUNNING}

    @property
    def resumable(self) -> bool:
        """True when `orchestrator resume` makes sense."""
        return self in {RunState.FAILED, RunState.CANCELLED, RunState.PREEMPTED}


@dataclass(frozen=True)
class Handle:
    """Names a run wherever it is: `local://NAME`, `azure://WORKSPACE/NAME`."""

    backend: str
    name: str
    place: str | None = None
    """Where the backend keeps it, if that is not one place: the workspace."""

    def __str__(self) -> str:
        return f"{self.backend}://{self.path}"

    @property
    def path(self) -> str:
        """What stands behind `BACKEND://`."""
        return self.name if self.place is None else f"{self.place}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Reads a handle.

        Raises:
            UsageError: not of the form BACKEND://NAME.
        """
        backend, separator, path = text.partition("://")
        place, _, name = path.rpartition("/")
        if not (separator and backend and name):
            raise UsageError(f"not a handle: {text}", facts={"form": "BACKEND://NAME"}, fix="orchestrator list")
        return cls(backend, name, place or None)


class Attempt(Config):
    """One start of a run, for as long as it lasted."""

    started: float
    """Seconds since the epoch."""
    ended: float | None = None
    """None while it goes on."""
    state: RunState = RunState.RUNNING
    """How it ended."""
    exit_code: int | None = None
    """The job's exit code."""
    reason: str | None = None
    """Why it ended so."""
    step: int | None = None
    """Last optimizer step that it reported."""


class BestCheckpoint(Config):
    """The checkpoint of the lowest validation loss, or of the best score, among those that a run has."""

    step: int
    """Optimizer step after which it was saved."""
    validation_loss: float | None = None
    """Of its very weights; None of a fine-tuning."""
    score: float | None = None
    """Of its very weights, on the dev set; None but of a fine-tuning."""
    folder: str
    """Where it lies."""

    @property
    def text(self) -> str:
        """`step 30, validation loss 4.5679`."""
        what = f"score {self.score:.4f}" if self.score is not None else f"validation loss {self.validation_loss:.4f}"
        return f"step {self.step:,}, {what}"


class RunStatus(Config):
    """What a backend knows of a run now."""

    name: str
    """The run's name."""
    handle: str
    """The run's handle."""
    kind: str = "pretrain"
    """Which job it is."""
    state: RunState
    """Where it stands."""
    exit_code: int | None = None
    """The job's own exit code, once it has ended."""
    reason: str | None = None
    """Why it ended so, in the words of the error."""
    created: float
    """Seconds since the epoch when it was submitted."""
    started: float | None = None
    """When its last attempt began."""
    ended: float | None = None
    """When its last attempt ended."""
    attempt: int = 1
    """How often it was started."""
    warning: str | None = None
    """What its user should look at: a loss that rises."""
    attempts: list[Attempt] = Field(default=[])
    """Every start, the oldest first; the last one may be going on."""
    nodes: int = 1
    """Machines that it runs on."""
    node_hours: float = 0.0
    """Hours of all its attempts until now, times its machines."""
    cost: float | None = None
    """USD until now, by `compute.price_per_hour`; None without a price."""
    eta: float | None = None
    """Seconds since the epoch when its last step is expected, by the speed of its last report; None unless it runs."""
    step: int | None = None
    """Last optimizer step, or what else `counts` says, that it reported."""
    steps: int | None = None
    """How many of them it shall take; None: nobody can tell."""
    counts: Counts = "steps"
    """What it counts: optimizer steps; parts of a text that is prepared; runs of a fine-tuning with several seeds,
    tasks of one with all of GLUE; rows of a file that is predicted."""
    ranks: dict[int, int] = Field(default={})
    """Exit code of each rank of the last attempt."""
    folder: str | None = None
    """Folder of the run, where it lies on this machine."""
    page: str | None = None
    """Its page in the web, where its platform has one."""
    model: str | None = None
    """The exported Hugging Face folder, once there is one."""
    store: str | None = None
    """The token store that it prepared, once there is one."""
    trace: str | None = None
    """The profiler's trace, once there is one; opens in ui.perfetto.dev."""
    tensorboard: str | None = None
    """Folder of event files for TensorBoard, once there is one."""
    best_checkpoint: BestCheckpoint | None = None
    """The best checkpoint, once one was validated."""
    tracking_uri: str | None = None
    """MLflow store that it reports to."""
    mlflow_run_id: str | None = None
    """Its MLflow run."""
    run_hash: str
    """Hash of what determines its result."""
    tags: dict[str, str] = Field(default={})
    """Labels given at submission."""
    metrics: dict[str, float] = Field(default={})
    """The last value of each metric."""
    results: Results | None = None
    """What a fine-tuning or an evaluation came to, once it has completed."""

    def as_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return self.model_dump(mode="json")


def attempt_seconds(attempts: Iterable[Attempt], now: float) -> float:
    """Seconds of all attempts together; one that goes on has lasted until `now`."""
    return sum(max(0.0, (now if attempt.ended is None else attempt.ended) - attempt.started) for attempt in attempts)
