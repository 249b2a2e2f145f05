"""Log files of a run: which ones a query means, their lines from any point on, and the time of each line.

Logs are as the job wrote them, without timestamps. Next to rank-0.log is rank-0.times, with a mark `SECONDS OFFSET` for
each second in which the log grew. All marks have one width, so that a time is found by bisection. Lines beyond the last
mark, and those of a log without marks, count as written when the log was last changed.

A log is read in cells of 64 KiB. A line that fills a whole cell is cut at the cell's end: memory has a bound, and both
directions of reading cut at the same places.
"""

from __future__ import annotations

import heapq
import os
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from io import FileIO
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.log_query import LineSearch, LogBlock, LogQuery, LogSource
from orchestrator.support.errors import NotFoundError

CELL = 64 * 1024  # bytes in one read
MARK_BYTES = 32  # fixed, so that mark N is at byte 32 N and bisection needs no index
LINE = re.compile(rb"[^\n]*\n|[^\n]+")
FIRST_PAUSE, LAST_PAUSE = 0.02, 0.2  # seconds between two reads of logs that do not grow


def choose_sources(run: RunFolder, query: LogQuery) -> list[LogSource]:
    """Return the logs that a query means, whether they exist yet or not.

    Raises:
        NotFoundError: the run has no such rank or node, or the rank is on another node.
    """
    nodes, each = _layout(run)
    if query.node is not None and not 0 <= query.node < nodes:
        raise NotFoundError(f"run {run.name} has no node {query.node}", facts={"nodes": f"0 to {nodes - 1}"})
    chosen = range(nodes) if query.node is None else range(query.node, query.node + 1)
    known = range(chosen.start * each, chosen.stop * each)
    ranks = known if query.ranks is None else sorted(set(query.ranks))
    for rank in ranks:
        if rank not in known:
            owner = f"run {run.name}" if query.node is None else f"node {query.node} of run {run.name}"
            raise NotFoundError(f"{owner} has no rank {rank}", facts={"ranks": f"{known[0]} to {known[-1]}"})
    launcher = [LogSource(None, node, "agent") for node in chosen]
    if query.node is None:  # these two run once for all nodes
        launcher = [LogSource(None, None, "supervisor"), *launcher, LogSource(None, None, "mirror")]
    return [*(launcher if query.launcher else ()), *(LogSource(rank, rank // each) for rank in ranks)]


def _layout(run: RunFolder) -> tuple[int, int]:
    """Return the number of nodes and of ranks on each; of a damaged folder, one node and a rank for each log."""
    try:
        request = run.read_json("request.json")
        return request["nodes"], request["processes_per_node"]
    except (ValueError, KeyError, TypeError):
        return 1, max(len(list(run.logs.glob("rank-*.log"))), 1)


def read_logs(run: RunFolder, sources: list[LogSource], query: LogQuery) -> Iterator[LogBlock]:
    """Yield lines of these logs, several logs merged by time; with `follow`, until the run has finished.

    While it follows, an empty block means that nothing is new at this moment.

    Args:
        run: folder of the run.
        sources: the logs, see `choose_sources`.
        query: which lines of them.
    """
    search = LineSearch(query.grep) if query.grep else None
    with ExitStack() as stack:
        logs = []
        for source in sources:
            log = stack.enter_context(closing(GrowingLog(run, source, timed=len(sources) > 1)))
            log.skip(since=query.since, tail=query.tail, search=search)
            logs.append(log)
        pause = FIRST_PAUSE
        while True:
            # before reading: lines that are written between the read and a later check of the state would be lost
            ended = not query.follow or _ended(run)
            idle = True
            # the oldest first; lines of one second, log by log
            for _, block in heapq.merge(*(log.pending(final=ended) for log in logs), key=itemgetter(0)):
                data = search.keep(block.data) if search else block.data
                if data:
                    idle = False
                    yield LogBlock(data, block.source)
            if ended:
                return
            if idle:
                yield LogBlock(b"")
            pause = min(pause * 1.5, LAST_PAUSE) if idle else FIRST_PAUSE
            time.sleep(pause)


def _ended(run: RunFolder) -> bool:
    try:
        return run.state().state.terminal
    except (OSError, ValueError):  # damaged or deleted: its state will never change
        return True


class GrowingLog:
    """One log that is read as it grows; if it is truncated or replaced, it is read again from its beginning.

    Args:
        run: folder of the run.
        source: writer of the log; its file may not exist yet.
        timed: yield the time of each line, not only that of the last.
    """

    def __init__(self, run: RunFolder, source: LogSource, *, timed: bool) -> None:
        node = "" if source.node is None else f"-{source.node}"
        self._path = run.logs / f"{source.writer}{node}.log" if source.rank is None else run.rank_log(source.rank)
        self._source = source
        self._timed = timed
        self._stream: FileIO | None = None
        self._position = 0
        self._rest = b""  # of a line that has no end yet
        self._seconds = 0.0

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()

    def skip(self, *, since: float | None, tail: int | None, search: LineSearch | None) -> None:
        """Move to the first line written at `since` or later, and from there to the last `tail` lines that match.

        Args:
            since: seconds since the epoch. None: from the beginning.
            tail: number of lines. None: all.
            search: counts only matching lines. None: all lines count.
        """
        if not self._open():
            return
        size = os.fstat(self._descriptor).st_size
        if since is not None:
            offset = offset_since(self._path, since)
            self._position = line_start(self._descriptor, offset) if offset < size else size
        if tail is not None:
            self._position = tail_start(self._descriptor, self._position, size, tail, search)

    def pending(self, *, final: bool) -> Iterator[tuple[float, LogBlock]]:
        """Yield new lines with their time in seconds since the epoch; with `final` also a last line without an end."""
        if self._stream is None and not self._open():
            return
        yield from self._new_blocks()
        if self._replaced():
            yield from self._flush(b"\n")
            self._open()
            yield from self._new_blocks()
        if final:
            yield from self._flush()

    @property
    def _descriptor(self) -> int:
        assert self._stream is not None, "the log does not exist yet"
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
        # by inode, not by size: a new log may already be longer than the old one
        with suppress(FileNotFoundError):  # deleted: the open file has all the lines
            return not os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        return False

    def _new_blocks(self) -> Iterator[tuple[float, LogBlock]]:
        now = os.fstat(self._descriptor)
        if now.st_size < self._position:  # truncated in place: read it again from its beginning
            yield from self._flush(b"\n")
            self._position = 0
        marks = marks_beyond(self._path, self._position) if self._timed else ()
        for mark in chain(marks, [Mark(now.st_mtime, now.st_size)]):
            self._seconds = mark.seconds
            yield from self._read(mark.offset)

    def _read(self, end: int) -> Iterator[tuple[float, LogBlock]]:
        """Yield complete lines up to an offset; bytes after the last line end stay in `_rest`."""
        while self._position < end:
            # Reads end at multiples of CELL, wherever they begin: `_backward` cuts overlong lines at the same offsets,
            # so that --tail and a full read count the same lines.
            to = min(end, (self._position // CELL + 1) * CELL)
            data = os.pread(self._descriptor, to - self._position, self._position)
            if not data:  # truncated at this moment
                return
            self._position += len(data)
            whole = data.rfind(b"\n") + 1
            if whole:
                yield self._seconds, LogBlock(self._rest + data[:whole], self._source)
                self._rest = b""
            self._rest += data[whole:]
            if self._position % CELL == 0 and len(self._rest) >= CELL:
                yield from self._flush()

    def _flush(self, end: bytes = b"") -> Iterator[tuple[float, LogBlock]]:
        rest, self._rest = self._rest, b""
        if rest:
            yield self._seconds, LogBlock(rest + end, self._source)


def line_start(descriptor: int, offset: int) -> int:
    """Return the start of the line that an offset is inside of; the offset itself if a line starts there."""
    for start, lines in _backward(descriptor, 0, offset):
        return offset if lines.endswith(b"\n") else start + lines.rfind(b"\n") + 1
    return offset


def tail_start(descriptor: int, low: int, high: int, count: int, search: LineSearch | None) -> int:
    """Return the start of the last `count` lines that match, between two offsets.

    Args:
        descriptor: of the log.
        low: first offset in bytes; a line starts there.
        high: last offset in bytes.
        count: number of lines.
        search: counts only matching lines. None: all lines count.
    """
    first = high
    if count == 0:
        return first
    for offset, lines in _backward(descriptor, low, high):
        spans = search.spans(lines) if search else (match.span() for match in LINE.finditer(lines))
        starts = [start for start, _ in spans]
        if len(starts) >= count:
            return offset + starts[-count]
        if starts:
            first = offset
        count -= len(starts)
    return first


def _backward(descriptor: int, low: int, high: int) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines with their offsets, the last block first; a line starts at `low`."""
    behind = b""  # already read: the start of the block after this one, up to the end of its first line
    while high > low:
        start = max(low, (high - 1) // CELL * CELL)
        cell = os.pread(descriptor, high - start, start)
        first = cell.find(b"\n") + 1
        if first:
            if lines := cell[first:] + behind:
                yield start + first, lines
            behind = cell[:first]
        elif len(cell) == CELL:  # a line that fills the whole cell is cut at its end, as a forward read does
            if behind:
                yield high, behind
            behind = cell
        else:
            behind = cell + behind
        high = start
    if behind:
        yield low, behind


class Mark(NamedTuple):
    """Size of a log at some moment."""

    seconds: float
    """Since the epoch."""
    offset: int
    """Bytes."""


class LogClock:
    """Writer of the marks of all logs of a folder.

    Args:
        folder: folder of the `*.log`.
        pace_seconds: least time between two marks of one log.
    """

    def __init__(self, folder: Path, pace_seconds: float = 1.0) -> None:
        self._folder, self._pace_seconds = folder, pace_seconds
        self._due = 0.0
        self._written: dict[str, tuple[int, Mark]] = {}  # number of marks of a log, and its last

    def note(self) -> None:
        """Mark the logs that have grown; do nothing if called again too soon."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._pace_seconds
        for log in self._folder.glob("*.log"):
            with suppress(OSError):  # a full disk, for example: a run must not fail because times are missing
                self._note(log, log.stat())

    def _note(self, log: Path, now: os.stat_result) -> None:
        known = self._written.pop(log.name, None)  # if the write fails, the next call reads the disk
        count, last = known or _last_mark(log)
        if now.st_size < last.offset:  # the log was replaced: its marks start again
            count = 0
        if now.st_size != last.offset:
            # bisection needs times that never decrease, and the clock of the machine may be set back
            last = Mark(max(now.st_mtime, last.seconds), now.st_size)
            # seek instead of append: after a crash, a torn or zeroed last mark is overwritten, and the width holds
            with log.with_suffix(".times").open("r+b" if count else "wb") as stream:
                stream.seek(count * MARK_BYTES)
                stream.write(b"%014.3f %016d\n" % last)
            count += 1
        self._written[log.name] = count, last


class LogTimes:
    """Sequence of the marks of one log, each read on access: a log of weeks has many.

    Args:
        descriptor: of the open file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._count = os.fstat(descriptor).st_size // MARK_BYTES
        while self._count and not self[self._count - 1].offset:  # zeros, from a machine that crashed
            self._count -= 1

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Mark:
        seconds, _, offset = os.pread(self._descriptor, MARK_BYTES, index * MARK_BYTES).partition(b" ")
        return Mark(float(seconds), int(offset)) if offset else Mark(0.0, 0)


@contextmanager
def open_times(log: Path) -> Iterator[LogTimes]:
    """Open the marks of a log; a log without marks has an empty sequence of them."""
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(log.with_suffix(".times").open("rb"))
        except FileNotFoundError:
            stream = stack.enter_context(Path(os.devnull).open("rb"))
        yield LogTimes(stream.fileno())


def _last_mark(log: Path) -> tuple[int, Mark]:
    """Return the number of marks of a log, and the last one."""
    with open_times(log) as marks:
        return len(marks), marks[len(marks) - 1] if len(marks) else Mark(0.0, 0)


def marks_beyond(log: Path, offset: int) -> Iterator[Mark]:
    """Yield the marks beyond an offset, the oldest first."""
    with open_times(log) as marks:
        for index in range(bisect_right(marks, offset, key=lambda mark: mark.offset), len(marks)):
            yield marks[index]


def offset_since(log: Path, seconds: float) -> int:
    """Return the offset from which all was written at that time or later; it may be in the middle of a line."""
    with open_times(log) as marks:
        index = bisect_left(marks, seconds, key=lambda mark: mark.seconds)
        before = marks[index - 1].offset if index else 0
        if index < len(marks):
            return before
    # beyond the last mark: those lines count as written when the log was last changed
    now = log.stat()
    return before if now.st_mtime >= seconds else now.st_size
