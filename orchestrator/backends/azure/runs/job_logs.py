"""Logs of a run, from the files that Azure keeps of each process: of all its attempts, as they grow."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO

from orchestrator.backends.azure.runs.observer import Observer
from orchestrator.backends.azure.wire.azure_errors import translated_errors
from orchestrator.backends.log_query import LineSearch, LogBlock, LogQuery, LogSource
from orchestrator.support.errors import NotFoundError, ServiceError
from orchestrator.support.redact import redact

# The log of rank N of a job of several processes; that of a single process has no number.
_RANK = re.compile(r"user_logs/std_log(?:_process_0*(?P<rank>\d+))?\.txt")
PIECE = 4 * 1024 * 1024  # bytes in one request


class RunLogs:
    """Logs of a run's jobs, read as they grow, from the addresses that the run history gives.

    The SDK's own `stream` shows rank 0 only, and fails on datastores without keys.

    Args:
        run: the run.
        query: the wanted ranks and nodes.

    Raises:
        NotFoundError: the run has no such rank or node, or the rank is on another node.
    """

    def __init__(self, run: Observer, query: LogQuery) -> None:
        self._wire, self._launcher = run.wire, query.launcher
        self._each = int(run.request["processes_per_node"])
        self._ranks = _chosen_ranks(run.folder.name, run.request["nodes"], self._each, query)
        self._logs: dict[tuple[str, str], _Log] = {}
        self._finished: set[str] = set()  # jobs whose logs were read to their ends

    def new(self, jobs: Sequence[str], *, over: bool) -> Iterator[LogBlock]:
        """Yield the new lines since the last call.

        Args:
            jobs: names of the run's jobs, the oldest first.
            over: all have finished: a last line may have no end.
        """
        for job in [job for job in jobs if job not in self._finished]:
            final = over or job != jobs[-1]
            # each time: the addresses contain signatures, which expire, and files of ranks appear one by one
            addresses = self._wire.details(job).get("logFiles") or {}
            for path in sorted(addresses):
                source = self._source(path)
                if source.rank in self._ranks or (self._launcher and source.rank is None):
                    yield from self._logs.setdefault((job, path), _Log(source)).new(addresses[path], final=final)
            if final:
                self._finished.add(job)

    def _source(self, path: str) -> LogSource:
        match = _RANK.fullmatch(path)
        if match is None:
            return LogSource(None, None, path.rpartition("/")[2].removesuffix(".txt").removesuffix(".log"))
        rank = int(match["rank"] or 0)
        return LogSource(rank, rank // self._each)


def _chosen_ranks(name: str, nodes: int, each: int, query: LogQuery) -> Sequence[int]:
    if query.node is not None and not 0 <= query.node < nodes:
        raise NotFoundError(f"run {name} has no node {query.node}", facts={"nodes": f"0 to {nodes - 1}"})
    first, last = (0, nodes) if query.node is None else (query.node, query.node + 1)
    known = range(first * each, last * each)
    for rank in sorted(query.ranks or ()):
        if rank not in known:
            whose = f"run {name}" if query.node is None else f"node {query.node} of run {name}"
            raise NotFoundError(f"{whose} has no rank {rank}", facts={"ranks": f"{known[0]} to {known[-1]}"})
    return known if query.ranks is None else query.ranks


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
                yield self._block(whole[:end])
            if len(data) < PIECE:
                break
        if final and self._rest:
            rest, self._rest = self._rest, b""
            yield self._block(rest)

    def _block(self, data: bytes) -> LogBlock:
        """Return a block without the secrets that a job may print.

        Azure puts signatures into the addresses that it gives a job, and libraries print these addresses.
        """
        # surrogateescape keeps bytes that are not UTF-8 as they are
        text = redact(data.decode(errors="surrogateescape"))
        return LogBlock(text.encode(errors="surrogateescape"), self._source)


def _read(address: str, start: int) -> bytes:
    """Return bytes of a file by an address that includes the permission to read it; empty if there are no new ones."""
    from azure.core.exceptions import HttpResponseError
    from azure.storage.blob import BlobClient

    with translated_errors("log file"), BlobClient.from_blob_url(address) as client:
        try:
            return bytes(client.download_blob(offset=start, length=PIECE).readall())
        except HttpResponseError as problem:
            if problem.status_code in {404, 416}:  # not written yet, or nothing new
                return b""
            raise


def follow(
    new: Callable[[bool], Iterator[LogBlock]],
    ended: Callable[[], bool],
    query: LogQuery,
    *,
    pause: float,
    outage: float,
) -> Iterator[LogBlock]:
    """Yield lines of a run's logs, attempt after attempt; an empty block whenever there is nothing new.

    Args:
        new: yields the new lines since the last call; its argument is whether the run is over.
        ended: whether the run is over; called once a round, and may start another attempt.
        query: which lines, and whether to continue until the run has finished.
        pause: seconds between two rounds.
        outage: longest outage of Azure in seconds that a follower tolerates.

    Raises:
        ServiceError: the outage lasted longer.
    """
    search = LineSearch(query.grep) if query.grep else None
    first, answered = True, time.monotonic()
    while True:
        idle = over = False
        try:
            # before reading, so that the last round reads lines that were written just before the end
            over = ended() if query.follow else True
            blocks = new(over) if search is None else _matching(new(over), search)
            if first and query.tail is not None:
                blocks = _last_lines(blocks, query.tail)
            idle = True
            for block in blocks:
                idle = False
                yield block
            first, answered = False, time.monotonic()
        except ServiceError:  # an outage: offsets are kept, and the next round reads the missing lines
            over = False
            if not query.follow or time.monotonic() - answered > outage:
                raise
        if over:
            return
        if idle:
            yield LogBlock(b"")
        time.sleep(pause)


def _matching(blocks: Iterator[LogBlock], search: LineSearch) -> Iterator[LogBlock]:
    for block in blocks:
        if data := search.keep(block.data):
            yield LogBlock(data, block.source)


def _last_lines(blocks: Iterator[LogBlock], tail: int) -> Iterator[LogBlock]:
    """Yield the last lines of each log."""
    kept: dict[LogSource, list[bytes]] = {}
    for block in blocks:
        lines = kept.setdefault(block.source, [])
        lines += BytesIO(block.data)  # lines end at \n, as everywhere: a progress bar's \r is inside one
        del lines[: max(0, len(lines) - tail)]
    yield from (LogBlock(b"".join(lines), source) for source, lines in kept.items() if lines)
