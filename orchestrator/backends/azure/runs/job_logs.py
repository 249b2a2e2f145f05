"""Logs of a run, from the files that Azure keeps of each process: of all its attempts, as they grow."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO

from orchestrator.backends.azure.wire.azure_errors import explained
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.backends.line_search import LineSearch
from orchestrator.backends.log_query import LogBlock, LogQuery, LogSource
from orchestrator.support.errors import NotFoundError, ServiceError
from orchestrator.support.redact import redact

# Rank N of a job of several processes; a job of one has no number.
_RANK = re.compile(r"user_logs/std_log(?:_process_0*(?P<rank>\d+))?\.txt")
PIECE = 4 * 1024 * 1024  # bytes that are asked for at once


@dataclass(frozen=True)
class Layout:
    """Machines and ranks of a run."""

    nodes: int
    each: int
    """Ranks on each machine."""


def choose_sources(name: str, layout: Layout, query: LogQuery) -> list[LogSource]:
    """The ranks that a query is about.

    Raises:
        NotFoundError: the run has no such rank or node, or the rank is on another node.
    """
    if query.node is not None and not 0 <= query.node < layout.nodes:
        raise NotFoundError(f"run {name} has no node {query.node}", facts={"nodes": f"0 to {layout.nodes - 1}"})
    first, last = (0, layout.nodes) if query.node is None else (query.node, query.node + 1)
    there = range(first * layout.each, last * layout.each)
    ranks = there if query.ranks is None else sorted(set(query.ranks))
    for rank in ranks:
        if rank not in there:
            whose = f"run {name}" if query.node is None else f"node {query.node} of run {name}"
            raise NotFoundError(f"{whose} has no rank {rank}", facts={"ranks": f"{there[0]} to {there[-1]}"})
    return [LogSource(rank, rank // layout.each) for rank in ranks]


class JobLogs:
    """The logs of one job, read on and on.

    Args:
        wire: the workspace.
        job: its name there.
        layout: of the run.
    """

    def __init__(self, wire: Wire, job: str, layout: Layout) -> None:
        self._wire = wire
        self._job = job
        self._layout = layout
        self._logs: dict[str, _Log] = {}

    def new(self, sources: Sequence[LogSource], *, launcher: bool, final: bool) -> Iterator[LogBlock]:
        """What was written since the last call.

        Args:
            sources: of these ranks.
            launcher: and of what starts them.
            final: the job has ended: a last line may have no end.
        """
        addresses = self._wire.details(self._job).get("logFiles") or {}
        for path in sorted(addresses):
            source = self._source(path)
            if source in sources or (launcher and source.rank is None):
                log = self._logs.setdefault(path, _Log(source))
                yield from log.new(addresses[path], final=final)

    def _source(self, path: str) -> LogSource:
        match = _RANK.fullmatch(path)
        if match is None:
            return LogSource(None, None, path.rpartition("/")[2].removesuffix(".txt").removesuffix(".log"))
        rank = int(match["rank"] or 0)
        return LogSource(rank, rank // self._layout.each)


class _Log:
    """One file."""

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self._offset = 0
        self._rest = b""

    def new(self, address: str, *, final: bool) -> Iterator[LogBlock]:
        while data := _read(address, self._offset):
            self._offset += len(data)
            whole = self._rest + data
            end = whole.rfind(b"\n") + 1
            self._rest = whole[end:]
            if end:
                yield LogBlock(_clean(whole[:end]), self._source)
            if len(data) < PIECE:
                break
        if final and self._rest:
            rest, self._rest = self._rest, b""
            yield LogBlock(_clean(rest), self._source)


def _read(address: str, start: int) -> bytes:
    """Bytes of a file behind an address that carries its own permission."""
    from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
    from azure.storage.blob import BlobClient

    with explained("log file"), BlobClient.from_blob_url(address) as client:
        try:
            data: bytes = client.download_blob(offset=start, length=PIECE).readall()
            return data
        except ResourceNotFoundError:
            return b""
        except HttpResponseError as problem:
            if problem.status_code == 416:  # nothing new
                return b""
            raise


def _clean(data: bytes) -> bytes:
    """Without the secrets that a job may print: its platform puts signatures into the addresses that it is given."""
    return redact(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def shortened(blocks: Iterator[LogBlock], tail: int, search: LineSearch | None) -> Iterator[LogBlock]:
    """Of blocks that are there already the last lines of each log, of those that fit."""
    kept: dict[LogSource, list[bytes]] = {}
    for block in blocks:
        data = search.keep(block.data) if search else block.data
        lines = kept.setdefault(block.source, [])
        lines += BytesIO(data)  # lines end at \n, as everywhere: a progress bar's \r is in the middle of one
        del lines[: max(0, len(lines) - tail)]
    for source, lines in kept.items():
        if lines:
            yield LogBlock(b"".join(lines), source)


def follow(
    attempts: Callable[[], Sequence[str]],
    logs: Callable[[str], JobLogs],
    ended: Callable[[], bool],
    choose: Sequence[LogSource],
    query: LogQuery,
    *,
    pause: float,
    outage: float,
) -> Iterator[LogBlock]:
    """Lines of a run's logs, attempt after attempt; an empty block whenever there is nothing new.

    Args:
        attempts: names of the run's jobs, the oldest first; may grow.
        logs: the logs of one of them.
        ended: whether the run is over; called once a round, and free to start another attempt.
        choose: which ranks.
        query: what else is asked for.
        pause: seconds between two rounds.
        outage: seconds that Azure may be away from one who follows.

    Raises:
        ServiceError: it was away for longer.
    """
    search = LineSearch(query.grep) if query.grep else None
    known: dict[str, JobLogs] = {}
    read: set[str] = set()  # jobs that have ended, to their ends

    def round_of(over: bool) -> Iterator[LogBlock]:
        jobs = list(attempts())
        for job in [job for job in jobs if job not in read]:
            final = over or job != jobs[-1]
            yield from known.setdefault(job, logs(job)).new(choose, launcher=query.launcher, final=final)
            if final:
                read.add(job)

    first, seen = True, time.monotonic()
    while True:
        idle = over = False
        try:
            over = ended() if query.follow else True
            blocks = round_of(over)
            if first and query.tail is not None:
                blocks = shortened(blocks, query.tail, search)
            idle = True
            for block in blocks:
                data = search.keep(block.data) if search else block.data
                if data:
                    idle = False
                    yield LogBlock(data, block.source)
            first, seen = False, time.monotonic()
        except ServiceError:  # Azure is away for a moment: what was not read is read later
            over = False
            if not query.follow or time.monotonic() - seen > outage:
                raise
        if over:
            return
        if idle:
            yield LogBlock(b"")
        time.sleep(pause)
