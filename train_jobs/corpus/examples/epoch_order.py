"""The order of an epoch: which blocks are read at the same time, so that every window of examples is a mixture.

Which blocks an epoch visits depends on the weights of the sources. Each source is an endless cycle of passes over its B
blocks, each pass in its own order. Epoch e covers the cycle from e w B to (e + 1) w B, in blocks: with weight 1 every
block once, with 2 each twice, with 0.5 one half and in the next epoch the other. A block at a bound is divided, so that
every epoch has exactly w B blocks, however few a source has.

An epoch is read in lanes. A lane is a sequence of visits that lasts the whole epoch, so some blocks of every source are
open at any time. The epoch is divided into windows of equal length. A window takes the same share of each lane, a range
of the examples of one or more visits, and shuffles all of them together. So sources have their share of the epoch in
every window, memory is bounded by the number of lanes, and a window is a pure function of seed and epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

ORDER_STREAM, PASS_STREAM = 1, 5  # separate the draws of different purposes
OPEN_BLOCKS = 16  # lanes of an epoch: a plan of a block takes 0.5 MB, and its pages, or a copy of them, up to 2 MB
WINDOW_SEQUENCES = 2048  # full sequences of a window; short documents give several times as many examples


class SourceBlocks(NamedTuple):
    """The blocks of a source in a split."""

    blocks: Sequence[int]
    """Numbers of its blocks in the split."""
    tokens: Sequence[int]
    """Tokens of each of these blocks."""
    weight: float = 1.0
    """How often an epoch visits them."""


class Visit(NamedTuple):
    """One pass over one block, or the part of it that belongs to an epoch."""

    number: int
    """Earlier passes over the block's source: no pair of block and number occurs twice in an epoch."""
    block: int
    """Number of the block in the split."""
    tokens: int
    """Size of the part, which decides its share of a window."""
    first: int = 0
    """Start of the part, in units of 1 / `units` of the examples."""
    last: int = 1
    """End of the part, in the same units."""
    units: int = 1
    """Denominator of both."""

    @property
    def name(self) -> tuple[int, int]:
        """Pass and block: parts of a divided block have the same."""
        return self.number, self.block


class VisitPart(NamedTuple):
    """The range of a visit that a window has, as shares of the visit: between 0 and 1 once clipped."""

    # Exact fractions with a common denominator, as integers: Fraction takes most of the time of a large global batch.
    visit: Visit
    start: int
    stop: int
    whole: int
    """Denominator of both."""

    def bounds(self, examples: int) -> tuple[int, int]:
        """Return the range of examples, of `examples` of the block.

        Ranges of consecutive windows join exactly, and so do those of the parts of a divided block.
        """
        visit, whole = self.visit, self.whole
        low, high = (
            (visit.first * whole + (visit.last - visit.first) * share) * examples // (visit.units * whole)
            for share in (max(self.start, 0), min(self.stop, whole))
        )
        return low, high

    @property
    def goes_on(self) -> bool:
        """Whether a later window has examples of the same pass over the block: of this epoch, or of the next."""
        return self.stop < self.whole or self.visit.last < self.visit.units


class Lane:
    """Visits one after the other, over a whole epoch.

    Args:
        visits: at least one.
    """

    def __init__(self, visits: Sequence[Visit]) -> None:
        self.visits = visits
        ends = np.cumsum([visit.tokens for visit in visits], dtype=np.int64).tolist()
        self._starts, self.tokens = [0, *ends[:-1]], ends[-1]

    def parts(self, window: int, windows: int) -> Iterator[VisitPart]:
        """Yield the parts of visits in a window of an epoch of `windows`."""
        left, right = self.tokens * window, self.tokens * (window + 1)  # in tokens of the lane, times `windows`
        for index in range(bisect_right(self._starts, left // windows) - 1, len(self.visits)):
            start, visit = self._starts[index] * windows, self.visits[index]
            if start >= right:
                return
            yield VisitPart(visit, left - start, right - start, visit.tokens * windows)


@dataclass(frozen=True)
class EpochOrder:
    """The order in which an epoch is read."""

    lanes: Sequence[Lane]
    """Read at the same time."""
    windows: int
    """Windows of the epoch, at least one."""

    @property
    def visits(self) -> list[Visit]:
        """All visits of the epoch."""
        return [visit for lane in self.lanes for visit in lane.visits]

    @property
    def blocks(self) -> Fraction:
        """Number of blocks that are read, with parts of blocks."""
        return sum((Fraction(visit.last - visit.first, visit.units) for visit in self.visits), Fraction())

    def parts(self, window: int) -> list[VisitPart]:
        """Return the parts of visits in a window."""
        return [part for lane in self.lanes for part in lane.parts(window, self.windows)]


def epoch_order(sources: Sequence[SourceBlocks], *, seed: int, sequence_length: int, epoch: int) -> EpochOrder:
    """Return the order of an epoch.

    Args:
        sources: blocks by source.
        seed: decides the order.
        sequence_length: tokens of a sequence, which decides the length of windows.
        epoch: number of the epoch.
    """
    groups = [group for group in _groups(sources, seed=seed, epoch=epoch) if group]
    total = sum(visit.tokens for group in groups for visit in group)
    lanes: list[Lane] = []
    for group in groups:
        share = Fraction(sum(visit.tokens for visit in group), total)
        count = min(max(round(OPEN_BLOCKS * share), 1), len(group))
        lanes += [Lane(group[first::count]) for first in range(count)]
    return EpochOrder(lanes, max(round(total / (WINDOW_SEQUENCES * sequence_length)), 1))


def _groups(sources: Sequence[SourceBlocks], *, seed: int, epoch: int) -> Iterator[list[Visit]]:
    """Yield the visits of sources that share lanes, shuffled: each source alone, unless there are too many of them."""
    for group in range(min(len(sources), OPEN_BLOCKS)):
        visits = [
            visit
            for number in range(group, len(sources), OPEN_BLOCKS)
            for visit in _source_visits(sources[number], number, seed=seed, epoch=epoch)
        ]
        order = generator(seed, ORDER_STREAM, epoch, group).permutation(len(visits))
        yield [visits[place] for place in order.tolist()]


def _source_visits(source: SourceBlocks, number: int, *, seed: int, epoch: int) -> Iterator[Visit]:
    count = len(source.blocks)
    step = Fraction(str(source.weight)) * count  # exact: no float equals 0.1
    units = step.denominator
    start, stop = epoch * step.numerator, (epoch + 1) * step.numerator  # in the cycle, in units of a block
    places = range(start // units, -(-stop // units))
    orders = {
        one: generator(seed, PASS_STREAM, number, one).permutation(count).tolist()
        for one in {place // count for place in places}
    }
    for place in places:
        index = orders[place // count][place % count]
        first, last = max(start - place * units, 0), min(stop - place * units, units)
        tokens = max(source.tokens[index] * (last - first) // units, 1)
        yield Visit(place // count, source.blocks[index], tokens, first, last, units)


def generator(seed: int, *path: int) -> np.random.Generator:
    """Return a numpy generator whose stream depends on the seed and the path alone."""
    return np.random.default_rng([seed, *path])
