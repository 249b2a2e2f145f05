"""Examples of one split of a task of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from train_jobs.config.names import did_you_mean
from train_jobs.config.tasks import SentenceTask
from train_jobs.tasks.rows.columns import classes, numbers, texts
from train_jobs.tasks.rows.tables import Problems, Table


@dataclass(frozen=True)
class Examples:
    """One split of a task's data, in the order of its file."""

    table: Table
    texts: list[str]
    pairs: list[str] | None
    labels: list[int] | list[float] | None
    """Ids of classes, or numbers; None where nobody knows them, as in GLUE's test sets."""
    notes: list[str] = field(default_factory=list)
    """What the user should know of the file, each with its place."""

    def __len__(self) -> int:
        return len(self.texts)


def make_examples(
    task: SentenceTask, table: Table, *, labelled: bool = True, empty_texts: bool = False, origin: Path | None = None
) -> Examples:
    """The examples of a table, all of its rows.

    Args:
        task: names the columns.
        table: has them.
        labelled: whether the label's column is there and is to be read.
        empty_texts: a text with nothing in it is one, and no problem.
        origin: file that the classes were found in, for the error about a label that it does not have.

    Raises:
        DataError: every row whose text or label is none, with its place.
    """
    problems = Problems(f"{table.path} has rows that cannot be used", fix=f"mend or delete those rows of {table.path}")
    first = texts(table, task.text, problems, may_be_empty=empty_texts)
    second = texts(table, task.pair, problems, may_be_empty=empty_texts) if task.pair else None
    labels = _labels(task, table, problems, origin) if labelled else None
    problems.check()
    return Examples(table, first, second, labels, list(table.notes))


def _labels(task: SentenceTask, table: Table, problems: Problems, origin: Path | None) -> list[int] | list[float]:
    if task.regression:
        return numbers(table, task.label, problems)
    ids = {name: number for number, name in enumerate(task.labels)}
    found = classes(table, task.label, problems)
    for row, name in enumerate(found):
        if name is not None and name not in ids:
            problems.add(table.where(row), _unknown(name, task.labels, origin))
    return [ids.get(name, -1) for name in found]


def _unknown(name: str, known: Sequence[str], origin: Path | None) -> str:
    if origin is not None:
        return f"label {name!r} is not in {origin}, so nothing can learn it{did_you_mean(name, known)}"
    return f"unknown label {name!r}, known are {', '.join(known)}"
