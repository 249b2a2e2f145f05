"""The order in which examples come: epochs of shuffled blocks of shuffled examples, and a place to go on from.

An epoch is a permutation of a split's blocks (see `order`, which also knows sources that weigh more or less than
others), and a block's plan (`pairs.plan_block`) is made anew for each pass over it, so pairs differ from epoch to
epoch. Both are functions of the seed, the epoch and the block alone: a cursor of three numbers is all there is to save.

Static data, as `create_pretraining_data.py` writes it, is a number of copies of the text, each with pairs and masks of
its own, and training goes over them again and again. Here nothing is written: a copy is the data of an early pass, and
pass p has the examples of copy p % duplicates, by the names under which their masks were drawn, reshuffled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from train_jobs.artifacts.store_manifest import Split
from train_jobs.config.errors import DataError
from train_jobs.config.pretrain import DataConfig
from train_jobs.corpus.examples.order import SourceBlocks, Visits, visits
from train_jobs.corpus.examples.pairs import Plan, PlanBlock
from train_jobs.corpus.examples.randomness import generator
from train_jobs.corpus.store.token_store import Block, TokenStore

PLAN_STREAM, RESHUFFLE_STREAM = 2, 4  # keep the draws of one purpose apart from those of another


@dataclass(frozen=True)
class Cursor:
    """The next example: how many of an epoch's blocks are done, and how many examples of the block after them."""

    epoch: int = 0
    block: int = 0
    offset: int = 0

    def as_dict(self) -> dict[str, int]:
        """For a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, int]) -> Cursor:
        """Back from `as_dict`."""
        return cls(**values)


@dataclass(frozen=True)
class Span:
    """Consecutive examples of one block, named so that their masks can be a function of their names."""

    copy: int
    """The pass over the block's source that first had these examples: the last one, unless data is static. With sources
    of weight 1, passes are epochs."""
    block: int
    """Number of the block in the store, not its place in the epoch."""
    numbers: npt.NDArray[np.int64]
    """[examples] their places in the block's plan."""
    rows: Plan
    """[examples, 5], see `plan_block`."""

    def __len__(self) -> int:
        return len(self.rows)

    def slice(self, start: int, stop: int) -> Span:
        """Examples start ... stop - 1 of these."""
        return Span(self.copy, self.block, self.numbers[start:stop], self.rows[start:stop])


class ExampleStream:
    """Endless examples of one split.

    Args:
        store: where the text is.
        split: "train" or "validation".
        data: sequence_length and short_sequence_probability are used.
        plan: makes the examples of a block.
        seed: decides the order of blocks, the pairs and their order.
        duplicates: passes until examples come again. None: never.
        sources: blocks of the split by source. None: all of weight 1.
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
        self._visits: tuple[int, Visits] | None = None
        self._planned: tuple[tuple[int, int], Span] | None = None

    def block(self, index: int) -> Block:
        """The block that spans with this number refer to."""
        return self._store.block(self._split, index)

    def take(self, cursor: Cursor, count: int) -> tuple[list[Span], Cursor]:
        """The next `count` examples, over the ends of blocks and epochs, and the cursor after them.

        Raises:
            DataError: the whole text has none.
        """
        spans: list[Span] = []
        barren = 0
        while count > 0:
            cursor = self._over_empty_epochs(cursor)
            rest = self._rest_of_block(cursor)
            taken = rest.slice(0, count)
            count -= len(taken)
            spans += [taken] if len(taken) else []
            barren += 1 if not spans else 0
            cursor = self._after(cursor, len(taken), block_done=len(taken) == len(rest))
            if barren > 2 * self._store.blocks(self._split):
                raise DataError("not one example can be made of the text", fix="--data PATH with more text")
        return spans, cursor

    def first_epoch(self, most: int) -> list[Span]:
        """The first `most` examples, or all of epoch 0 if it has fewer."""
        spans: list[Span] = []
        cursor = Cursor()
        while cursor.epoch == 0 and most > 0:
            rest = self._rest_of_block(cursor)
            spans.append(rest.slice(0, most))
            most -= len(spans[-1])
            cursor = self._after(cursor, 0, block_done=True)
        return spans

    def _rest_of_block(self, cursor: Cursor) -> Span:
        order = self._order(cursor.epoch)
        whole = self._plan(int(order.passes[cursor.block]), int(order.blocks[cursor.block]))
        return whole.slice(cursor.offset, len(whole))

    def _after(self, cursor: Cursor, taken: int, *, block_done: bool) -> Cursor:
        if not block_done:
            return Cursor(cursor.epoch, cursor.block, cursor.offset + taken)
        if cursor.block + 1 < len(self._order(cursor.epoch).blocks):
            return Cursor(cursor.epoch, cursor.block + 1)
        return Cursor(cursor.epoch + 1)

    def _over_empty_epochs(self, cursor: Cursor) -> Cursor:
        """Where all weights are small and blocks are few, an epoch may have none."""
        while len(self._order(cursor.epoch).blocks) == 0:
            cursor = Cursor(cursor.epoch + 1)
        return cursor

    def _order(self, epoch: int) -> Visits:
        if self._visits is None or self._visits[0] != epoch:
            self._visits = epoch, visits(self._sources, seed=self._seed, epoch=epoch)
        return self._visits[1]

    def _plan(self, number: int, index: int) -> Span:
        """All examples of a pass over a block. Remembers the last: the next batch most often goes on in the same."""
        if self._planned is None or self._planned[0] != (number, index):
            copy = number % self._duplicates if self._duplicates else number
            plan = self._make(
                self.block(index),
                sequence_length=self._data.sequence_length,
                short_sequence_probability=self._data.short_sequence_probability,
                rng=generator(self._seed, PLAN_STREAM, copy, index),
            )
            numbers = np.arange(len(plan))
            if copy != number:
                numbers = generator(self._seed, RESHUFFLE_STREAM, number, index).permutation(numbers)
            self._planned = (number, index), Span(copy, index, numbers, plan[numbers])
        return self._planned[1]


def share(spans: list[Span], start: int, stop: int) -> Iterator[Span]:
    """Examples start ... stop - 1 of those that the spans hold together."""
    for span in spans:
        if start < len(span) and stop > 0:
            yield span.slice(max(start, 0), min(stop, len(span)))
        start, stop = start - len(span), stop - len(span)
