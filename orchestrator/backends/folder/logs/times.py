"""When a log grew: beside rank-0.log lies rank-0.times, with a line `SECONDS OFFSET` for each second in which it did.

The logs stay as the job wrote them, without times of ours; the marks say what was written by when. All are of one
width, so that a time is found by bisection. What lies beyond the last mark, or has none, counts as written when the log
was last changed.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

MARK_BYTES = 32
PACE_SECONDS = 1.0


class Mark(NamedTuple):
    """What a log had by some moment."""

    seconds: float
    """Since the epoch."""
    offset: int
    """Bytes."""


class LogClock:
    """Writes the marks of all logs of a folder.

    Args:
        folder: where `*.log` are or will be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._due = 0.0
        self._written: dict[str, tuple[int, Mark]] = {}  # number of marks of a log, and its last

    def note(self) -> None:
        """Marks the logs that have grown; does nothing when called again within a second."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + PACE_SECONDS
        for log in self._folder.glob("*.log"):
            with suppress(OSError):  # a full disk, say: a run shall not fail for want of times
                self._note(log, log.stat())

    def _note(self, log: Path, now: os.stat_result) -> None:
        known = self._written.pop(log.name, None)
        count, last = known or self._read_last(log)
        if now.st_size < last.offset:  # begun anew, so that the marks are of another log
            count = 0
        if now.st_size != last.offset:
            last = Mark(max(now.st_mtime, last.seconds), now.st_size)
            with log.with_suffix(".times").open("r+b" if count else "wb") as stream:
                stream.seek(count * MARK_BYTES)
                stream.write(b"%014.3f %016d\n" % last)
            count += 1
        self._written[log.name] = count, last

    def _read_last(self, log: Path) -> tuple[int, Mark]:
        with open_times(log) as marks:
            return len(marks), marks[len(marks) - 1] if len(marks) else Mark(0.0, 0)


class LogTimes:
    """The marks of one log, each read when it is asked for: a log of weeks has many.

    Args:
        descriptor: of the open file; None: there is no mark.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._count = 0 if descriptor is None else os.fstat(descriptor).st_size // MARK_BYTES
        while self._count and not self[self._count - 1].offset:  # zeros, from a machine that went down
            self._count -= 1

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Mark:
        assert self._descriptor is not None, "there is no mark"
        seconds, _, offset = os.pread(self._descriptor, MARK_BYTES, index * MARK_BYTES).partition(b" ")
        return Mark(float(seconds), int(offset)) if offset else Mark(0.0, 0)


@contextmanager
def open_times(log: Path) -> Iterator[LogTimes]:
    """The marks of a log; none, where nobody wrote any."""
    try:
        stream = log.with_suffix(".times").open("rb")
    except FileNotFoundError:
        yield LogTimes(None)
        return
    with stream:
        yield LogTimes(stream.fileno())


def marks_beyond(log: Path, offset: int) -> Iterator[Mark]:
    """Marks of what was written behind an offset, the oldest first."""
    with open_times(log) as marks:
        for index in range(bisect_right(marks, offset, key=lambda mark: mark.offset), len(marks)):
            yield marks[index]


def offset_since(log: Path, seconds: float) -> int:
    """The offset behind which all was written at that time or later; it may be in the middle of a line."""
    with open_times(log) as marks:
        index = bisect_left(marks, seconds, key=lambda mark: mark.seconds)
        before = marks[index - 1].offset if index else 0
        if index < len(marks):
            return before
    now = log.stat()
    return before if now.st_mtime >= seconds else now.st_size
