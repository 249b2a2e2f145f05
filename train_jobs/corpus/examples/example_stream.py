"""The examples of a split in their order, and a cursor to resume from.

A block's plan (see `pairs`) is made again for each pass over it, so pairs differ from epoch to epoch. Order and
plan are functions of the seed, the epoch and the block alone: a cursor of three numbers is all there is to save.

Examples are read a window at a time, see `epoch_order`. A window that serves several batches copies the tokens of its
examples out of the mapped blocks once, so a batch costs the same as if all came from one block. Of windows that are
smaller than the global batch, each process copies its own share of the batch only.

Static data, as `create_pretraining_data.py` writes it, is a number of copies of the text, each with its own pairs and
masks, which training repeats. Here nothing is written: a copy is the data of an early pass, and pass p has the examples
of copy p % duplicates, with the names under which their masks were drawn, reshuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from train_jobs.artifacts.store_manifest import Split
from train_jobs.config.errors import ConflictError, DataError
from train_jobs.config.pretrain import DataConfig, ObjectiveConfig
from train_jobs.corpus.examples.epoch_order import SourceBlocks, Visit, epoch_order, generator
from train_jobs.corpus.examples.pairs import Plan, PlanBlock
from train_jobs.corpus.store.token_store import TokenStore

PLAN_STREAM, RESHUFFLE_STREAM, WINDOW_STREAM = 2, 4, 6  # separate the draws of different purposes
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cursor:
    """The next example: windows of the epoch that are done, and examples of the window after them."""

    epoch: int = 0
    window: int = 0
    offset: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the fields for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, int]) -> Cursor:
        """Restore a cursor from `as_dict`.

        Raises:
            ConflictError: an older version with another order of examples wrote it.
        """
        if values.keys() != {field.name for field in fields(cls)}:
            raise ConflictError(
                "cannot resume: the checkpoint is from a version with another order of examples",
                facts={"need": "a cursor of epoch, window, offset", "have": ", ".join(values)},
                fix="another --output, or resume with the version of the code that wrote it",
            )
        return cls(**values)


@dataclass(frozen=True)
class ExampleSpan:
    """Consecutive examples, with the names that their masks depend on: copy, block and number."""

    copies: Numbers
    """[examples] first passes over the blocks' sources that had these examples: the current pass, unless data is
    static. With sources of weight 1, passes are epochs."""
    blocks: Numbers
    """[examples] numbers of their blocks in the split."""
    numbers: Numbers
    """[examples] their places in the blocks' plans."""
    rows: Plan
    """[examples, 5], see `pairs`; ranges of `tokens`."""
    tokens: npt.NDArray[np.unsignedinteger]
    """[tokens] of these examples, and of others of their window."""

    def __len__(self) -> int:
        return len(self.rows)

    def slice(self, start: int, stop: int) -> ExampleSpan:
        """Return examples start ... stop - 1."""
        return ExampleSpan(
            self.copies[start:stop],
            self.blocks[start:stop],
            self.numbers[start:stop],
            self.rows[start:stop],
            self.tokens,
        )

    def reordered(self, order: Numbers) -> ExampleSpan:
        """Return the examples in another order."""
        return ExampleSpan(self.copies[order], self.blocks[order], self.numbers[order], self.rows[order], self.tokens)


class PlannedVisit(NamedTuple):
    """All examples of a visit, in their order."""

    copy: int
    """See `ExampleSpan.copies`."""
    numbers: Numbers
    """[examples] their places in the block's plan."""
    rows: Plan
    """[examples, 5] ranges of `tokens`."""
    tokens: npt.NDArray[np.unsignedinteger]
    """[tokens] of the block, with the separators of documents if sequences may span them."""


class WindowPart(NamedTuple):
    """The examples low ... high - 1 of a visit."""

    block: int
    """Number of the block in the split."""
    planned: PlannedVisit
    low: int
    high: int

    def chosen(self, places: Numbers) -> ExampleSpan:
        """Return the examples at places of this part."""
        places = places + self.low
        tokens, rows = copy_ranges(self.planned.tokens, self.planned.rows[places])
        copies, blocks = (np.full(len(places), value, np.int64) for value in (self.planned.copy, self.block))
        return ExampleSpan(copies, blocks, self.planned.numbers[places], rows, tokens)


class Window:
    """The examples of a window, shuffled.

    Args:
        parts: what it contains.
        permutation: draws the order of a number of examples; called once.
    """

    def __init__(self, parts: Sequence[WindowPart], permutation: Callable[[int], Numbers]) -> None:
        self._parts, self._permutation = parts, permutation
        self._starts = np.cumsum([0, *(part.high - part.low for part in parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def examples(self, start: int, stop: int, *, reused: bool) -> ExampleSpan:
        """Return examples start ... stop - 1.

        Args:
            start, stop: range of at least one.
            reused: read all of the window, because the window serves several batches.
        """
        return self._whole.slice(start, stop) if reused else self._chosen(self._order[start:stop])

    @cached_property
    def _order(self) -> Numbers:
        return self._permutation(len(self))

    @cached_property
    def _whole(self) -> ExampleSpan:
        return self._chosen(self._order)

    def _chosen(self, order: Numbers) -> ExampleSpan:
        """Return the examples at places of the window, in this order."""
        part_of = np.searchsorted(self._starts, order, side="right") - 1
        by_part = np.argsort(part_of, kind="stable")
        numbers, firsts = np.unique(part_of[by_part], return_index=True)
        pieces = [
            self._parts[number].chosen(order[places] - self._starts[number])
            for number, places in zip(numbers.tolist(), np.split(by_part, firsts[1:]), strict=True)
        ]
        inverse = np.empty_like(by_part)
        inverse[by_part] = np.arange(len(by_part))
        return concatenate(pieces).reordered(inverse)


class ExampleStream:
    """The endless examples of one split.

    Args:
        store: tokenised text.
        split: "train" or "validation".
        data: sequence_length and short_sequence_probability are used.
        plan: makes the examples of a block.
        seed: decides the order of blocks, the pairs and their order.
        objective: decides whether sequences span documents, and after how many passes examples repeat.
        sources: blocks of the split by source. None: those of the store, all with weight 1.
    """

    def __init__(
        self,
        store: TokenStore,
        split: Split,
        *,
        data: DataConfig,
        plan: PlanBlock,
        seed: int,
        objective: ObjectiveConfig | None = None,
        sources: Sequence[SourceBlocks] | None = None,
    ) -> None:
        assert store.blocks(split) > 0, "a store has blocks in both splits"
        self._store, self._split, self._data = store, split, data
        objective = objective or ObjectiveConfig()
        self._make, self._seed, self._duplicates = plan, seed, objective.duplicates
        self._separator = store.separator(objective)
        sources = sources or source_blocks(store, split, weighted=False)
        self._order = lru_cache(maxsize=1)(
            lambda epoch: epoch_order(sources, seed=seed, sequence_length=data.sequence_length, epoch=epoch)
        )
        self._window = lru_cache(maxsize=1)(self._plan_window)  # the next batch usually continues in the same window
        self._open: dict[tuple[int, int], PlannedVisit] = {}

    def take(
        self, cursor: Cursor, count: int, share: tuple[int, int] | None = None
    ) -> tuple[list[ExampleSpan], Cursor]:
        """Return examples of the next `count`, across the ends of windows and epochs, and the cursor after all of them.

        Args:
            cursor: the next example.
            count: examples to go forward.
            share: range of them to return, so that a process does not read those of others. None: all.

        Raises:
            DataError: the whole text has no example.
        """
        spans: list[ExampleSpan] = []
        start, stop = share or (0, count)
        barren, passed = Fraction(), 0
        while passed < count:
            order = self._order(cursor.epoch)
            window = self._window(cursor.epoch, cursor.window)
            taken = min(len(window) - cursor.offset, count - passed)
            low, high = (cursor.offset + min(max(bound - passed, 0), taken) for bound in (start, stop))
            if low < high:
                spans.append(window.examples(low, high, reused=count < len(window)))
            passed += taken
            done = cursor.offset + taken == len(window)
            if done and passed == 0 and cursor.window + 1 == order.windows:
                barren += order.blocks
                if barren > 2 * self._store.blocks(self._split):
                    raise DataError("cannot build any example from the text", fix="--data PATH with more text")
            cursor = self._after(cursor, taken, window_done=done)
        return spans, cursor

    def _after(self, cursor: Cursor, taken: int, *, window_done: bool) -> Cursor:
        if not window_done:
            return Cursor(cursor.epoch, cursor.window, cursor.offset + taken)
        if cursor.window + 1 < self._order(cursor.epoch).windows:
            return Cursor(cursor.epoch, cursor.window + 1)
        return Cursor(cursor.epoch + 1)

    def _plan_window(self, epoch: int, window: int) -> Window:
        """Return a window. Plans of visits that later windows need stay open."""
        still_open: dict[tuple[int, int], PlannedVisit] = {}
        parts: list[WindowPart] = []
        for part in self._order(epoch).parts(window):
            planned = self._open.get(part.visit.name) or self._planned(part.visit)
            if part.goes_on:
                still_open[part.visit.name] = planned
            parts.append(WindowPart(part.visit.block, planned, *part.bounds(len(planned.rows))))
        self._open = still_open
        return Window(parts, lambda count: generator(self._seed, WINDOW_STREAM, epoch, window).permutation(count))

    def _planned(self, visit: Visit) -> PlannedVisit:
        """Return all examples of a visit."""
        copy = visit.number % self._duplicates if self._duplicates else visit.number
        block = self._store.block(self._split, visit.block)
        if self._separator is not None:
            block = block.separated(self._separator)
        plan = self._make(
            block,
            sequence_length=self._data.sequence_length,
            short_sequence_probability=self._data.short_sequence_probability,
            rng=generator(self._seed, PLAN_STREAM, copy, visit.block),
        )
        numbers = np.arange(len(plan))
        if copy != visit.number:
            numbers = generator(self._seed, RESHUFFLE_STREAM, visit.number, visit.block).permutation(numbers)
        return PlannedVisit(copy, numbers, plan[numbers], block.tokens)


def source_blocks(store: TokenStore, split: Split, *, weighted: bool) -> list[SourceBlocks]:
    """Return the blocks of a split by source.

    Args:
        store: tokenised text.
        split: "train" or "validation".
        weighted: use the sources' weights, not 1.
    """
    sources, tokens = store.manifest.sources, store.block_tokens(split)
    return [
        SourceBlocks(numbers, [tokens[number] for number in numbers], sources[source].weight if weighted else 1.0)
        for source, numbers in store.blocks_by_source(split).items()
    ]


def copy_ranges(tokens: npt.NDArray[np.unsignedinteger], rows: Plan) -> tuple[npt.NDArray[np.unsignedinteger], Plan]:
    """Copy the tokens of some examples; return them one after the other, and the rows as ranges of the copy.

    Args:
        tokens: [tokens] of a block.
        rows: [examples, 5], see `pairs`.
    """
    lengths = (rows[:, [1, 3]] - rows[:, [0, 2]]).ravel()
    ends = np.cumsum(lengths)
    shift = rows[:, [0, 2]].ravel() - (ends - lengths)
    copied = tokens[np.arange(lengths.sum()) + np.repeat(shift, lengths)]
    moved = rows.copy()
    moved[:, [1, 3]] = ends.reshape(-1, 2)
    moved[:, [0, 2]] = (ends - lengths).reshape(-1, 2)
    return copied, moved


def concatenate(parts: Sequence[ExampleSpan]) -> ExampleSpan:
    """Return the examples of all parts, of which there is at least one, one after the other."""
    before = np.cumsum([0, *(len(part.tokens) for part in parts)])
    rows = np.concatenate([part.rows for part in parts])
    rows[:, :4] += np.repeat(before[:-1], [len(part) for part in parts])[:, None]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("copies", "blocks", "numbers", "tokens")
    }
    return ExampleSpan(rows=rows, **arrays)
