"""Output on terminals: width, colours, tables, progress bars. In a pipe or a file nothing is cut or coloured.

Bars and live views are rich's. Tables are our own: rich cuts the end of a cell, but the end of a run's name is its
hash, which distinguishes it from other runs (`shortened`).

NO_COLOR (no-color.org) and --no-color override FORCE_COLOR, which adds colours outside a terminal too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from orchestrator.support.formatting import bytes_text, duration, json_value

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.progress import Progress

SECONDS_BETWEEN = 0.2  # between two updates of a transfer in place, on a terminal
SECONDS_BETWEEN_LINES = 30.0  # between two lines about a transfer, elsewhere
SILENT_SECONDS = 2.0  # duration from which a transfer shows its progress
DEFAULT_COLUMNS = 80  # of a terminal that does not report its width
MIN_COLUMN_WIDTH = 9  # of a shortened cell: fits a state, or a recognisable name
HASH_WIDTH = 9  # a hyphen and eight digits
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
    """Width and colours of a stream."""

    columns: int | None = None
    """Width; None: not a terminal, lines are not cut."""
    colours: bool = False


def forbid_colours(forbidden: bool) -> None:
    """Set whether --no-color was given."""
    global _forbidden
    _forbidden = forbidden


def terminal_of(stream: TextIO | None = None, environ: Mapping[str, str] | None = None) -> Terminal:
    """Return the width and the colours of a stream.

    Args:
        stream: the stream; None: stdout.
        environ: environment variables; None: those of this process.
    """
    stream, environ = stream or sys.stdout, os.environ if environ is None else environ
    is_terminal = stream.isatty()
    return Terminal(_columns(stream, environ) if is_terminal else None, _colours(is_terminal, environ))


def _columns(stream: TextIO, environ: Mapping[str, str]) -> int:
    """Return the value of COLUMNS, or the width of the terminal."""
    width = environ.get("COLUMNS", "")
    with suppress(OSError):
        return (
            int(width)
            if width.isdecimal() and int(width)
            else os.get_terminal_size(stream.fileno()).columns or DEFAULT_COLUMNS
        )
    return DEFAULT_COLUMNS


def _colours(is_terminal: bool, environ: Mapping[str, str]) -> bool:
    if _forbidden or environ.get("NO_COLOR"):
        return False
    if (forced := environ.get("FORCE_COLOR")) is not None:
        return forced not in {"", "0"}
    return is_terminal and environ.get("TERM") != "dumb"


def redraws(stream: TextIO) -> bool:
    """Return whether a stream is a terminal whose cursor can move, so that lines can be redrawn."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in {"dumb", "unknown"}


def console_of(stream: TextIO) -> Console:
    """Return rich's console for a stream, with colours where `terminal_of` has them."""
    from rich.console import Console

    return Console(file=stream, no_color=not terminal_of(stream).colours)


def live_view(stream: TextIO) -> Live:
    """Return a block of text on a terminal that is redrawn in place, cropped to the height of the terminal."""
    from rich.live import Live

    console = console_of(stream)
    return Live(
        console=console, auto_refresh=False, vertical_overflow="crop", redirect_stdout=False, redirect_stderr=False
    )


def show_block(view: Live, text: str) -> None:
    """Redraw a live view with a text, which may have ANSI colours; longer lines are cut."""
    from rich.text import Text

    view.update(Text.from_ansi(text, no_wrap=True, overflow="crop"), refresh=True)


class Painted(str):
    """Text with our own colours; in any other, `aligned` shows escape sequences in place of sending them."""

    __slots__ = ()


def paint(text: str, kind: str, terminal: Terminal) -> str:
    """Return a text in the colour of a kind, or unchanged without colours; unsafe characters of it are escaped."""
    from train_jobs.config.visible import visible_lines  # slow to import, and --help does not need it

    text = visible_lines(text)
    return Painted(f"{CODES[kind]}{text}{RESET}") if terminal.colours else text


def paint_word(text: str, terminal: Terminal) -> str:
    """Return a state or a level in its colour, and any other word unchanged; surrounding blanks are ignored."""
    kind = WORDS.get(text.strip())
    return paint(text, kind, terminal) if kind else text


def paint_head(text: str, terminal: Terminal) -> str:
    """Return a text with a leading `error[KIND]:` or `warning:` in its colour."""
    head, colon, rest = text.partition(":")
    kind = "bad" if head.startswith("error[") else "warn" if head == "warning" else None
    return paint(head + colon, kind, terminal) + rest if kind else text


def table(rows: Iterable[Sequence[str]], header: Sequence[str], terminal: Terminal | None = None) -> str:
    """Return a table with columns as wide as their widest cell; on a narrow terminal the widest columns shrink.

    Args:
        rows: cells.
        header: names of the columns.
        terminal: width and colours; None: those of stdout.
    """
    from train_jobs.config.visible import visible

    terminal = terminal_of() if terminal is None else terminal
    cells = [list(header), *[[visible(cell) for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    spare = None if terminal.columns is None else terminal.columns - 2 * (len(header) - 1)
    # Taking from the widest column first keeps numbers and states readable while names and settings shrink.
    while spare is not None and sum(widths) > spare and max(widths) > MIN_COLUMN_WIDTH:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for place, row in enumerate(cells):
        padded = [shortened(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True)]
        if padded:
            padded[-1] = padded[-1].rstrip()
        states = [name in COLOURED and place > 0 for name in header]
        # Colours are added after padding: escape sequences have no width on the terminal, but count in `ljust`.
        lines.append(
            "  ".join(
                paint_word(cell, terminal) if is_state else cell for cell, is_state in zip(padded, states, strict=True)
            )
        )
    return "\n".join(line.rstrip() for line in lines)


def aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return the rows as indented lines, with the texts aligned in one column."""
    from train_jobs.config.visible import visible

    width = max((len(label) for label, _ in rows), default=0)
    shown = ((label, text if isinstance(text, Painted) else visible(text)) for label, text in rows)
    return [f"  {label:<{width}}  {text}" for label, text in shown]


def shortened(text: str, width: int | None) -> str:
    """Return a text cut in the middle, since both the prefix and the final hash of a name distinguish runs.

    Args:
        text: the text.
        width: maximum number of characters; None: unlimited.
    """
    if width is None or len(text) <= width:
        return text
    end = min(HASH_WIDTH, (width - 3) // 2)
    return f"{text[: width - 3 - end]}...{text[len(text) - end :]}"


def print_document(document: Any, style: str) -> None:
    """Print one JSON or YAML document on stdout; NaN and infinity become null."""
    import json

    document = json_value(document)
    if style == "json":
        print(json.dumps(document, indent=2))
        return
    import yaml

    print(yaml.safe_dump(document, sort_keys=False), end="")


def print_result(style: str, document: Any, text: object) -> None:
    """Print a result on stdout.

    Args:
        style: text, json or yaml.
        document: the result as JSON-safe values, for json and yaml.
        text: the result for humans; None: print nothing.
    """
    if style != "text":
        print_document(document, style)
    elif text is not None:
        write_line(str(text), sys.stdout)


def write_line(text: str, stream: TextIO) -> None:
    """Print a text in which only our own colours are sent to the terminal.

    Every text for people passes here. Names in it are escaped before, by `table`, `aligned` or an error: only those
    know where a name ends.
    """
    from train_jobs.config.visible import visible_styled

    print(visible_styled(text), file=stream, flush=True)


def confirm(question: str, *, fix: str) -> bool:
    """Ask for confirmation on the terminal; return whether the answer is yes.

    Args:
        question: verb and object, without a question mark.
        fix: how to run the command without a confirmation, for the error.

    Raises:
        UsageError: stdin is not a terminal.
    """
    from orchestrator.support.errors import UsageError
    from train_jobs.config.visible import visible

    if not sys.stdin.isatty():
        raise UsageError(f"cannot {question}: confirmation needed, and stdin is not a terminal", fix=fix)
    print(f"{visible(question)}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def hint(text: str) -> None:
    """Print a message on stderr; stdout is reserved for results, which scripts parse."""
    write_line(paint_head(text, terminal_of(sys.stderr)), sys.stderr)


class TransferLine:
    """Progress of a transfer: amount, speed, time left.

    Args:
        stream: where it is printed; on a terminal as rich's bar, redrawn in place.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = redraws(stream)
        self._bar: Progress | None = None
        self._name = ""
        self._began = self._last = 0.0
        self._before = 0  # bytes that existed at the start

    def __call__(self, name: str, done: int, total: int | None) -> None:
        """Show the progress of a file, unless it was shown within the last interval.

        Args:
            name: the file.
            done: bytes so far.
            total: its size in bytes; None: unknown.
        """
        from train_jobs.config.visible import visible

        name = visible(name)
        now = time.monotonic()
        if name != self._name or done < self._before:
            self.end()
            self._name, self._before, self._began, self._last = name, done, now, now
        often = SECONDS_BETWEEN if self._live else SECONDS_BETWEEN_LINES
        if now - self._began < SILENT_SECONDS or (now - self._last < often and done != total):
            return
        self._last = now
        if not self._live:
            write_line(self._text(done, total, now - self._began), self._stream)
            return
        self._bar = self._bar or self._start(total)
        self._bar.update(self._bar.task_ids[0], completed=done, total=total, refresh=True)

    def end(self) -> None:
        """Stop redrawing the bar and start a new line; without a bar do nothing."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _start(self, total: int | None) -> Progress:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        name = TextColumn("{task.description}", markup=False)
        columns = (name, BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn())
        bar = Progress(*columns, console=console_of(self._stream), auto_refresh=False, get_time=time.monotonic)
        bar.add_task(self._name, completed=self._before, total=total)
        bar.start()
        return bar

    def _text(self, done: int, total: int | None, seconds: float) -> str:
        speed = (done - self._before) / seconds  # without the bytes of an earlier attempt, which cost no time now
        amount = bytes_text(done) + (f" of {bytes_text(total)}" if total else "")
        text = f"{self._name}: {amount}, {speed / 1e6:.1f} MB/s"
        return f"{text}, {duration((total - done) / speed)} left" if total and speed > 0 else text
