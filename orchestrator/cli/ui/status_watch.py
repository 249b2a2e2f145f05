"""A run's status, again and again until it has ended: in place on a terminal, a block for each change elsewhere."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, TextIO

from orchestrator.cli.ui.render import next_commands, print_document, status_text

if TYPE_CHECKING:
    from orchestrator.run import Run
    from orchestrator.runs.status import RunStatus

SECONDS = 1.0
TICKING = {"node_hours", "cost"}  # these grow while nothing happens


def watch(run: Run, stream: TextIO, style: str) -> int:
    """Shows how a run stands until it has ended; returns 0 however it did.

    With a style other than text only the last status is printed: stdout stays one document.
    """
    screen = Screen(stream) if stream.isatty() else None
    shown: RunStatus | None = None
    while True:
        status = run.status()
        if style == "text" and screen:
            screen.show(status_text(status), last=status.state.terminal)
        elif style == "text" and (shown is None or changed(shown, status)):
            print(status_text(status), end="\n\n" if not status.state.terminal else "\n", file=stream, flush=True)
            shown = status
        if status.state.terminal:
            break
        time.sleep(SECONDS)
    if style != "text":
        print_document(status.as_dict(), style)
    else:
        next_commands(status)
    return 0


def changed(before: RunStatus, now: RunStatus) -> bool:
    """Whether anything but time went on between two looks."""
    return before.model_dump(exclude=TICKING) != now.model_dump(exclude=TICKING)


class Screen:
    """A block of text that takes the place of the one before it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines = 0

    def show(self, text: str, *, last: bool = False) -> None:
        """Draws a block over the one before; what does not fit is cut, for it could not be drawn over, but the last."""
        columns, rows = shutil.get_terminal_size()
        lines = text.splitlines() if last else [line[:columns] for line in text.splitlines()[: rows - 1]]
        back = f"\x1b[{self._lines}A" if self._lines else ""
        self._stream.write(back + "\r\x1b[J" + "\n".join(lines) + "\n")
        self._stream.flush()
        self._lines = len(lines)
