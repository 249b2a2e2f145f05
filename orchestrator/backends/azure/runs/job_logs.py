"""Logs of a run, from the files that Azure keeps of each process: of all its attempts, as they grow."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from orchestrator.backends.azure.assets import report
from orchestrator.backends.azure.runs.endings import seconds
from orchestrator.backends.azure.runs.observer import Observer
from orchestrator.backends.azure.runs.record import AzureAttempt
from orchestrator.backends.azure.wire.azure_errors import translated_errors
from orchestrator.backends.log_query import LineSearch, LogBlock, LogQuery, LogSource
from orchestrator.support.errors import NotFoundError, ServiceError
from orchestrator.support.redact import redact
from orchestrator.support.secret_sources import protect_known

# The log of rank N of a job of several processes; that of a single process has no number.
_RANK = re.compile(r"user_logs/std_log(?:_process_0*(?P<rank>\d+))?\.txt")
PIECE = 4 * 1024 * 1024  # bytes in one request
SAVED = "logs"  # folder of the record: JOB/LIFE/PATH, the logs of running jobs as far as they were read


class ReplacedLogError(Exception):
    """A log is shorter than before: Azure runs its job again in place, and overwrites it."""


class RunLogs:
    """Logs of a run's jobs, read as they grow, from the addresses that the run history gives.

    The SDK's own `stream` shows rank 0 only, and fails on datastores without keys.

    A job that Azure requeues overwrites its logs. So the lines that are read of a running job are saved with the
    run's record, which has the logs of the job's former lives.

    Args:
        run: the run.
        query: the wanted ranks and nodes.

    Raises:
        NotFoundError: the run has no such rank or node, or the rank is on another node.
    """

    def __init__(self, run: Observer, query: LogQuery) -> None:
        self._run, self._wire, self._launcher = run, run.wire, query.launcher
        self._saved = run.folder.path / SAVED
        self._each = int(run.request["processes_per_node"])
        most = run.request.get("elastic_nodes") or run.request["nodes"]
        self._ranks = _chosen_ranks(run.folder.name, most, self._each, query)
        self._logs: dict[tuple[str, int], dict[str, _Log]] = {}  # job and life -> path -> log
        self._finished: set[tuple[str, int]] = set()  # jobs and lives whose logs were read to their ends
        _protect_secrets(run.plan["spec"])

    def new(self, attempts: Sequence[AzureAttempt], *, over: bool) -> Iterator[LogBlock]:
        """Yield the new lines since the last call.

        Args:
            attempts: those of the run that Azure has, the oldest first.
            over: all have finished: a last line may have no end.
        """
        for attempt in attempts:
            final = over or attempt.job != attempts[-1].job
            if (attempt.job, len(attempt.lives)) in self._finished:
                continue
            # each time: the addresses contain signatures, which expire, and files of ranks appear one by one
            details = self._wire.details(attempt.job)
            if attempt.job == attempts[-1].job and (start := seconds(details.get("startTimeUtc"))) is not None:
                attempt = self._run.note_start(attempt, start)
            addresses = details.get("logFiles") or {}
            try:
                yield from self._lines(attempt, addresses, final=final)
            except ReplacedLogError:
                known, attempt = attempt, self._run.note_start(attempt, None)
                if len(attempt.lives) == len(known.lives):  # it has finished: no reader saved its former life
                    self._logs.pop((known.job, len(known.lives)))
                yield from self._lines(attempt, addresses, final=final)
            if final:
                self._finished.add((attempt.job, len(attempt.lives)))

    def _lines(self, attempt: AzureAttempt, addresses: Mapping[str, str], *, final: bool) -> Iterator[LogBlock]:
        """Yield the new lines of an attempt, those of its former lives first.

        Raises:
            ReplacedLogError: a log has become shorter.
        """
        for life in range(len(attempt.lives)):
            yield from self._former(attempt.job, life)
        key = attempt.job, len(attempt.lives)
        logs = self._logs.setdefault(key, {})
        for path in filter(self._is_wanted, sorted(addresses)):
            saved = self._path(key, path) if attempt.ended is None else None
            log = logs.setdefault(path, _Log(self._source(path), saved))
            yield from log.new(addresses[path], final=final)

    def _former(self, job: str, life: int) -> Iterator[LogBlock]:
        """Yield what was saved of a former life and not yielded yet."""
        key = job, life
        if key in self._finished:
            return
        self._finished.add(key)
        logs = self._logs.setdefault(key, {})
        folder = self._path(key, "")
        for file in sorted(path for path in folder.glob("**/*") if path.is_file()):
            if self._is_wanted(path := file.relative_to(folder).as_posix()):
                yield from logs.setdefault(path, _Log(self._source(path))).rest(file)

    def _path(self, key: tuple[str, int], path: str) -> Path:
        job, life = key
        return self._saved / job / str(life) / path

    def _is_wanted(self, path: str) -> bool:
        source = self._source(path)
        return source.rank in self._ranks or (self._launcher and source.rank is None)

    def _source(self, path: str) -> LogSource:
        match = _RANK.fullmatch(path)
        if match is None:
            return LogSource(None, None, path.rpartition("/")[2].removesuffix(".txt").removesuffix(".log"))
        rank = int(match["rank"] or 0)
        return LogSource(rank, rank // self._each)


def _protect_secrets(spec: Mapping[str, Any]) -> None:
    """Make `redact` remove the values of a run's secrets, which its job may have printed, and warn of unknown ones."""
    secrets = (spec.get("environment") or {}).get("secrets") or {}
    if unknown := protect_known(secrets, os.environ):
        names = ", ".join(unknown)
        report(f"warning: the values of {names} are not known here: they are shown if the job printed them")


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
    """One file.

    Args:
        source: of its lines.
        saved: where its content is saved; None: nowhere.
    """

    def __init__(self, source: LogSource, saved: Path | None = None) -> None:
        self._source, self._saved = source, saved
        self._offset = 0
        self._rest = b""

    def new(self, address: str, *, final: bool) -> Iterator[LogBlock]:
        """Yield the new lines.

        Raises:
            ReplacedLogError: the file has become shorter.
        """
        while True:
            # One byte that is known already: a file that has nothing new gives it, one that became shorter does not.
            data = self._checked(address) if self._offset else _read(address, 0)
            yield from self._lines(data)
            if len(data) < PIECE - 1:
                break
        if final:
            yield from self._last_line()

    def rest(self, saved: Path) -> Iterator[LogBlock]:
        """Yield what another reader saved of the file beyond what this one has read."""
        yield from self._lines(saved.read_bytes()[self._offset :])
        yield from self._last_line()

    def _checked(self, address: str) -> bytes:
        if not (data := _read(address, self._offset - 1)):
            raise ReplacedLogError
        return data[1:]

    def _lines(self, data: bytes) -> Iterator[LogBlock]:
        whole, start = self._rest + data, self._offset - len(self._rest)
        self._offset += len(data)
        end = whole.rfind(b"\n") + 1
        self._rest = whole[end:]
        if end:
            self._save(whole[:end], start)
            yield self._block(whole[:end])

    def _last_line(self) -> Iterator[LogBlock]:
        if self._rest:
            rest, self._rest = self._rest, b""
            yield self._block(rest)

    def _save(self, lines: bytes, start: int) -> None:
        """Write whole lines at their place in the saved file: every follower of the run writes the same bytes."""
        if self._saved is None:
            return
        self._saved.parent.mkdir(parents=True, exist_ok=True)
        self._saved.touch()  # `r+b` needs a file, and `wb` would empty it
        with self._saved.open("r+b") as stream:
            stream.seek(start)
            stream.writelines(map(_redacted_in_place, BytesIO(lines)))

    def _block(self, data: bytes) -> LogBlock:
        """Return a block without the secrets that a job may print.

        Azure puts signatures into the addresses that it gives a job, and libraries print these addresses.
        """
        # surrogateescape keeps bytes that are not UTF-8 as they are
        text = redact(data.decode(errors="surrogateescape"))
        return LogBlock(text.encode(errors="surrogateescape"), self._source)


def _redacted_in_place(line: bytes) -> bytes:
    """Return a line without secrets and of the same length, so that the lines after it keep their places."""
    text = redact(line[:-1].decode(errors="surrogateescape")).encode(errors="surrogateescape")
    return text.ljust(len(line) - 1)[: len(line) - 1] + b"\n"


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
