"""Messages about the user's data: places, types and lengths, but no values unless the user asks for them.

A row, a note or a token may be private, and messages are copied to logs, reports, tracking servers and issues.
docs/privacy.md lists what counts as a value and what as metadata.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Collection, Sequence
from math import isfinite
from typing import Any

SHOW_VALUES = "TRAIN_JOBS_SHOW_VALUES"
"""Environment variable of a job that shows values in messages if it is `1`; workers and ranks inherit it."""
HINT = "(not shown: it may contain data; --show-values shows it)"
LONGEST_SHOWN = 80  # characters of a value, where values are shown
LONGEST_NAME = 30  # characters of a column or a class that is shown
MOST_NAME_WORDS = 3
MOST_COLUMNS = 10  # named in a message
LONGEST_CLASS = 64  # characters of a class that occurs once
MOST_RARE_CLASSES = 20
_MARKERS = {"", "nan", "na", "n/a", "null", "none", "inf", "infinity", "?"}
"""Texts that stand for a missing or infinite value, and therefore reveal nothing."""
_HEADERS = re.compile(
    "answer|body|category|class|content|context|date|document|id|idx|index|labels?|message|name|notes?|question|rating"
    "|review|score|sentence[12]?|source|split|stars|subject|tags?|target|text[12]?|title|tokens?|topic|type|words?",
    re.IGNORECASE,
)
"""Names of columns that are common in tables of text: a first line with one of them is a header."""
_NUMBER = re.compile(r"[-+]?[\d.,:/ -]*\d[\d.,:/ -]*")
# From the first quotation mark that opens a word to the last one: messages of libraries quote values.
_QUOTED = re.compile(r"(?<!\w)b?['\"].*['\"](?!\w)", re.DOTALL)
# Errors whose messages name files, modules, attributes, shapes or devices.
_WITHOUT_DATA = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    MemoryError,
    NameError,
    OSError,
    RuntimeError,
    TypeError,
)


def values_shown() -> bool:
    """Return whether the user asked for values in messages."""
    return os.environ.get(SHOW_VALUES) == "1"


def value_text(value: Any) -> str:
    """Return the type and size of a value for a message; the value itself if the user asked for values."""
    if values_shown():
        found = repr(value)
        return found if len(found) <= LONGEST_SHOWN else f"{found[:LONGEST_SHOWN]}..."
    if isinstance(value, bool) or (isinstance(value, float) and not isfinite(value)):
        return str(value)
    if isinstance(value, str) and value.strip().lower().lstrip("+-") in _MARKERS:
        return repr(value)
    if isinstance(value, str):
        return f"a text of {len(value):,} character{'' if len(value) == 1 else 's'}"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return f"a value of type {type(value).__name__}"


def is_name(text: str) -> bool:
    """Return whether a text looks like the name of a column or a class, and not like a text or a number."""
    short = 0 < len(text) <= LONGEST_NAME and len(text.split()) <= MOST_NAME_WORDS
    return short and text[-1] not in ".,;:!?" and not _NUMBER.fullmatch(text)


def names_text(names: Sequence[str], *, none: str = "none") -> str:
    """Return the names of columns for a message; only their number if one of them looks like text.

    Args:
        names: the names.
        none: text for no names.
    """
    if not names:
        return none
    if values_shown() or all(map(is_name, names)):
        return _some(names)
    return f"{len(names)} columns {HINT}"


def is_header(fields: Sequence[str], wanted: Collection[str]) -> bool:
    """Return whether the first line of a table may be shown as names of columns; without a header it is a row.

    Args:
        fields: the fields of the line.
        wanted: the columns that the user named.
    """
    names = {name.casefold() for name in wanted}
    known = any(field.strip().casefold() in names or _HEADERS.fullmatch(field.strip()) for field in fields)
    return values_shown() or (known and all(map(is_name, fields)))


def header_text(fields: Sequence[str], wanted: Collection[str]) -> str:
    """Return the first line of a table for a message; only its number of fields if it may be a row."""
    if not fields:
        return "an empty line"
    return _some(fields) if is_header(fields, wanted) else f"{len(fields)} columns {HINT}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_COLUMNS:,} more" if len(names) > MOST_COLUMNS else ""
    return ", ".join(names[:MOST_COLUMNS]) + more


def classes_text(names: Collection[str], most: int = 10) -> str:
    """Return some names of classes for a message."""
    shown = [name if values_shown() or is_name(name) or _NUMBER.fullmatch(name) else value_text(name) for name in names]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most:,} more" if len(shown) > most else "")


def problem_text(problem: BaseException) -> str:
    """Return the message of an error of Python or a library, without quoted text; "" if it may consist of a value."""
    if values_shown() or isinstance(problem, _WITHOUT_DATA):
        return str(problem)
    return _QUOTED.sub("'...'", str(problem))


def unexpected_text(problem: BaseException) -> str:
    """Return type and message of an error that no code expected; its message only if its type is known to name no data.

    Errors such as KeyError and ValueError quote what they could not use.
    """
    known = isinstance(problem, _WITHOUT_DATA) and not isinstance(problem, UnicodeError)
    return f"{type(problem).__name__}: {problem if known or values_shown() else HINT}"


def traceback_text(problem: BaseException) -> str:
    """Return the traceback of an error and of its causes, as Python prints it, with messages as `unexpected_text`."""
    if values_shown():
        return "".join(traceback.format_exception(problem))
    before = problem.__cause__ or (None if problem.__suppress_context__ else problem.__context__)
    earlier = f"{traceback_text(before)}\nwhile it was handled, another error occurred:\n\n" if before else ""
    stack = "".join(traceback.format_tb(problem.__traceback__))
    return f"{earlier}Traceback (most recent call last):\n{stack}{unexpected_text(problem)}\n"
