"""The order in which examples come: epochs of shuffled blocks of shuffled examples, and a place to go on from.

An epoch is a permutation of a split's blocks, and each block's plan (`pairs.plan_block`) is made anew for each epoch,
so pairs differ from epoch to epoch. Both are functions of the seed, the epoch and the block alone: a cursor of three
numbers is all there is to save.

Static data, as `create_pretraining_data.py` writes it, is a number of copies of the text, each with pairs and masks of
its own, and training goes over them again and again. Here nothing is written: a copy is the data of an early epoch,
and epoch e has the examples of copy e % duplicates, by the names under which their masks were drawn, reshuffled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from train_jobs.config.errors import DataError
from train_jobs.config.pretrain import DataConfig
from train_jobs.config.store import Split
from train_jobs.corpus.pairs import Plan, PlanBlock
from train_jobs.corpus.randomness import generator
from train_jobs.corpus.store import Block, TokenStore

ORDER_STREAM, PLAN_STREAM, RESHUFFLE_STREAM = 1, 2, 4  # keep the draws of one purpose apart from those of another


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
    """The epoch that first had these examples: the epoch itself, unless data is static."""
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
        duplicates: epochs until examples come again. None: never.
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
    ) -> None:
        assert store.blocks(split) > 0, "a store has blocks in both splits"
        self._store, self._split, self._data = store, split, data
        self._make, self._seed, self._duplicates = plan, seed, duplicates
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
        first_epoch = cursor.epoch
        while count > 0:
            rest = self._rest_of_block(cursor)
            taken = rest.slice(0, count)
            count -= len(taken)
            spans += [taken] if len(taken) else []
            cursor = self._after(cursor, len(taken), block_done=len(taken) == len(rest))
            if not spans and cursor.epoch > first_epoch + 1:
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
        index = int(self._order(cursor.epoch)[cursor.block])
        whole = self._plan(cursor.epoch, index)
        return whole.slice(cursor.offset, len(whole))

    def _after(self, cursor: Cursor, taken: int, *, block_done: bool) -> Cursor:
        if not block_done:
            return Cursor(cursor.epoch, cursor.block, cursor.offset + taken)
        if cursor.block + 1 < self._store.blocks(self._split):
            return Cursor(cursor.epoch, cursor.block + 1)
        return Cursor(cursor.epoch + 1)

    def _order(self, epoch: int) -> np.ndarray:
        return generator(self._seed, ORDER_STREAM, epoch).permutation(self._store.blocks(self._split))

    def _plan(self, epoch: int, index: int) -> Span:
        """All examples of a block. Remembers the last: the next batch most often goes on in the same block."""
        if self._planned is None or self._planned[0] != (epoch, index):
            copy = epoch % self._duplicates if self._duplicates else epoch
            plan = self._make(
                self.block(index),
                sequence_length=self._data.sequence_length,
                short_sequence_probability=self._data.short_sequence_probability,
                rng=generator(self._seed, PLAN_STREAM, copy, index),
            )
            numbers = np.arange(len(plan))
            if copy != epoch:
                numbers = generator(self._seed, RESHUFFLE_STREAM, epoch, index).permutation(numbers)
            self._planned = (epoch, index), Span(copy, index, numbers, plan[numbers])
        return self._planned[1]


def share(spans: list[Span], start: int, stop: int) -> Iterator[Span]:
    """Examples start ... stop - 1 of those that the spans hold together."""
    for span in spans:
        if start < len(span) and stop > 0:
            yield span.slice(max(start, 0), min(stop, len(span)))
        start, stop = start - len(span), stop - len(span)
