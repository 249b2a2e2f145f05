"""What a stream is to its reader: how wide, and whether in colours. In a pipe or a file nothing is cut or coloured.

Bars and views that are redrawn are rich's. Tables are ours: rich cuts cells at their end, and the hash at the end of a
run's name is what tells it from others (`shortened`).

NO_COLOR (no-color.org) and --no-color win over FORCE_COLOR, which colours what is no terminal too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

USUAL = 80  # columns of a terminal that does not say
NARROWEST = 9  # of a column that had to give way: a state, or a name that still tells something
HASH_WIDTH = 9  # of a hyphen and eight digits
RESET = "\x1b[0m"
CODES = {"good": "\x1b[32m", "bad": "\x1b[1;31m", "warn": "\x1b[33m", "busy": "\x1b[36m", "calm": "\x1b[2m"}
WORDS = {
    **dict.fromkeys(("completed", "ok"), "good"),
    **dict.fromkeys(("failed", "fail"), "bad"),
    **dict.fromkeys(("preempted", "stopped", "warn"), "warn"),
    **dict.fromkeys(("running", "starting"), "busy"),
    **dict.fromkeys(("queued", "cancelled"), "calm"),
}
COLOURED = ("STATE",)  # columns of tables
_forbidden = False


class Terminal(NamedTuple):
    """What there is to write to."""

    columns: int | None = None
    """Width; None: any, it is no terminal."""
    colours: bool = False


def forbid_colours(forbidden: bool) -> None:
    """Whether --no-color was given, from now on."""
    global _forbidden
    _forbidden = forbidden


def terminal_of(stream: TextIO | None = None, environ: Mapping[str, str] | None = None) -> Terminal:
    """What a stream is.

    Args:
        stream: None: stdout.
        environ: environment variables; None: those of this process.
    """
    stream, environ = stream or sys.stdout, os.environ if environ is None else environ
    is_terminal = stream.isatty()
    return Terminal(_columns(stream, environ) if is_terminal else None, _colours(is_terminal, environ))


def _columns(stream: TextIO, environ: Mapping[str, str]) -> int:
    """As COLUMNS says, or the terminal itself."""
    said = environ.get("COLUMNS", "")
    with suppress(OSError):
        return int(said) if said.isdecimal() and int(said) else os.get_terminal_size(stream.fileno()).columns or USUAL
    return USUAL


def _colours(is_terminal: bool, environ: Mapping[str, str]) -> bool:
    if _forbidden or environ.get("NO_COLOR"):
        return False
    if (forced := environ.get("FORCE_COLOR")) is not None:
        return forced not in {"", "0"}
    return is_terminal and environ.get("TERM") != "dumb"


def redraws(stream: TextIO) -> bool:
    """Return whether what was drawn can be drawn over: on a terminal that moves its cursor."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in {"dumb", "unknown"}


def console_of(stream: TextIO) -> Console:
    """Return rich's console for a stream, with colours where `terminal_of` has them."""
    from rich.console import Console

    return Console(file=stream, no_color=not terminal_of(stream).colours)


def live_view(stream: TextIO) -> Live:
    """Return a block of text on a terminal that its next version replaces; it never outgrows the terminal."""
    from rich.live import Live

    console = console_of(stream)
    return Live(
        console=console, auto_refresh=False, vertical_overflow="crop", redirect_stdout=False, redirect_stderr=False
    )


def show_block(view: Live, text: str) -> None:
    """Draw a text, which may have ANSI colours, over the one before; longer lines are cut."""
    from rich.text import Text

    view.update(Text.from_ansi(text, no_wrap=True, overflow="crop"), refresh=True)


def paint(text: str, kind: str, terminal: Terminal) -> str:
    """Text in the colour of a kind, where there are colours."""
    return f"{CODES[kind]}{text}{RESET}" if terminal.colours else text


def paint_word(text: str, terminal: Terminal) -> str:
    """A state or a level in its colour; any other word as it is. Blanks around it count for nothing."""
    kind = WORDS.get(text.strip())
    return paint(text, kind, terminal) if kind else text


def paint_head(text: str, terminal: Terminal) -> str:
    """`error[KIND]:` and `warning:` at the beginning of a text in their colours."""
    head, colon, rest = text.partition(":")
    kind = "bad" if head.startswith("error[") else "warn" if head == "warning" else None
    return paint(head + colon, kind, terminal) + rest if kind else text


def table(rows: Iterable[Sequence[str]], header: Sequence[str], terminal: Terminal | None = None) -> str:
    """Columns as wide as their widest cell; where the lines would not fit the terminal, the widest columns give way.

    Args:
        rows: cells.
        header: names of the columns.
        terminal: None: stdout.
    """
    terminal = terminal_of() if terminal is None else terminal
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    spare = None if terminal.columns is None else terminal.columns - 2 * (len(header) - 1)
    while spare is not None and sum(widths) > spare and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for place, row in enumerate(cells):
        padded = [shortened(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True)]
        if padded:
            padded[-1] = padded[-1].rstrip()
        states = [name in COLOURED and place > 0 for name in header]
        lines.append(
            "  ".join(
                paint_word(cell, terminal) if is_state else cell for cell, is_state in zip(padded, states, strict=True)
            )
        )
    return "\n".join(line.rstrip() for line in lines)


def shortened(text: str, width: int | None) -> str:
    """Cut in the middle: how a name begins and the hash that it ends with both tell runs apart. None: as it is."""
    if width is None or len(text) <= width:
        return text
    end = min(HASH_WIDTH, (width - 3) // 2)
    return f"{text[: width - 3 - end]}...{text[len(text) - end :]}"


def print_document(document: Any, style: str) -> None:
    """One JSON or YAML document on stdout."""
    import json

    if style == "json":
        print(json.dumps(document, indent=2))
        return
    import yaml

    print(yaml.safe_dump(document, sort_keys=False), end="")


def print_result(style: str, document: Any, text: Callable[[], object]) -> None:
    """Print a result on stdout: `text()` in the style `text`, else the document."""
    if style == "text":
        print(text())
    else:
        print_document(document, style)


def hint(text: str) -> None:
    """Anything that is not the result."""
    print(paint_head(text, terminal_of(sys.stderr)), file=sys.stderr, flush=True)
