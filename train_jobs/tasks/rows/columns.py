"""What the columns of a table hold: texts, numbers, names of classes; what is none of these is named with its place."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from typing import Any

from train_jobs.tasks.rows.tables import Problems, Table

LONGEST_SHOWN = 80  # characters of a value


def texts(table: Table, column: str, problems: Problems, *, may_be_empty: bool = False) -> list[str]:
    """A column as text; what is none, or has nothing in it, is a problem, or the latter a note if it may be."""
    for row, value in enumerate(table.columns[column]):
        if not isinstance(value, str):
            kind = "nothing" if value is None else f"of type {type(value).__name__}"
            problems.add(table.where(row), f"column {column!r} is no text: {kind}")
        elif not value.strip() and may_be_empty:
            table.notes.append(f"{table.where(row)}: column {column!r} has an empty text, and is kept")
        elif not value.strip():
            problems.add(table.where(row), f"column {column!r} has an empty text")
    return table.columns[column]


_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")


def numbers(table: Table, column: str, problems: Problems) -> list[float]:
    """A column as finite numbers; NaN, infinity, nothing and words are problems."""
    return _converted(table, column, problems, _number)


def classes(table: Table, column: str, problems: Problems) -> list[str]:
    """A column as names of classes; nothing and NaN are problems."""
    return _converted(table, column, problems, _class)


def _converted(table: Table, column: str, problems: Problems, convert: Callable[[Any], Any]) -> list[Any]:
    found = []
    for row, value in enumerate(table.columns[column]):
        try:
            found.append(convert(value))
        except ValueError as problem:
            found.append(None)
            problems.add(table.where(row), f"column {column!r}: {problem}")
    return found


def _number(value: Any) -> float:
    written = isinstance(value, str) and _NUMBER.fullmatch(value)
    if written or (isinstance(value, int | float) and not isinstance(value, bool)):
        with suppress(OverflowError):  # a whole number may be larger than any float
            if isfinite(found := float(value)):
                return found
    raise ValueError(f"{repr(value)[:LONGEST_SHOWN]} is no finite number")


def _class(value: Any) -> str:
    """As it is written; in JSON and Parquet true and 1 are written so, and NaN stands for nothing."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or (isinstance(value, str) and value.strip()):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    raise ValueError(f"{value!r} is no label" if value not in (None, "") else "there is no label")
