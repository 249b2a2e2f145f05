"""Status of runs: handles, states, attempts, and everything that a backend reports of a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, Literal, TypeVar

from pydantic import Field

from orchestrator.runs.results import Results
from orchestrator.support.errors import UsageError
from train_jobs.config.fields import Config

SWEEP_TAG, TRIAL_TAG = "orchestrator.sweep", "orchestrator.trial"  # of the runs of trials: name of the sweep, number
Counts = Literal["steps", "parts", "runs", "tasks", "rows"]
Item = TypeVar("Item")


class RunState(StrEnum):
    """State of a run."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"

    @property
    def terminal(self) -> bool:
        """Whether the run has finished, in whatever way."""
        return self not in {RunState.QUEUED, RunState.STARTING, RunState.RUNNING}

    @property
    def resumable(self) -> bool:
        """Whether `orchestrator resume` can restart the run."""
        return self in {RunState.FAILED, RunState.CANCELLED, RunState.PREEMPTED}


@dataclass(frozen=True)
class Handle:
    """Unique name of a run: `local://NAME`, `azure://WORKSPACE/NAME`."""

    backend: str
    name: str
    place: str | None = None
    """Where the backend keeps it, if it has several places: the workspace."""

    def __str__(self) -> str:
        return f"{self.backend}://{self.path}"

    @property
    def path(self) -> str:
        """The part after `BACKEND://`."""
        return self.name if self.place is None else f"{self.place}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Return the handle that a text represents.

        Args:
            text: `BACKEND://NAME` or `BACKEND://PLACE/NAME`.

        Raises:
            UsageError: it does not have the form BACKEND://NAME.
        """
        backend, separator, path = text.partition("://")
        place, _, name = path.rpartition("/")
        if not (separator and backend and name):
            raise UsageError(f"invalid handle {text!r}", facts={"form": "BACKEND://NAME"}, fix="orchestrator list")
        return cls(backend, name, place or None)


class EndCause(StrEnum):
    """Cause of the end of an attempt that did not complete."""

    ERROR = "error"
    """The job's own error."""
    INPUT = "input"
    """Invalid input: the next attempt would fail in the same way."""
    PREEMPTED = "preempted"
    """The machine was taken away, or the job was asked to stop."""
    MACHINE = "machine"
    """A machine of the job was lost or restarted."""
    SUPERVISOR = "supervisor"
    """The supervisor or a launcher of the job was lost, but not its machine."""
    DISK = "disk"
    """The disk was full."""
    DAMAGE = "damage"
    """A token store was damaged; the next attempt makes it again."""
    TIME = "time"
    """The time limit of the job or of its machines was reached."""
    MEMORY = "memory"
    """Memory of a GPU or of the machine ran out."""
    IMAGE = "image"
    """The job's image could not be built or pulled."""
    MOUNT = "mount"
    """The job's data could not be mounted or downloaded."""
    QUOTA = "quota"
    """Quota or capacity did not suffice."""


class AttemptEnd(Config):
    """End of an attempt, whichever backend runs it."""

    state: RunState = RunState.RUNNING
    """State at its end."""
    cause: EndCause | None = None
    """Cause of an end without success; None: not recorded."""
    ended: float | None = None
    """Seconds since the epoch; None: it is running, as far as is known."""
    exit_code: int | None = None
    """The job's exit code, if it is known."""
    reason: str | None = None
    """Reason of the end."""
    signature: str | None = None
    """Digest of the exception in the log of a rank that left no error; empty: no exception; None: see `reason`."""
    step: int | None = None
    """Last optimizer step that it reported."""


class RunAttempt(AttemptEnd):
    """One attempt of a run."""

    started: float
    """Seconds since the epoch."""
    price_per_hour: float | None = Field(default=None, exclude_if=lambda value: value is None)
    """USD for one of its machines and hour; None: as in the run's plan."""


class BestCheckpoint(Config):
    """The checkpoint of a run with the lowest validation loss or the best score."""

    step: int
    """Optimizer step after which it was saved."""
    validation_loss: float | None = None
    """Validation loss of its weights; None of a fine-tuning."""
    score: float | None = None
    """Score of its weights on the dev set; only of a fine-tuning."""
    folder: str
    """Folder of the checkpoint."""

    @property
    def text(self) -> str:
        """`step 30, validation loss 4.5679`."""
        what = f"score {self.score:.4f}" if self.score is not None else f"validation loss {self.validation_loss:.4f}"
        return f"step {self.step:,}, {what}"


class RunStatus(Config):
    """Status of a run, as its backend reports it."""

    name: str
    """The run's name."""
    handle: str
    """The run's handle."""
    kind: str = "pretrain"
    """Kind of job."""
    state: RunState
    """State of the run."""
    exit_code: int | None = None
    """The job's exit code, once it has finished."""
    reason: str | None = None
    """Reason of the end: the message of the error."""
    created: float
    """Seconds since the epoch when it was submitted."""
    started: float | None = None
    """When its last attempt began."""
    ended: float | None = None
    """When its last attempt ended."""
    observed: float | None = None
    """Moment of this status by the clock of the run, which setting the machine's clock does not change; None: the run
    has finished, or its clock is unknown."""
    attempt: int = 1
    """Number of attempts so far."""
    warning: str | None = None
    """Warning to the user, such as a loss that rises."""
    attempts: list[RunAttempt] = Field(default=[])
    """All attempts, the oldest first; the last one may still run."""
    nodes: int = 1
    """Machines that it runs on."""
    node_hours: float = 0.0
    """Hours of all its attempts so far, times its machines."""
    cost: float | None = None
    """USD so far, by `compute.price_per_hour`; None without a price."""
    eta: float | None = None
    """Expected time of its last step, seconds since the epoch, by the speed of its last report; None unless it runs."""
    step: int | None = None
    """Last optimizer step that it reported, or last of what `counts` names."""
    steps: int | None = None
    """Number of steps that it will take; None: unknown."""
    counts: Counts = "steps"
    """Unit of its steps: optimizer steps; parts of a text that is prepared; runs of a fine-tuning with several seeds;
    tasks of one with all of GLUE; rows of a file that is predicted."""
    ranks: dict[int, int] = Field(default={})
    """Exit code of each rank of the last attempt."""
    folder: str | None = None
    """Folder of the run, if it is on this machine."""
    page: str | None = None
    """Web page of the run, if its platform has one."""
    model: str | None = None
    """The exported Hugging Face folder, once it exists."""
    store: str | None = None
    """The token store that it prepared, once it exists."""
    trace: str | None = None
    """The profiler's trace, once it exists; opens in ui.perfetto.dev."""
    tensorboard: str | None = None
    """Folder of event files for TensorBoard, once it exists."""
    best_checkpoint: BestCheckpoint | None = None
    """The best checkpoint, once one was validated."""
    tracking_uri: str | None = None
    """MLflow store that it reports to."""
    mlflow_run_id: str | None = None
    """Its MLflow run."""
    run_hash: str
    """Hash of everything that determines the result."""
    tags: dict[str, str] = Field(default={})
    """Labels given at submission."""
    metrics: dict[str, float] = Field(default={})
    """The last value of each metric."""
    results: Results | None = None
    """Results of a fine-tuning or an evaluation, once it has completed."""

    @property
    def now(self) -> float:
        """The moment up to which a running attempt is counted, seconds since the epoch."""
        return time.time() if self.observed is None else self.observed

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return self.model_dump(mode="json")


def first_items(items: Iterable[Item], limit: int | None) -> list[Item]:
    """Return the first items, and read no more of them; `limit` may be any number, None: all."""
    return list(islice(items, None if limit is None else min(limit, sys.maxsize)))


def attempt_seconds(attempts: Iterable[RunAttempt], now: float) -> float:
    """Return the total duration of all attempts in seconds.

    Args:
        attempts: of a run.
        now: end of a running attempt, seconds since the epoch.
    """
    # not negative: the start may come from Azure's clock, which can be ahead of this machine's
    return sum(max(0.0, (now if attempt.ended is None else attempt.ended) - attempt.started) for attempt in attempts)
