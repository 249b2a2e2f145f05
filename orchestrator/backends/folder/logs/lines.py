"""One log file in runs of whole lines: forward for as long as it grows, backward to find where a tail begins.

It is read in cells of 64 KiB. A line that fills a whole cell is cut at the cell's end, so that memory has a bound, and
at places that are the same from either side.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from itertools import chain
from pathlib import Path

from orchestrator.backends.folder.logs.times import Mark, marks_beyond, offset_since
from orchestrator.backends.line_search import LineSearch

CELL = 64 * 1024


class GrowingLog:
    """A log that is read on and on; one that was truncated or replaced is read anew, from its beginning.

    Args:
        path: the file; it may not be there yet.
        timed: tell the time of each line, not only that of the last.
    """

    def __init__(self, path: Path, *, timed: bool) -> None:
        self._path = path
        self._timed = timed
        self._stream: FileIO | None = None
        self._position = 0
        self._rest = b""  # of a line whose end has not come
        self._seconds = 0.0

    def close(self) -> None:
        """Closes the file."""
        if self._stream is not None:
            self._stream.close()

    def skip(self, *, since: float | None, tail: int | None, search: LineSearch | None) -> None:
        """Goes to the first line written at `since` or later, and of those to the last `tail` that fit."""
        if not self._open():
            return
        size = os.fstat(self._descriptor).st_size
        if since is not None:
            offset = offset_since(self._path, since)
            self._position = line_start(self._descriptor, offset) if offset < size else size
        if tail is not None:
            self._position = tail_start(self._descriptor, self._position, size, tail, search)

    def pending(self, *, final: bool) -> Iterator[tuple[float, bytes]]:
        """What is new: seconds since the epoch, lines. With `final` also a last line that has no end."""
        if self._stream is None and not self._open():
            return
        yield from self._grown()
        if self._replaced():
            yield from self._flush(b"\n")
            self._open()
            yield from self._grown()
        if final:
            yield from self._flush()

    @property
    def _descriptor(self) -> int:
        assert self._stream is not None, "the log is not there yet"
        return self._stream.fileno()

    def _open(self) -> bool:
        try:
            stream = FileIO(self._path)
        except FileNotFoundError:
            return False
        self.close()
        self._stream, self._position = stream, 0
        return True

    def _replaced(self) -> bool:
        with suppress(FileNotFoundError):  # deleted: what is open is all there is
            return not os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        return False

    def _grown(self) -> Iterator[tuple[float, bytes]]:
        now = os.fstat(self._descriptor)
        if now.st_size < self._position:
            yield from self._flush(b"\n")
            self._position = 0
        marks = marks_beyond(self._path, self._position) if self._timed else ()
        for mark in chain(marks, [Mark(now.st_mtime, now.st_size)]):
            self._seconds = mark.seconds
            for lines in self._read(mark.offset):
                yield self._seconds, lines

    def _read(self, end: int) -> Iterator[bytes]:
        """Whole lines up to an offset; what is behind the last line's end waits."""
        while self._position < end:
            to = min(end, (self._position // CELL + 1) * CELL)
            data = os.pread(self._descriptor, to - self._position, self._position)
            if not data:  # truncated at this moment
                return
            self._position += len(data)
            whole = data.rfind(b"\n") + 1
            if whole:
                yield self._rest + data[:whole]
                self._rest = data[whole:]
            else:
                self._rest += data
            if self._position % CELL == 0 and len(self._rest) >= CELL:
                yield from (lines for _, lines in self._flush())

    def _flush(self, end: bytes = b"") -> Iterator[tuple[float, bytes]]:
        rest, self._rest = self._rest, b""
        if rest:
            yield self._seconds, rest + end


def line_start(descriptor: int, offset: int) -> int:
    """Where the line begins in whose middle an offset is; the offset itself, if a line begins there."""
    for start, lines in _backward(descriptor, 0, offset):
        return offset if lines.endswith(b"\n") else start + lines.rfind(b"\n") + 1
    return offset


def tail_start(descriptor: int, low: int, high: int, count: int, search: LineSearch | None) -> int:
    """Where the last `count` lines that fit begin, between two offsets of which `low` is a line's beginning."""
    first = high
    if count == 0:
        return first
    for offset, lines in _backward(descriptor, low, high):
        starts = [start for start, _ in search.spans(lines)] if search else _line_starts(lines)
        if len(starts) >= count:
            return offset + starts[-count]
        if starts:
            first = offset
        count -= len(starts)
    return first


def _line_starts(lines: bytes) -> list[int]:
    starts, start = [0], lines.find(b"\n") + 1
    while 0 < start < len(lines):
        starts.append(start)
        start = lines.find(b"\n", start) + 1
    return starts


def _backward(descriptor: int, low: int, high: int) -> Iterator[tuple[int, bytes]]:
    """Runs of whole lines with their offsets, the last first; `low` is a line's beginning."""
    behind = b""  # the beginning of the run that comes next, read already: up to its first line's end
    while high > low:
        start = max(low, (high - 1) // CELL * CELL)
        cell = os.pread(descriptor, high - start, start)
        first = cell.find(b"\n") + 1
        if first:
            if lines := cell[first:] + behind:
                yield start + first, lines
            behind = cell[:first]
        elif len(cell) == CELL:  # the line is cut at this cell's end
            if behind:
                yield high, behind
            behind = cell
        else:
            behind = cell + behind
        high = start
    if behind:
        yield low, behind
