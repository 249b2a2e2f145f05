"""Which blocks an epoch goes over, and in which order: a function of the seed, the epoch and the sources' weights.

Each source is an endless cycle of passes over its B blocks, each pass in an order of its own, and epoch e goes on in it
from block floor(e w B) to block floor((e + 1) w B): with weight 1 over every block once, with 2 over each twice, with
0.5 over one half and then the other. What the sources give is shuffled together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from train_jobs.corpus.examples.randomness import generator

ORDER_STREAM, PASS_STREAM = 1, 5  # keep the draws of one purpose apart from those of another


@dataclass(frozen=True)
class SourceBlocks:
    """What a split holds of one source."""

    blocks: Sequence[int]
    """Numbers of its blocks in the split."""
    weight: float = 1.0
    """How often an epoch goes over them."""


class Visits(NamedTuple):
    """The blocks of an epoch, in order."""

    blocks: npt.NDArray[np.int64]
    """[visits] numbers of blocks; one comes as often as its source's weight says."""
    passes: npt.NDArray[np.int64]
    """[visits] how many times training went over the block's source before: no pair of block and pass comes twice."""


def visits(sources: Sequence[SourceBlocks], *, seed: int, epoch: int) -> Visits:
    """The visits of an epoch; there may be none if weights are small."""
    parts = [_part(source, number, seed=seed, epoch=epoch) for number, source in enumerate(sources)]
    blocks, passes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((passes, blocks))[generator(seed, ORDER_STREAM, epoch).permutation(len(blocks))]
    return Visits(blocks[order], passes[order])


def _part(source: SourceBlocks, number: int, *, seed: int, epoch: int) -> Visits:
    """What an epoch has of a source."""
    count = len(source.blocks)
    step = Fraction(str(source.weight)) * count  # 0.1 is a tenth, which no float is
    places = np.arange(int(epoch * step), int((epoch + 1) * step))
    passes = places // count
    blocks = np.array(source.blocks, np.int64)
    found = [
        blocks[generator(seed, PASS_STREAM, number, one).permutation(count)][places[passes == one] % count]
        for one in np.unique(passes).tolist()
    ]
    return Visits(np.concatenate([np.empty(0, np.int64), *found]), passes)
