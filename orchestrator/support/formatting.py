"""Text for humans: facts in lines of at most 80 columns, sizes, durations, counts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

WIDTH = 80
LABEL = 14  # columns of the labels of a plan

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
    for unit, size in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 1):.0f} seconds"


def bytes_text(count: float) -> str:
    """Return a number of bytes in decimal units: `1.5 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def counted(count: int, what: str) -> str:
    """Return a count with its noun: `3 epochs`."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"
