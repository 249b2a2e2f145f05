"""What this machine remembers of a run on Azure: HOME/azure/RUN/, with the same names as in the folder of a local run.

plan.json request.json spec.yaml   written once, before anything is submitted
record.json                        names of the attempts, each written before it is submitted, and how it ended

Whoever attaches from another machine gets the first three from the datastore, and the rest from the jobs' tags.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.runs.status import RunState, RunStatus
from orchestrator.support.errors import StorageError
from train_jobs.artifacts.files import write_text
from train_jobs.config.base import Config
from train_jobs.config.names import in_shell

RECORD = "record.json"


class AzureAttempt(Config):
    """One job of a run."""

    job: str
    """Its name in the workspace."""
    intended: float
    """When it was about to be submitted, seconds since the epoch."""
    confirmed: bool = False
    """Whether Azure is known to have it."""
    refused: bool = False
    """Whether Azure read it and did not take it: nobody but the run's user submits it again."""
    preempt: bool = False
    """Whether it was cancelled to play a preemption."""
    started: float | None = None
    """When it began to run."""
    ended: float | None = None
    """When it ended; None: it goes on, as far as was seen."""
    state: RunState = RunState.QUEUED
    """Where it stood when it was last looked at."""
    exit_code: int | None = None
    """The job's exit code, as far as Azure tells."""
    reason: str | None = None
    """Why it ended so."""
    step: int | None = None
    """Last optimizer step that had been reported when it ended."""


class Record(Config):
    """What becomes of a run."""

    created: float
    """Submission, seconds since the epoch."""
    attempts: tuple[AzureAttempt, ...]
    """The oldest first."""
    cancelled: bool = False
    """Whether its user asked it to end: nobody submits it again then."""
    final: RunStatus | None = None
    """How it stands, once that can't change by itself any more."""

    @property
    def begun(self) -> int:
        """How many attempts Azure is known to have had."""
        return sum(attempt.confirmed for attempt in self.attempts)

    @property
    def last(self) -> AzureAttempt:
        """The newest attempt."""
        return self.attempts[-1]

    def with_last(self, **changes: Any) -> Record:
        """The record with something else about the newest attempt."""
        attempts = (*self.attempts[:-1], self.last.model_copy(update=changes))
        return self.model_copy(update={"attempts": attempts})

    def with_another(self, job: str) -> Record:
        """The record with one more attempt, that is about to be submitted."""
        attempts = (*self.attempts, AzureAttempt(job=job, intended=time.time()))
        return self.model_copy(update={"attempts": attempts, "cancelled": False, "final": None})


@dataclass(frozen=True)
class RecordFolder:
    """The folder of one run."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    def read(self) -> Record:
        """record.json.

        Raises:
            StorageError: it is damaged.
        """
        with self._whole(RECORD):
            return Record.model_validate_json((self.path / RECORD).read_text())

    def write(self, record: Record) -> None:
        """Replaces it as a whole."""
        write_text(self.path / RECORD, record.model_dump_json(indent=1))

    def document(self, name: str) -> dict[str, Any]:
        """plan.json or request.json.

        Raises:
            StorageError: it is damaged.
        """
        with self._whole(name):
            found: dict[str, Any] = json.loads((self.path / name).read_text())
            return found

    def read_bytes(self, name: str) -> bytes:
        """A document as it is; empty if there is none.

        Raises:
            StorageError: it cannot be read.
        """
        path = self.path / name
        with self._whole(name):
            return path.read_bytes() if path.exists() else b""

    @contextmanager
    def _whole(self, name: str) -> Iterator[None]:
        """Tells that a file is damaged if it cannot be read inside."""
        try:
            yield
        except (OSError, ValueError) as problem:
            says = f"{type(problem).__name__}: {problem}".splitlines()[0]
            raise StorageError(
                f"the record of run {self.name} is damaged: {name}",
                facts={"says": says, "then": f"orchestrator attach azure://WORKSPACE/{self.name} makes it anew"},
                fix=f"rm -r {in_shell(self.path)}",
            ) from problem

    def fill(self, documents: Mapping[str, str], record: Record) -> None:
        """Makes the folder; request.json, which makes it a run, last."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.write(record)
        for name in sorted(documents, key=lambda name: name == "request.json"):
            write_text(self.path / name, documents[name])
