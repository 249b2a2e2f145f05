"""Which lines of a run's logs a user asks for, the lines as backends return them, and the search for an expression."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

LEADING_FLAGS = re.compile(r"\(\?[aimu]+\)")
SPECIAL = set(r".^$*+?{}[]()\\")
# Anything that may match past the end of a line, or look beyond it. A false alarm costs only time, since the pattern is
# then tried line by line; a missed one would find text that spans two lines.
REACHES_OUT = re.compile(r"[\x00-\x1f]|\\(?![dwbS]|[^\w\s])|\[\^|\(\?(?!:)")
Span = tuple[int, int]


@dataclass(frozen=True)
class LogQuery:
    """Which lines of a run's logs."""

    ranks: tuple[int, ...] | None = (0,)
    """Ranks; None: all."""
    node: int | None = None
    """Only what runs on this machine; None: all machines."""
    launcher: bool = False
    """Also the logs of what starts and watches the ranks."""
    follow: bool = False
    """Continue until the run has finished."""
    tail: int | None = None
    """Of the existing lines of each log, only the last N; with `grep`, of those that match."""
    since: float | None = None
    """Only lines written after this time, seconds since the epoch."""
    grep: re.Pattern[str] | None = None
    """Only lines that match this expression."""

    @property
    def several(self) -> bool:
        """True when it asks for more than one log."""
        return self.ranks is None or len(self.ranks) != 1 or self.launcher


def choose_ranks(
    ranks: Collection[int], all_ranks: bool, *, node: int | None, launcher: bool
) -> tuple[int, ...] | None:
    """Return `LogQuery.ranks` for a user's flags.

    A node alone means its ranks, the launcher alone no rank, and no flag at all rank 0.

    Args:
        ranks: the given ranks; empty: none was given.
        all_ranks: every rank.
        node: the given node; None: none was given.
        launcher: the logs of agents and supervisor.
    """
    if all_ranks or (node is not None and not ranks and not launcher):
        return None
    return tuple(ranks) or (() if launcher else (0,))


@dataclass(frozen=True)
class LogSource:
    """The writer of a log."""

    rank: int | None = 0
    """Its rank; None: it is not a rank."""
    node: int | None = 0
    """Its machine; None: none of the job's."""
    writer: str = "rank"
    """Its role: rank, or agent, supervisor, ... of the launcher."""

    @property
    def label(self) -> str:
        """`0:3` is rank 3 on node 0, `1:agent` what starts the ranks of node 1."""
        who = self.writer if self.rank is None else str(self.rank)
        return who if self.node is None else f"{self.node}:{who}"


@dataclass(frozen=True)
class LogLine:
    """One line, without its line end, and its writer, see `LogSource`."""

    text: str
    """The line; bytes that are not UTF-8 are replaced."""
    rank: int | None = 0
    """Rank of the writer; None: it is not a rank."""
    node: int | None = 0
    """Machine of the writer; None: none of the job's."""
    writer: str = "rank"
    """What the writer is."""


@dataclass(frozen=True)
class LogBlock:
    """Consecutive lines of one log, as they were written: a log of gigabytes is read in blocks."""

    data: bytes
    """Whole lines, each with its line end. A line of more than 64 KiB comes in pieces; the last has the line end.
    Empty: nothing new at this moment, for a follower that wants to show it."""
    source: LogSource = LogSource()
    """Their writer."""

    def lines(self) -> Iterator[LogLine]:
        """Yield the lines one by one."""
        texts = self.data.decode(errors="replace").split("\n")
        for text in texts if texts[-1] else texts[:-1]:
            yield LogLine(text.removesuffix("\r"), self.source.rank, self.source.node, self.source.writer)


class LineSearch:
    """Lines of a block that match a pattern, many at a time where the pattern allows it.

    A pattern that cannot match past a line's end finds the same in a whole block as in its lines. A pattern that
    consists of words (`error|warn`) is not tried on a block whose bytes lack them, and bytes are searched far faster.

    Args:
        pattern: searched for in each line, without its line end.
    """

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._in_line = pattern.search
        body = LEADING_FLAGS.sub("", pattern.pattern, count=1)
        reaches_out = REACHES_OUT.search(body) or pattern.flags & (re.DOTALL | re.VERBOSE)
        self._in_block = None if reaches_out else re.compile(pattern.pattern, pattern.flags | re.MULTILINE).search
        self._any_case = bool(pattern.flags & re.IGNORECASE)
        # With IGNORECASE, some letters beyond ASCII match an ASCII letter, such as the Kelvin sign a k: a search for
        # their bytes would miss it.
        only_words = not (reaches_out or SPECIAL & set(body)) and (body.isascii() or not self._any_case)
        words = body.split("|") if only_words else []
        self._words = [(word.lower() if self._any_case else word).encode(errors="surrogateescape") for word in words]

    def keep(self, block: bytes) -> bytes:
        """Return the matching lines of a block of whole lines."""
        return b"".join([block[start:end] for start, end in self.spans(block)])

    def spans(self, block: bytes) -> Iterator[Span]:
        """Yield start and end of each matching line, in bytes."""
        if self._words and self._lacks_words(block):
            return
        # surrogateescape: logs contain any bytes, and spans are counted in bytes of the original
        text = block.decode(errors="surrogateescape")
        if self._in_block is None or "\r" in text:  # `$` matches before \n, and not before \r\n
            found = self._one_by_one(text)
        else:
            found = self._at_once(text, self._in_block)
        yield from found if len(text) == len(block) else _in_bytes(text, found)

    def _lacks_words(self, block: bytes) -> bool:
        if self._any_case:
            if not block.isascii():  # a letter beyond ASCII may match a letter of a word in another case
                return False
            block = block.lower()
        return not any(word in block for word in self._words)

    def _one_by_one(self, text: str) -> Iterator[Span]:
        start = 0
        for line in text.split("\n"):
            end = start + len(line) + 1
            if self._in_line(line.removesuffix("\r")) and start < len(text):
                yield start, end
            start = end

    def _at_once(self, text: str, search: Callable[[str, int], re.Match[str] | None]) -> Iterator[Span]:
        end = 0
        while end < len(text) and (found := search(text, end)):
            start = text.rfind("\n", 0, found.start()) + 1
            if start == len(text):  # past the last line's end
                return
            end = text.find("\n", found.start()) + 1 or len(text)
            yield start, end


def _in_bytes(text: str, spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the same spans, counted in bytes."""
    characters = count = 0
    for start, end in spans:
        first = count + len(text[characters:start].encode(errors="surrogateescape"))
        count = first + len(text[start:end].encode(errors="surrogateescape"))
        characters = end
        yield first, count
