"""The order of examples: epochs of shuffled blocks of shuffled examples, and a cursor to resume from.

A block's plan (`pairs.plan_block`) is made again for each pass over it, so pairs differ between epochs. Order and plan
depend only on the seed, the epoch and the block, so a checkpoint stores just a cursor of three numbers.

The weights of the sources decide which blocks an epoch visits. Each source is an endless cycle of passes over its B
blocks, each pass in its own order. Epoch e covers blocks floor(e w B) to floor((e + 1) w B). With weight 1 an epoch
visits every block once, with 2 twice; with 0.5 it visits one half, and the next epoch the other. The visits of all
sources are shuffled together.

Static data, as Google's `create_pretraining_data.py` writes it, is a number of copies of the text (`dupe_factor`). Each
has its own pairs and masks, and training repeats them. Here nothing is written: a copy is the data of an early pass.
Pass p has the examples of copy p % duplicates, with the same masks, in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from train_jobs.artifacts.store_manifest import Split
from train_jobs.config.errors import DataError
from train_jobs.config.pretrain import DataConfig
from train_jobs.corpus.examples.pairs import Plan, PlanBlock
from train_jobs.corpus.store.token_store import Block, TokenStore

ORDER_STREAM, PLAN_STREAM, RESHUFFLE_STREAM, PASS_STREAM = 1, 2, 4, 5  # separate the draws of different purposes


class SourceBlocks(NamedTuple):
    """The blocks of a source in a split."""

    blocks: Sequence[int]
    """Numbers of its blocks in the split."""
    weight: float = 1.0
    """Visits of an epoch to each block, on average."""


class Visits(NamedTuple):
    """The blocks of an epoch, in order."""

    blocks: npt.NDArray[np.int64]
    """[visits] numbers of blocks; the weight of its source decides how often a block occurs."""
    passes: npt.NDArray[np.int64]
    """[visits] number of earlier passes over the block's source; no pair of block and pass occurs twice."""


@dataclass(frozen=True)
class Cursor:
    """The position of the next example."""

    epoch: int = 0
    """Epoch, from 0."""
    block: int = 0
    """Finished blocks of the epoch."""
    offset: int = 0
    """Finished examples of the current block."""

    def as_dict(self) -> dict[str, int]:
        """Return the fields for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, int]) -> Cursor:
        """Restore a cursor from `as_dict`."""
        return cls(**values)


@dataclass(frozen=True)
class ExampleSpan:
    """Consecutive examples of one block, with the numbers that their masks depend on."""

    copy: int
    """First pass over the block's source that had these examples; the current pass unless data is static. With sources
    of weight 1, passes are epochs."""
    block: int
    """Number of the block in the store, not its place in the epoch."""
    numbers: npt.NDArray[np.int64]
    """[examples] their positions in the block's plan."""
    rows: Plan
    """[examples, 5], see `plan_block`."""

    def __len__(self) -> int:
        return len(self.rows)

    def slice(self, start: int, stop: int) -> ExampleSpan:
        """Return examples start ... stop - 1."""
        return ExampleSpan(self.copy, self.block, self.numbers[start:stop], self.rows[start:stop])


class ExampleStream:
    """The endless examples of one split.

    Args:
        store: tokenised text.
        split: "train" or "validation".
        data: only sequence_length and short_sequence_probability are used.
        plan: plans the examples of a block.
        seed: seed of the order of blocks, the pairs and their order.
        duplicates: passes after which examples repeat. None: never.
        sources: blocks of the split by source. None: all have weight 1.
    """

    def __init__(
        self,
        store: TokenStore,
        split: Split,
        *,
        data: DataConfig,
        plan: PlanBlock,
        seed: int,
        duplicates: int | None = None,
        sources: Sequence[SourceBlocks] | None = None,
    ) -> None:
        assert store.blocks(split) > 0, "a store has blocks in both splits"
        self._store, self._split, self._data = store, split, data
        self._make, self._seed, self._duplicates = plan, seed, duplicates
        self._sources = sources or [SourceBlocks(range(store.blocks(split)))]
        self._order = lru_cache(maxsize=1)(partial(visits, self._sources, seed))
        self._plan = lru_cache(maxsize=1)(self._planned)  # the next batch usually continues in the same block

    def block(self, index: int) -> Block:
        """Return a block by its number in `ExampleSpan.block`."""
        return self._store.block(self._split, index)

    def take(self, cursor: Cursor, count: int) -> tuple[list[ExampleSpan], Cursor]:
        """Return the next `count` examples, across ends of blocks and epochs, and the cursor after them.

        Raises:
            DataError: the text has no example.
        """
        spans: list[ExampleSpan] = []
        barren = 0
        while count > 0:
            while len(self._order(cursor.epoch).blocks) == 0:  # with small weights and few blocks, epochs can be empty
                cursor = Cursor(cursor.epoch + 1)
            rest = self._rest_of_block(cursor)
            taken = rest.slice(0, count)
            count -= len(taken)
            spans += [taken] if len(taken) else []
            # An objective of the user's own may plan no example for any block; without a limit this would never end.
            barren += 1 if not spans else 0
            cursor = self._after(cursor, len(taken), block_done=len(taken) == len(rest))
            if barren > 2 * self._store.blocks(self._split):
                raise DataError("cannot build any example from the text", fix="give more text: --data PATH")
        return spans, cursor

    def first_epoch(self, most: int) -> list[ExampleSpan]:
        """Return the first `most` examples, or all examples of epoch 0 if it has fewer."""
        spans: list[ExampleSpan] = []
        cursor = Cursor()
        while cursor.epoch == 0 and most > 0:
            spans.append(self._rest_of_block(cursor).slice(0, most))
            most -= len(spans[-1])
            cursor = self._after(cursor, 0, block_done=True)
        return spans

    def _rest_of_block(self, cursor: Cursor) -> ExampleSpan:
        order = self._order(cursor.epoch)
        whole = self._plan(int(order.passes[cursor.block]), int(order.blocks[cursor.block]))
        return whole.slice(cursor.offset, len(whole))

    def _after(self, cursor: Cursor, taken: int, *, block_done: bool) -> Cursor:
        if not block_done:
            return Cursor(cursor.epoch, cursor.block, cursor.offset + taken)
        if cursor.block + 1 < len(self._order(cursor.epoch).blocks):
            return Cursor(cursor.epoch, cursor.block + 1)
        return Cursor(cursor.epoch + 1)

    def _planned(self, number: int, index: int) -> ExampleSpan:
        """Return all examples of pass `number` over block `index`."""
        copy = number % self._duplicates if self._duplicates else number
        plan = self._make(
            self.block(index),
            sequence_length=self._data.sequence_length,
            short_sequence_probability=self._data.short_sequence_probability,
            rng=generator(self._seed, PLAN_STREAM, copy, index),
        )
        numbers = np.arange(len(plan))
        # The numbers keep the places of the copy, so the masks that are keyed by them repeat.
        if copy != number:
            numbers = generator(self._seed, RESHUFFLE_STREAM, number, index).permutation(numbers)
        return ExampleSpan(copy, index, numbers, plan[numbers])


def share(spans: list[ExampleSpan], start: int, stop: int) -> Iterator[ExampleSpan]:
    """Yield examples start ... stop - 1 of all examples of the spans."""
    for span in spans:
        if start < len(span) and stop > 0:
            yield span.slice(max(start, 0), min(stop, len(span)))
        start, stop = start - len(span), stop - len(span)


def visits(sources: Sequence[SourceBlocks], seed: int, epoch: int) -> Visits:
    """Return the visits of an epoch; with small weights there may be none.

    Args:
        sources: blocks and weight of each source.
        seed: seed of all orders.
        epoch: number of the epoch, from 0.
    """
    parts = [_source_visits(source, number, seed=seed, epoch=epoch) for number, source in enumerate(sources)]
    blocks, passes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    # Sorted before the shuffle, so the order depends only on the set of visits, not on how they were collected.
    order = np.lexsort((passes, blocks))[generator(seed, ORDER_STREAM, epoch).permutation(len(blocks))]
    return Visits(blocks[order], passes[order])


def _source_visits(source: SourceBlocks, number: int, *, seed: int, epoch: int) -> Visits:
    count = len(source.blocks)
    # Exact: 0.1 has no float, and rounding would let two epochs visit a block of one pass twice or skip it.
    step = Fraction(str(source.weight)) * count
    places = np.arange(int(epoch * step), int((epoch + 1) * step))
    passes = places // count
    blocks = np.array(source.blocks, np.int64)
    found = [
        blocks[generator(seed, PASS_STREAM, number, one).permutation(count)][places[passes == one] % count]
        for one in np.unique(passes).tolist()
    ]
    return Visits(np.concatenate([np.empty(0, np.int64), *found]), passes)


def generator(seed: int, *path: int) -> np.random.Generator:
    """Return a numpy generator whose stream depends only on the seed and the path."""
    # SeedSequence hashes the whole list, so neighbouring seeds and paths give independent streams.
    return np.random.default_rng([seed, *path])
