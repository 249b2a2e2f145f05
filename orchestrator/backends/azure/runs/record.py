"""Record of a run on Azure on this machine: HOME/azure/RUN/, with the file names of the folder of a local run.

plan.json request.json spec.yaml   written once, before anything is submitted
record.json                        names of the attempts, each written before it is submitted, and how it ended
deliveries.json                    size and hash of the predictions that were written to files here, by path

A machine that attaches later gets the first three from the datastore, and the rest from the jobs' tags.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from orchestrator.backends.base import PLAN, REQUEST
from orchestrator.runs.status import AttemptEnd, RunAttempt, RunState, RunStatus
from orchestrator.support.errors import StorageError
from train_jobs.artifacts.files import hold, write_text
from train_jobs.config.errors import in_shell
from train_jobs.config.fields import Config

RECORD, LOCK = "record.json", "record.lock"
FORMER_TAG, REASON_TAG, RESUMED_TAG = "orchestrator.former", "orchestrator.former_reason", "orchestrator.resumed"
FORMER_FIELDS = {"state", "cause", "exit_code", "step", "preempt", "moved", "price_per_hour"}
MAX_TAG = 250  # characters: a tag of Azure has at most 256


class AzureAttempt(AttemptEnd):
    """One job of a run."""

    job: str
    """Its name in the workspace."""
    intended: float
    """When it was about to be submitted, seconds since the epoch."""
    confirmed: bool = False
    """Whether Azure is known to have it."""
    refused: bool = False
    """Whether Azure refused it, or its job was deleted: only the run's user submits it again."""
    preempt: bool = False
    """Whether it was cancelled to simulate a preemption."""
    moved: bool = False
    """Whether it was cancelled in the queue, because its cluster got no machines and others are left to try."""
    alternatives: int | None = None
    """Number of other machines that were left to try when it was moved; None: unknown, at least one."""
    started: float | None = None
    """When it began to run; of a job that Azure requeued, when it began to run again."""
    lives: tuple[RunAttempt, ...] = ()
    """Earlier runs of the same job, each ended by Azure, which started the job again in place."""
    state: RunState = RunState.QUEUED
    """State when Azure was last asked."""
    resumed: bool = False
    """Whether its user resumed the run: earlier attempts count for no limit of restarts."""
    not_restarted: str | None = None
    """Why it was not restarted, although the run had restarts left."""
    price_per_hour: float | None = Field(default=None, exclude_if=lambda value: value is None)
    """USD for one of its machines and hour; None: as in the run's plan."""


class RunRecord(Config):
    """Attempts of a run, and their ends."""

    created: float
    """Submission, seconds since the epoch."""
    attempts: tuple[AzureAttempt, ...]
    """The oldest first."""
    cancelled: bool = False
    """Whether its user cancelled it: it is not submitted again then."""
    final: RunStatus | None = None
    """Its status, once it can no longer change without a command of its user."""

    @property
    def begun(self) -> int:
        """Number of attempts that Azure is known to have had."""
        return sum(attempt.confirmed for attempt in self.attempts)

    @property
    def counted(self) -> list[AzureAttempt]:
        """Attempts that count for the limits of restarts: of those that got machines, those since the last resume."""
        resumed = max((number for number, attempt in enumerate(self.attempts) if attempt.resumed), default=0)
        return [attempt for attempt in self.attempts[resumed:] if attempt.confirmed and not attempt.moved]

    @property
    def moving(self) -> AzureAttempt | None:
        """The newest attempt that Azure had, if it left its machines; None: it did not, or the run's user ended it."""
        newest = next((attempt for attempt in reversed(self.attempts) if attempt.confirmed), None)
        return newest if newest is not None and newest.moved and newest.state == RunState.PREEMPTED else None

    @property
    def known_attempts(self) -> list[RunAttempt]:
        """All attempts that began or ended, with the former lives of each; one that never began took no time."""
        found: list[RunAttempt] = []
        for attempt in self.attempts:
            started = attempt.started or attempt.ended
            found += attempt.lives
            if started is not None:
                known = attempt.model_dump(include={*RunAttempt.model_fields})
                found.append(RunAttempt.model_validate({**known, "started": started}))
        return found

    @property
    def former_tags(self) -> dict[str, str]:
        """Tags of the newest attempt about the end of the one before.

        A machine without this record, such as a supervisor in Azure, could not know them all from Azure.
        """
        if len(self.attempts) < 2:
            return {}
        former = self.attempts[-2].model_dump(mode="json", include=FORMER_FIELDS, exclude_none=True)
        reason = {REASON_TAG: text[:MAX_TAG]} if (text := self.attempts[-2].reason) else {}
        resumed = {RESUMED_TAG: "true"} if self.last.resumed else {}
        return {FORMER_TAG: json.dumps(former), **reason, **resumed}

    @property
    def last(self) -> AzureAttempt:
        """The newest attempt."""
        return self.attempts[-1]

    def with_last(self, **changes: Any) -> RunRecord:
        """Return the record with changes of the newest attempt."""
        return self.model_copy(update={"attempts": (*self.attempts[:-1], self.last.model_copy(update=changes))})

    def with_another(self, job: str, *, price: float | None, resumed: bool = False) -> RunRecord:
        """Return the record with one more attempt, which is about to be submitted.

        A cancel is withdrawn: only its user resumes a cancelled run.
        """
        another = AzureAttempt(job=job, intended=time.time(), resumed=resumed, price_per_hour=price)
        attempts = (*self.attempts, another)
        return self.model_copy(update={"attempts": attempts, "cancelled": False, "final": None})


def price_of_machine(plan: Mapping[str, Any]) -> float | None:
    """Return the USD for one machine and hour in a plan, which a move of the run to other machines replaces."""
    price: float | None = plan["compute"].get("price_per_hour")
    return price


@dataclass(frozen=True)
class RecordFolder:
    """The folder of one run."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    def read(self) -> RunRecord:
        """Return record.json.

        Raises:
            StorageError: it is damaged.
        """
        with self._reporting_damage(RECORD):
            return RunRecord.model_validate_json((self.path / RECORD).read_text())

    def write(self, record: RunRecord) -> None:
        """Replace record.json as a whole, whatever it contains: only of a run that is being recorded here."""
        with hold(self.path / LOCK):
            self._replace(record)

    def update(self, known: RunRecord, changed: RunRecord) -> RunRecord:
        """Replace a record unless it was changed since it was read; return the stored one.

        Requests to Azure take seconds: meanwhile another command may have recorded an attempt, or a cancel.

        Args:
            known: the record as it was read.
            changed: its new content.

        Raises:
            StorageError: the stored record is damaged.
        """
        with hold(self.path / LOCK):
            stored = self.read()
            if stored.model_dump_json() != known.model_dump_json():
                return stored
            self._replace(changed)
        return changed

    def update_attempt(self, job: str, **changes: Any) -> None:
        """Change fields of an attempt, in the record as it is stored; nothing, if the attempt is not the newest one.

        Args:
            job: name of its job.
            changes: field -> value.

        Raises:
            StorageError: the stored record is damaged.
        """
        with hold(self.path / LOCK):
            stored = self.read()
            if stored.last.job == job:
                self._replace(stored.with_last(**changes))

    def _replace(self, record: RunRecord) -> None:
        write_text(self.path / RECORD, record.model_dump_json(indent=1))

    def document(self, name: str) -> dict[str, Any]:
        """Return plan.json or request.json.

        Raises:
            StorageError: it is damaged.
        """
        with self._reporting_damage(name):
            return dict(json.loads((self.path / name).read_text()))

    def read_bytes(self, name: str) -> bytes:
        """Return the content of a document; empty if it does not exist.

        Raises:
            StorageError: it cannot be read.
        """
        path = self.path / name
        with self._reporting_damage(name):
            return path.read_bytes() if path.exists() else b""

    @contextmanager
    def _reporting_damage(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, TypeError) as problem:
            raise StorageError(
                f"cannot read {name} of run {self.name}: it is damaged",
                facts={
                    "reason": f"{type(problem).__name__}: {problem}".splitlines()[0],
                    "afterwards": f"orchestrator attach azure://WORKSPACE/{self.name} creates the record again",
                },
                fix=f"rm -r {in_shell(self.path)}",
            ) from problem

    def create(self, documents: Mapping[str, str], job: str, created: float | None = None) -> None:
        """Create the folder of a run with one job.

        Args:
            documents: name -> text.
            job: name of the job.
            created: when Azure got it, seconds since the epoch; None: it is about to be submitted.
        """
        intended = created or time.time()
        price = price_of_machine(json.loads(documents[PLAN]))
        attempt = AzureAttempt(job=job, intended=intended, confirmed=created is not None, price_per_hour=price)
        self.fill(documents, RunRecord(created=intended, attempts=(attempt,)))

    def fill(self, documents: Mapping[str, str], record: RunRecord) -> None:
        """Create the folder, or complete it.

        Args:
            documents: name -> text.
            record: content of record.json.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self.write(record)
        self.write_documents(documents)

    def write_documents(self, documents: Mapping[str, str]) -> None:
        """Write or replace documents of the run: name -> text."""
        # request.json last: only with it the folder counts as a run, so that an interrupted call leaves none
        for name in sorted(documents, key=lambda name: name == REQUEST):
            write_text(self.path / name, documents[name])
