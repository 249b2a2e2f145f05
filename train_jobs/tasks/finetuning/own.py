"""The user's own table: columns named in the configuration, classes found in the training data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from train_jobs.config import DataError
from train_jobs.config.finetune import ColumnsConfig
from train_jobs.tasks.finetuning.examples import Examples, SequenceTask, make_examples
from train_jobs.tasks.finetuning.tables import Problems, Table, classes, read_table

_WHOLE = re.compile(r"-?\d+")
_FRACTION = re.compile(r"[-+]?\d*\.\d+([eE][-+]?\d+)?")


def read_own(columns: ColumnsConfig, files: Mapping[str, Path]) -> tuple[SequenceTask, dict[str, Examples]]:
    """A task of the user's own, and its splits.

    Classes are those of the training data, in the order of their numbers if all are whole numbers, else of the
    alphabet: the order of the rows does not matter.

    Args:
        columns: which columns mean what.
        files: "train" and any others by their names; "test" may lack the label's column.

    Raises:
        DataError: a file or a column is missing, or rows cannot be used: each with its line.
    """
    texts = [columns.text, *([columns.pair] if columns.pair else [])]
    tables: dict[str, Table] = {}
    labelled = dict.fromkeys(files, True)
    for split, path in files.items():
        try:
            tables[split] = _read(columns, path, [*texts, columns.label])
        except DataError:
            if split != "test":
                raise
            tables[split], labelled[split] = _read(columns, path, texts), False
    labels = () if columns.regression else _found_classes(columns, tables["train"])
    metrics = ("pearson", "spearman") if columns.regression else ("accuracy", "f1")[: 2 if len(labels) == 2 else 1]
    task = SequenceTask(files["train"].stem, columns.text, columns.pair, columns.label, labels, metrics)
    return task, {
        split: make_examples(task, table, labelled=labelled[split], origin=files["train"])
        for split, table in tables.items()
    }


def _read(columns: ColumnsConfig, path: Path, names: list[str]) -> Table:
    return read_table(path, names, format=None if columns.format == "auto" else columns.format, quoting=columns.quoting)


def _found_classes(columns: ColumnsConfig, table: Table) -> tuple[str, ...]:
    problems = Problems(f"{table.path} has rows that cannot be used", fix=f"mend or delete those rows of {table.path}")
    found = set(classes(table, columns.label, problems))
    problems.check()
    if len(found) < 2:
        raise DataError(
            f"{table.path} has one label only, so there is nothing to learn",
            facts={"where": f"{table.where(0)}, column {columns.label!r}", "have": ", ".join(found)},
            fix="name another column of labels, or give rows of all classes",
        )
    if any(_FRACTION.fullmatch(name) for name in found) and all(map(_is_number, found)):
        raise DataError(
            f"{table.path}: labels are numbers with fractions, and regression is off",
            facts={"where": f"{table.path}, column {columns.label!r}", "have": ", ".join(sorted(found)[:5])},
            fix="--set data.regression=true",
        )
    whole = all(map(_WHOLE.fullmatch, found))
    return tuple(sorted(found, key=lambda name: (int(name) if whole else 0, name)))


def _is_number(name: str) -> bool:
    return bool(_WHOLE.fullmatch(name) or _FRACTION.fullmatch(name))
