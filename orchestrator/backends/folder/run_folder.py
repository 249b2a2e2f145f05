"""The folder of a run, and who may write what in it.

RUN/
  spec.yaml plan.json config.json   written once, at submission
  request.json                      written then, and again by a resume with another number of processes
  code/            the snapshot that runs
  state.json       written by the supervisor alone (before it, by submission)
  tracking.json    which MLflow run it is
  lock             held by the supervisor as long as it lives
  cancel           made by whoever asks the run to end
  logs/            rank-0.log ..., agent-0.log, supervisor.log, mirror.log; beside each its .times (see times.py)
  exits/           what each rank of an attempt ended with
  outputs/         the job's own: metrics.jsonl, checkpoints/, model/, result.json, lineage.json
  reserve          bytes set aside so that a full disk can still be reported
"""

from __future__ import annotations

import json
import os
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.runs.status import Attempt, RunState
from orchestrator.support.errors import ConflictError
from train_jobs.artifacts.file_lock import hold, is_held
from train_jobs.artifacts.files import write_text
from train_jobs.artifacts.host import boot_id, process_started
from train_jobs.artifacts.lineage import LINEAGE_FILE, METRICS_FILE, seed_folder
from train_jobs.config.base import Config

RUN_VARIABLE = "ORCHESTRATOR_RUN"  # in the environment of every process of a run: its folder
TAGS_VARIABLE = "ORCHESTRATOR_RUN_TAGS"  # where the job finds the run's tags, for its lineage
RESERVE_BYTES = 256 * 1024
QUEUED_SECONDS = 30.0  # a supervisor starts in half a second, on the slowest of machines in a few
SUPERVISOR_LOST = "supervisor lost: "
MACHINE_RESTARTED = "the machine restarted"
PROCESS_DIED = "its process ended without a word (killed, or out of memory)"


class LocalState(Config):
    """state.json: what the supervisor knows."""

    state: RunState
    """Where the run stands."""
    created: float
    """Submission, seconds since the epoch."""
    started: float | None = None
    """Start of the last attempt."""
    ended: float | None = None
    """End of the last attempt."""
    attempt: int = 1
    """How often it was started."""
    exit_code: int | None = None
    """The job's exit code."""
    reason: str | None = None
    """Why it ended so."""
    ranks: dict[int, int] = {}  # noqa: RUF012 - pydantic copies defaults
    """Exit codes of the last attempt, by rank."""
    pid: int | None = None
    """The supervisor's process id; to be trusted only while the lock is held."""
    boot_id: str | None = None
    """The boot of the machine in which the supervisor was started."""
    pid_started: int | None = None
    """When that process started, in clock ticks since the boot: with the pid, it names one process for good."""
    attempts: list[Attempt] = []  # noqa: RUF012 - pydantic copies defaults
    """Every start of the run, the oldest first; the last one may be going on."""
    warning: str | None = None
    """What the supervisor thinks that its user should look at."""
    mlflow_run_id: str | None = None
    """The MLflow run of this run."""


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def code(self) -> Path:
        """The snapshot that runs."""
        return self.path / "code"

    @property
    def config(self) -> Path:
        """What the job reads."""
        return self.path / "config.json"

    @property
    def tags(self) -> Path:
        """What identifies it, for MLflow and for its lineage."""
        return self.path / "tags.json"

    @property
    def outputs(self) -> Path:
        """What the job writes."""
        return self.path / "outputs"

    @property
    def metrics(self) -> Path:
        """The job's reports."""
        return self.metrics_of(None)

    def metrics_of(self, seed: int | None) -> Path:
        """Those of one seed of a job that trains with several; None: the job's."""
        return (self.outputs if seed is None else self.outputs / seed_folder(seed)) / METRICS_FILE

    @property
    def lineage(self) -> Path:
        """Where it comes from."""
        return self.outputs / LINEAGE_FILE

    @property
    def model(self) -> Path:
        """The exported Hugging Face folder."""
        return self.outputs / "model"

    @property
    def stacks(self) -> Path:
        """Where ranks tell where they stand."""
        return self.outputs / "stacks"

    @property
    def trace(self) -> Path:
        """What the profiler recorded."""
        return self.outputs / "profile" / "rank-0.trace.json.gz"

    @property
    def tensorboard(self) -> Path:
        """Event files."""
        return self.outputs / "tensorboard"

    @property
    def logs(self) -> Path:
        """Log files."""
        return self.path / "logs"

    @property
    def cancel_file(self) -> Path:
        """Exists when the run was asked to end."""
        return self.path / "cancel"

    def rank_log(self, rank: int) -> Path:
        """The log of one rank, over all attempts."""
        return self.logs / f"rank-{rank}.log"

    def agent_log(self, node: int) -> Path:
        """The log of a node's launcher, over all attempts."""
        return self.logs / f"agent-{node}.log"

    @property
    def tracking_file(self) -> Path:
        """Which MLflow run it is; made once that is known."""
        return self.path / "tracking.json"

    def mirrored(self) -> dict[str, Any]:
        """The word that a job leaves when MLflow has everything: {run_id, status, bytes}; empty without it."""
        try:
            return self.read_json("outputs/mirrored.json")
        except (OSError, ValueError):
            return {}

    def exits(self, attempt: int) -> Path:
        """Folder of the exit codes of an attempt."""
        return self.path / "exits" / f"attempt-{attempt}"

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder."""
        document: dict[str, Any] = json.loads((self.path / name).read_text())
        return document

    def read_result(self) -> dict[str, Any]:
        """The job's final figures; none before it has ended."""
        return self.read_json("outputs/result.json") if (self.outputs / "result.json").exists() else {}

    def stored_state(self) -> LocalState:
        """state.json as it is."""
        return LocalState.model_validate_json((self.path / "state.json").read_text())

    def read_state(self) -> LocalState:
        """state.json, or what it should say: a run whose lock is free is not running, whatever it says."""
        state = self.stored_state()
        if state.state.terminal or self.alive(state):
            return state
        age = time.time() - (self.path / "state.json").stat().st_mtime
        if state.state == RunState.QUEUED and age < QUEUED_SECONDS:
            return state  # its supervisor is only just starting
        # the supervisor may have written its last word and let go of the lock between the two looks
        state = self.stored_state()
        if state.state.terminal:
            return state
        restarted = state.boot_id is not None and state.boot_id != boot_id()
        reason = SUPERVISOR_LOST + (MACHINE_RESTARTED if restarted else PROCESS_DIED)
        return state.model_copy(update={"state": RunState.FAILED, "reason": reason, "exit_code": 1})

    def write_state(self, state: LocalState) -> None:
        """Replaces state.json as a whole; frees the reserve first if the disk is full."""
        try:
            write_text(self.path / "state.json", state.model_dump_json(indent=1))
        except OSError:
            (self.path / "reserve").unlink(missing_ok=True)
            write_text(self.path / "state.json", state.model_dump_json(indent=1))

    def reserve(self) -> None:
        """Sets bytes aside for the last words on a full disk."""
        (self.path / "reserve").write_bytes(os.urandom(RESERVE_BYTES))

    def locked(self) -> bool:
        """True while a supervisor lives."""
        return is_held(self.path / "lock")

    def alive(self, state: LocalState) -> bool:
        """True while a supervisor lives: it holds the lock, or, on a disk without locks, is the process it says."""
        if self.locked():
            return True
        if state.pid is None or state.pid_started is None or state.boot_id != boot_id():
            return False
        return process_started(state.pid) == state.pid_started

    def lock(self) -> AbstractContextManager[None]:
        """Hold the run's lock; the kernel releases it when the process dies, however it dies.

        Raises:
            ConflictError: another supervisor holds it.
        """
        # a reader that asks whether we live holds it for an instant
        busy = ConflictError(f"run {self.name} is being supervised already", fix=f"orchestrator status {self.name}")
        return hold(self.path / "lock", seconds=1, busy=busy)
