"""Progress of files that are copied or fetched: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from orchestrator.cli.ui.terminal import console_of, redraws

if TYPE_CHECKING:
    from rich.progress import Progress

SECONDS_BETWEEN = 0.2  # on a terminal, in place
SECONDS_BETWEEN_LINES = 30.0  # elsewhere, a line each
WORTH_SHOWING = 2.0  # seconds that a file may take without any progress


class TransferLine:
    """Shows how far a file is, how fast it comes, and when it will be complete.

    Args:
        stream: where to; a terminal gets rich's bar, redrawn in place.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = redraws(stream)
        self._bar: Progress | None = None
        self._name = ""
        self._began = self._last = 0.0
        self._before = 0  # bytes that were there when it began

    def __call__(self, name: str, done: int, total: int | None) -> None:
        """Show the state of a file, unless that was done a moment ago."""
        now = time.monotonic()
        if name != self._name or done < self._before:
            self.end()
            self._name, self._before, self._began, self._last = name, done, now, now
        often = SECONDS_BETWEEN if self._live else SECONDS_BETWEEN_LINES
        if now - self._began < WORTH_SHOWING or (now - self._last < often and done != total):
            return
        self._last = now
        if not self._live:
            print(self._text(done, total, now - self._began), file=self._stream, flush=True)
            return
        self._bar = self._bar or self._start(total)
        self._bar.update(self._bar.task_ids[0], completed=done, total=total, refresh=True)

    def end(self) -> None:
        """Leave the bar as it is and begin a new line; without a bar do nothing."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _start(self, total: int | None) -> Progress:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn())
        bar = Progress(*columns, console=console_of(self._stream), auto_refresh=False, get_time=time.monotonic)
        bar.add_task(self._name, completed=self._before, total=total)
        bar.start()
        return bar

    def _text(self, done: int, total: int | None, seconds: float) -> str:
        from orchestrator.cli.ui.render import duration
        from orchestrator.support.formatting import bytes_text

        speed = (done - self._before) / seconds
        amount = bytes_text(done) + (f" of {bytes_text(total)}" if total else "")
        text = f"{self._name}: {amount}, {speed / 1e6:.1f} MB/s"
        return f"{text}, {duration((total - done) / speed)} left" if total and speed > 0 else text
