"""Text for humans: facts in lines of at most 80 columns, sizes, durations, counts, money."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Iterable
from typing import Any

WIDTH = 80
MINUTE, HOUR, DAY = 60, 3600, 86_400
LABEL = 14  # columns of the labels of a plan
LARGEST_PLAIN = 1e7  # larger scores are shown in scientific notation

Rows = Iterable[tuple[str, str]]
"""Label and text; an empty label continues the row above."""


def fact_lines(rows: Rows, *, label: int) -> list[str]:
    """Return label and text of each row, indented by two columns.

    Args:
        rows: label and text.
        label: columns before the texts.
    """
    lines = []
    for name, text in rows:
        lead = f"  {name:<{label - 2}}"
        lines += textwrap.wrap(text, WIDTH, initial_indent=lead, subsequent_indent=" " * label, break_on_hyphens=False)
    return lines


def wrapped(name: str, rows: Rows) -> str:
    """Return a name and below it its rows, at most 80 columns wide."""
    return "\n".join([name, *fact_lines(rows, label=LABEL)])


def duration_text(seconds: float) -> str:
    """Return a rounded duration: `3 minutes`."""
    for unit, size in (("days", DAY), ("hours", HOUR), ("minutes", MINUTE)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return counted(round(max(seconds, 1)), "second")


def bytes_text(count: float) -> str:
    """Return a number of bytes in decimal units: `1.5 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun: `1 file`, `1,204 files`.

    Args:
        number: the count.
        noun: its noun in the singular.
        plural: the plural. None: the noun with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def count(number: int) -> str:
    """Return a count in at most five figures: `7038`, `100k`, `1.5M`."""
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if number >= 100_000 and number >= size:
            return f"{number / size:.4g}{unit}"
    return str(number)


def score_text(value: float) -> str:
    """Return a score or a loss: `0.8934`, `1.798e+308`, `nan`."""
    return f"{value:.4f}" if abs(value) < LARGEST_PLAIN else f"{value:.4g}"


def json_value(value: Any) -> Any:
    """Return a document with None for the numbers that JSON lacks: NaN and infinity."""
    if isinstance(value, dict):
        return {key: json_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def duration(seconds: float) -> str:
    """Return the two largest units: `2 d 3 h`, `1 h 02 min`, `4 min 05 s`, `12 s`."""
    whole = max(0, round(seconds))
    if whole >= DAY:
        return f"{whole // DAY} d {whole % DAY // HOUR} h"
    if whole >= HOUR:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE:02d} min"
    if whole >= MINUTE:
        return f"{whole // MINUTE} min {whole % MINUTE:02d} s"
    return f"{whole} s"


def ago(seconds: float) -> str:
    """Return the time since a moment, in one unit: `3 min ago`, `12 d ago`."""
    passed = max(time.time() - seconds, 0)
    for unit, size in (("d", DAY), ("h", HOUR), ("min", MINUTE)):
        if passed >= size:
            return f"{int(passed // size)} {unit} ago"
    return f"{int(passed)} s ago"


def when(seconds: float) -> str:
    """Return a moment in local time: `2025-11-21 11:39:00`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def money(usd: float) -> str:
    """Return an amount of money: `$0.42`, `$1,234`, `<$0.01`."""
    if 0 < usd < 0.005:
        return "<$0.01"
    return f"${usd:,.2f}" if usd < 1000 else f"${usd:,.0f}"
