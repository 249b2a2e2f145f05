"""The user's own table: columns named in the configuration, classes found in the training data."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from train_jobs.config import DataError
from train_jobs.config.finetune import ColumnsConfig
from train_jobs.config.tasks import SentenceTask
from train_jobs.tasks.rows.columns import classes
from train_jobs.tasks.rows.hub_tables import dataset_table, is_labelled, open_dataset
from train_jobs.tasks.rows.labelled import Examples, make_examples
from train_jobs.tasks.rows.tables import Problems, Table, column_names, read_table

_WHOLE = re.compile(r"-?\d+")
_FRACTION = re.compile(r"[-+]?\d*\.\d+([eE][-+]?\d+)?")


def read_own(columns: ColumnsConfig, files: Mapping[str, Path]) -> tuple[SentenceTask, dict[str, Examples]]:
    """A task of the user's own, and its splits.

    Classes are those of the training data, in the order of their numbers if all are whole numbers, else of the
    alphabet: the order of the rows does not matter.

    Args:
        columns: which columns mean what.
        files: "train" and any others by their names; "test" may lack the label's column.

    Raises:
        DataError: a file or a column is missing, or rows cannot be used: each with its line.
    """
    settings = _settings(columns)
    names = {split: column_names(path, **settings) for split, path in files.items()}
    labelled = {split: split != "test" or columns.label in names[split] for split in files}
    tables = {split: read_table(path, _wanted(columns, labelled[split]), **settings) for split, path in files.items()}
    return _made(columns, tables, labelled, names.get("test", []))


def read_named(columns: ColumnsConfig, name: str) -> tuple[SentenceTask, dict[str, Examples]]:
    """A task of the user's own from the splits of a dataset; as `read_own` otherwise.

    Args:
        name: NAME[:CONFIGURATION].
    """
    splits = open_dataset(name)
    labelled = {split: split != "test" or is_labelled(rows, columns.label) for split, rows in splits.items()}
    tables = {
        split: dataset_table(name, split, rows, _wanted(columns, labelled[split])) for split, rows in splits.items()
    }
    return _made(columns, tables, labelled, splits["test"].column_names if "test" in splits else [])


def _wanted(columns: ColumnsConfig, labelled: bool) -> list[str]:
    return [columns.text, *([columns.pair] if columns.pair else []), *([columns.label] if labelled else [])]


def _made(
    columns: ColumnsConfig, tables: dict[str, Table], labelled: dict[str, bool], test_names: list[str]
) -> tuple[SentenceTask, dict[str, Examples]]:
    if not labelled.get("test", True):
        _tell_misspelt_label(columns, tables["test"], test_names)
    labels = () if columns.regression else _found_classes(columns, tables["train"])
    metrics = ("pearson", "spearman") if columns.regression else ("accuracy", "f1")[: 2 if len(labels) == 2 else 1]
    origin = tables["train"].path
    task = SentenceTask(
        name=origin.stem, text=columns.text, pair=columns.pair, label=columns.label, labels=labels, metrics=metrics
    )
    return task, {
        split: make_examples(task, table, labelled=labelled[split], origin=origin) for split, table in tables.items()
    }


def _settings(columns: ColumnsConfig) -> dict[str, Any]:
    return {"format": None if columns.format == "auto" else columns.format, "quoting": columns.quoting}


def _tell_misspelt_label(columns: ColumnsConfig, table: Table, names: list[str]) -> None:
    """A test set may lack labels, but hardly has a column called nearly so."""
    others = {name.lower(): name for name in names if name not in (columns.text, columns.pair, columns.label)}
    if close := difflib.get_close_matches(columns.label.lower(), others, n=1):
        hint = f'(did you mean "{others[close[0]]}"?)'
        table.notes.append(f"{table.path}: there is no column {columns.label!r} {hint}: read as a set without labels")


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
    table.notes.extend(_nearly_the_same(table, found))
    whole = all(map(_WHOLE.fullmatch, found))
    return tuple(sorted(found, key=lambda name: (int(name) if whole else 0, name)))


def _nearly_the_same(table: Table, names: set[str]) -> Iterator[str]:
    """Notes on classes that are hardly meant to be several."""
    alike: dict[str, list[str]] = {}
    for name in sorted(names):
        alike.setdefault(name.strip().casefold(), []).append(name)
    for some in alike.values():
        if len(some) > 1:
            several = ", ".join(map(repr, some))
            yield f"{table.path}: labels {several} differ in white space or case alone, and are classes"


def _is_number(name: str) -> bool:
    return bool(_WHOLE.fullmatch(name) or _FRACTION.fullmatch(name))
