"""Log query."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class LogQuery:
    """Which lines of a run's logs."""

    ranks: tuple[int, ...] | None = (0,)
    """Of these ranks; None: of all."""
    node: int | None = None
    """Of what runs on this machine only."""
    launcher: bool = False
    """Also of what starts the ranks and watches them."""
    follow: bool = False
    """Go on until the run has ended."""
    tail: int | None = None
    """Of the existing lines of each log, only the last N; with `grep`, of those that match."""
    since: float | None = None
    """Only lines written after this time, seconds since the epoch."""
    grep: re.Pattern[str] | None = None
    """Only lines in which this is found."""

    @property
    def several(self) -> bool:
        """True when it asks for more than one log."""
        return self.ranks is None or len(self.ranks) != 1 or self.launcher


def choose_ranks(
    ranks: Collection[int], all_ranks: bool, *, node: int | None, launcher: bool
) -> tuple[int, ...] | None:
    """`LogQuery.ranks` of what a user said: a node alone means its ranks, the launcher alone none, nothing rank 0."""
    if all_ranks or (node is not None and not ranks and not launcher):
        return None
    return tuple(ranks) or (() if launcher else (0,))


@dataclass(frozen=True)
class LogSource:
    """Who wrote a log."""

    rank: int | None = 0
    """Which rank; None: none of them."""
    node: int | None = 0
    """On which machine; None: on none of the job's."""
    writer: str = "rank"
    """What it is: rank, or agent, supervisor, ... of the launcher."""

    @property
    def label(self) -> str:
        """`0:3` is rank 3 on node 0, `1:agent` what starts the ranks of node 1."""
        who = self.writer if self.rank is None else str(self.rank)
        return who if self.node is None else f"{self.node}:{who}"


@dataclass(frozen=True)
class LogLine:
    """One line, without its line end."""

    text: str
    """What was written; bytes that are not UTF-8 are replaced."""
    rank: int | None = 0
    """Which rank; None: none of them."""
    node: int | None = 0
    """On which machine; None: on none of the job's."""
    writer: str = "rank"
    """Writer of the line, see `LogSource`."""


@dataclass(frozen=True)
class LogBlock:
    """Lines of one log that stand together, as they were written: a log of gigabytes is read in these."""

    data: bytes
    """Whole lines, each with its line end. Of a line of more than 64 KiB a piece, of which the last has the line end.
    Empty: nothing new at this moment, for who follows and wants to say so."""
    source: LogSource = LogSource()
    """Who wrote them."""

    def lines(self) -> Iterator[LogLine]:
        """The lines one by one."""
        source = self.source
        texts = self.data.decode(errors="replace").split("\n")
        if not texts[-1]:
            texts.pop()
        for text in texts:
            yield LogLine(text.removesuffix("\r"), source.rank, source.node, source.writer)
