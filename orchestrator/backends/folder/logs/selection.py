"""Which logs a query is about, and their lines: from anywhere, for as long as the run goes on, in bounded memory."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from operator import itemgetter
from pathlib import Path

from orchestrator.backends.folder.logs.lines import GrowingLog
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.line_search import LineSearch
from orchestrator.backends.log_query import LogBlock, LogQuery, LogSource
from orchestrator.support.errors import NotFoundError

FIRST_PAUSE, LAST_PAUSE = 0.02, 0.2  # seconds between two looks at logs that do not grow


def choose_sources(run: RunFolder, query: LogQuery) -> list[LogSource]:
    """The logs that a query is about, whether they are there yet or not.

    Raises:
        NotFoundError: the run has no such rank or node, or the rank is on another node.
    """
    nodes, each = _layout(run)
    if query.node is not None and not 0 <= query.node < nodes:
        raise NotFoundError(f"run {run.name} has no node {query.node}", facts={"nodes": f"0 to {nodes - 1}"})
    where = range(nodes) if query.node is None else range(query.node, query.node + 1)
    there = range(where.start * each, where.stop * each)
    ranks = there if query.ranks is None else sorted(set(query.ranks))
    for rank in ranks:
        if rank not in there:
            whose = f"run {run.name}" if query.node is None else f"node {query.node} of run {run.name}"
            raise NotFoundError(f"{whose} has no rank {rank}", facts={"ranks": f"{there[0]} to {there[-1]}"})
    return [*(_launcher(where, query) if query.launcher else []), *(LogSource(rank, rank // each) for rank in ranks)]


def _launcher(where: range, query: LogQuery) -> list[LogSource]:
    agents = [LogSource(None, node, "agent") for node in where]
    if query.node is not None:
        return agents
    return [LogSource(None, None, "supervisor"), *agents, LogSource(None, None, "mirror")]


def _layout(run: RunFolder) -> tuple[int, int]:
    """Nodes, and ranks on each; of a damaged folder, as many as there are logs of."""
    try:
        request = run.read_json("request.json")
        return request["nodes"], request["processes_per_node"]
    except (ValueError, KeyError, TypeError):
        return 1, max(len(list(run.logs.glob("rank-*.log"))), 1)


def _path(run: RunFolder, source: LogSource) -> Path:
    if source.rank is not None:
        return run.rank_log(source.rank)
    return run.logs / (source.writer + ("" if source.node is None else f"-{source.node}") + ".log")


def read_logs(run: RunFolder, sources: list[LogSource], query: LogQuery) -> Iterator[LogBlock]:
    """Lines of these logs, of several by their time; following, to the end of the run, when all is read.

    While it follows, an empty block says that there is nothing new at this moment.
    """
    search = LineSearch(query.grep) if query.grep else None
    with ExitStack() as stack:
        logs = []
        for source in sources:
            log = stack.enter_context(closing(GrowingLog(_path(run, source), timed=len(sources) > 1)))
            log.skip(since=query.since, tail=query.tail, search=search)
            logs.append((source, log))
        pause = FIRST_PAUSE
        while True:
            ended = not query.follow or _ended(run)  # looked up first: all it wrote is there to be read by then
            idle = True
            for block in _by_time(logs, final=ended):
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
        return run.read_state().state.terminal
    except (OSError, ValueError):  # damaged or deleted: nobody will ever say that it has ended
        return True


def _by_time(logs: list[tuple[LogSource, GrowingLog]], *, final: bool) -> Iterator[LogBlock]:
    """What is new in all of them, the oldest first; what came in one second, log by log."""
    pending = [_with_source(log.pending(final=final), source) for source, log in logs]
    return (block for _, block in heapq.merge(*pending, key=itemgetter(0)))


def _with_source(pending: Iterator[tuple[float, bytes]], source: LogSource) -> Iterator[tuple[float, LogBlock]]:
    return ((seconds, LogBlock(data, source)) for seconds, data in pending)
