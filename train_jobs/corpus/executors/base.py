"""The interface of everything that runs the tasks of a preparation, and the executor that runs them in this process.

A task and its result are JSON. Text and tokens never pass through an executor: a task names files, and its result is
the record of the files that it wrote. The steps know nothing of the executor that runs them.
"""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from train_jobs.config import errors
from train_jobs.config.errors import InternalError, UserError
from train_jobs.config.privacy import unexpected_text
from train_jobs.corpus.steps.documents import Advance, extract
from train_jobs.corpus.steps.records import (
    DocumentsRecord,
    PartTask,
    PreparationSetting,
    StepRecord,
    TokensRecord,
    part_name,
    read_record,
)
from train_jobs.corpus.steps.tokenisation import tokenise
from train_jobs.engine.runtime.storage import explain

KINDS = {kind.kind: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, UserError)}
Log = Callable[[str], None]


class Step(NamedTuple):
    """A step that is divided into tasks."""

    perform: Callable[[PreparationSetting, PartTask, Advance], StepRecord]
    """Runs one task."""
    record: type[StepRecord]
    """Class of its record."""
    in_store: bool
    """Whether its files are in the store, not in the folder of the records."""


STEPS = {"documents": Step(extract, DocumentsRecord, False), "tokens": Step(tokenise, TokensRecord, True)}


class Result(NamedTuple):
    """A finished task."""

    number: int
    """Number of its part."""
    record: str
    """JSON of its record."""


class Executor(ABC):
    """Runs the tasks of a preparation; a context that ends its processes."""

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    @property
    @abstractmethod
    def workers(self) -> int:
        """Number of workers that run tasks now."""

    @abstractmethod
    def run(self, tasks: Sequence[PartTask], advance: Advance) -> Iterator[Result]:
        """Run all tasks; yield the result of each when it is done, in any order.

        Args:
            tasks: tasks of one step.
            advance: called with the bytes and documents processed since its last call.

        Raises:
            UserError: the first error of a task; the other tasks are abandoned.
        """

    def close(self) -> None:  # noqa: B027 - not every executor has processes
        """End the processes of the executor."""


class InProcess(Executor):
    """Runs tasks in this process, one after the other.

    Args:
        setting: settings shared by the tasks.
    """

    def __init__(self, setting: PreparationSetting) -> None:
        self._setting = setting

    @property
    def workers(self) -> int:
        """One."""
        return 1

    def run(self, tasks: Sequence[PartTask], advance: Advance) -> Iterator[Result]:
        """Run all tasks, see `Executor.run`."""
        for task in tasks:
            yield Result(task.number, perform(self._setting, task, advance))


def perform(setting: PreparationSetting, task: PartTask, advance: Advance) -> str:
    """Run a task in this process and return the JSON of its record.

    Args:
        setting: settings shared by all tasks.
        task: step and part.
        advance: called with the bytes and documents processed since its last call.

    Raises:
        UserError: the text or the vocabulary cannot be used.
    """
    return STEPS[task.step].perform(setting, task, advance).model_dump_json()


def finished_record(setting: PreparationSetting, task: PartTask) -> str | None:
    """Return the JSON of a task's record if an earlier attempt has finished it, else None."""
    step, name = STEPS[task.step], part_name(task.step, task.number)
    files = setting.store if step.in_store else setting.folder
    record = read_record(setting.folder, name, step.record, task.key, files=files)
    return None if record is None else record.model_dump_json()


def error_json(problem: Exception, setting: PreparationSetting) -> dict[str, Any]:
    """Return the error of a task as JSON that passes from a worker to the process that gave the task."""
    known = problem if isinstance(problem, UserError) else None
    disk = setting.store if isinstance(setting.store, Path) else Path(tempfile.gettempdir())
    error = known or explain(problem, disk, "the token store")
    found: dict[str, Any] = (error or InternalError(unexpected_text(problem))).as_json()["error"]
    return found


def error_of(found: dict[str, Any]) -> UserError:
    """Return the error that a worker sent as JSON."""
    return KINDS.get(found["kind"], UserError)(found["message"], facts=found["facts"], fix=found["fix"])


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    # `os.cpu_count` ignores the affinity that Slurm or taskset sets; macOS has no affinity.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
