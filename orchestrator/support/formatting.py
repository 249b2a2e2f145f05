"""Facts as lines of at most 80 columns: a label, and beside it a text that is wrapped."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

WIDTH = 80


def fact_lines(rows: Iterable[tuple[str, str]], *, label: int) -> list[str]:
    """Label and text of each row, indented by two.

    Args:
        rows: a label that is empty goes on with the one before.
        label: columns up to the texts.
    """
    lines = []
    for name, text in rows:
        lead = f"  {name:<{label - 2}}"
        lines += textwrap.wrap(text, WIDTH, initial_indent=lead, subsequent_indent=" " * label, break_on_hyphens=False)
    return lines
