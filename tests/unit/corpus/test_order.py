"""Blocks of an epoch with weighted sources, over ranks and restarts."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from itertools import pairwise

import pytest

from train_jobs.config import DataConfig
from train_jobs.corpus.examples.example_stream import Cursor, ExampleStream, SourceBlocks, share, visits
from train_jobs.corpus.examples.pairs import plan_block
from train_jobs.corpus.store.token_store import TokenStore

EPOCHS = 6
Name = tuple[int, int, int]  # pass, block, number in the block's plan


def epochs(weight: float, blocks: int = 7) -> list[list[tuple[int, int]]]:
    """Return the blocks and passes of each epoch."""
    sources = [SourceBlocks(range(blocks), weight)]
    found = [visits(sources, seed=3, epoch=epoch) for epoch in range(EPOCHS)]
    return [list(zip(epoch.blocks.tolist(), epoch.passes.tolist(), strict=True)) for epoch in found]


@pytest.mark.parametrize(
    ("weight", "lengths"),
    [
        (1.0, [7, 7, 7, 7, 7, 7]),
        (2.0, [14, 14, 14, 14, 14, 14]),
        (0.5, [3, 4, 3, 4, 3, 4]),
        (2.5, [17, 18, 17, 18, 17, 18]),
        (0.1, [0, 1, 1, 0, 1, 1]),
    ],
)
def test_epochs_continue_one_endless_cycle(weight: float, lengths: list[int]) -> None:
    """After any number of epochs the counts of two blocks differ by at most one."""
    found = epochs(weight)
    assert [len(epoch) for epoch in found] == lengths
    counts: Counter[int] = Counter()
    for epoch in found:
        counts.update(block for block, _ in epoch)
        times = [counts[block] for block in range(7)]
        assert max(times) - min(times) <= 1
    every = [visit for epoch in found for visit in epoch]
    assert len(set(every)) == len(every)
    for block in range(7):
        assert sorted(number for b, number in every if b == block) == list(range(counts[block]))


def test_weights_are_exact_decimals() -> None:
    """0.29 times 100 is less than 29 in binary floating point."""
    assert [len(epoch) for epoch in epochs(0.29, blocks=100)] == [29] * EPOCHS


def test_order_differs_between_passes_and_epochs() -> None:
    whole = epochs(1.0, blocks=50)
    assert len({tuple(block for block, _ in epoch) for epoch in whole}) == EPOCHS
    halves = epochs(0.5, blocks=50)
    assert len({frozenset(block for block, _ in epoch) for epoch in halves}) == EPOCHS


def test_sources_are_mixed_in_proportion() -> None:
    sources = [SourceBlocks([0, 2, 4, 6, 8], 2.0), SourceBlocks([1, 3, 5, 7, 9]), SourceBlocks([10, 11], 0.5)]
    for epoch in range(4):
        blocks = visits(sources, seed=0, epoch=epoch).blocks.tolist()
        counts = Counter(blocks)
        assert [counts[block] for block in range(10)] == [2, 1] * 5
        assert counts[10] + counts[11] == 1
        assert blocks != sorted(blocks)
        assert {block % 2 for block in blocks[:6]} == {0, 1}


def test_sources_and_passes_have_independent_orders() -> None:
    halves = visits([SourceBlocks(range(50), 0.5), SourceBlocks(range(50, 100), 0.5)], seed=0, epoch=0).blocks
    first, second = ({block % 50 for block in halves.tolist() if block // 50 == source} for source in (0, 1))
    assert len(first) == len(second) == 25
    assert first != second


def weighted(store: TokenStore) -> ExampleStream:
    count = store.blocks("train")
    assert count >= 6
    sources = [
        SourceBlocks(range(2), 2.0),
        SourceBlocks(range(2, 4), 2.5),
        SourceBlocks(range(4, 5), 0.5),
        SourceBlocks(range(5, count)),
    ]
    data, plan = DataConfig(sequence_length=32), partial(plan_block, next_sentence=True)
    return ExampleStream(store, "train", data=data, plan=plan, seed=0, sources=sources)


def test_each_example_once_over_restarts_and_world_sizes(store: TokenStore) -> None:
    """Three epochs by 1, 2, 3 and 8 processes in turn; each change is a restart from a checkpoint."""
    end, total = Cursor(epoch=3), 0
    straight, cursor = weighted(store), Cursor()
    expected: list[Name] = []
    while cursor.epoch < end.epoch:
        spans, cursor = straight.take(cursor, 1)
        expected += [(span.copy, span.block, number) for span in spans for number in span.numbers.tolist()]
    assert len(set(expected)) == len(expected)

    batch = 24
    ranks, saved, found = (1, 2, 3, 8), json.dumps(Cursor().as_dict()), []
    for turn in range(len(expected) // batch // 10):
        world = ranks[turn % len(ranks)]
        streams = [weighted(store) for _ in range(world)]
        for _ in range(10):
            shares = []
            for rank, stream in enumerate(streams):
                spans, after = stream.take(Cursor.from_dict(json.loads(saved)), batch)
                bounds = batch * rank // world, batch * (rank + 1) // world
                shares.append([(s.copy, s.block, n) for s in share(spans, *bounds) for n in s.numbers.tolist()])
            saved = json.dumps(after.as_dict())
            assert all(shares)
            found += [name for part in shares for name in part]
            total += batch
    assert turn >= 7
    assert found == expected[: len(found)]
    assert len(expected) - total < 10 * batch


def test_source_weights_set_repetitions(store: TokenStore) -> None:
    stream, cursor, seen = weighted(store), Cursor(), Counter[int]()
    while cursor.epoch < 4:
        spans, cursor = stream.take(cursor, 50)
        for span in spans:
            seen[span.block] += len(span)
    once = {block: len(stream._plan(0, block)) for block in range(6)}
    for block, times in {0: 8, 1: 8, 2: 10, 3: 10, 4: 2, 5: 4}.items():
        assert seen[block] == pytest.approx(times * once[block], rel=0.1, abs=50)


def test_each_pass_over_block_has_new_pairs(store: TokenStore) -> None:
    stream = weighted(store)
    plans = [stream._plan(number, 0).rows.tolist() for number in (0, 1, 2)]
    assert all(len({tuple(row) for row in a} & {tuple(row) for row in b}) < 0.5 * len(a) for a, b in pairwise(plans))


def test_empty_epochs_are_skipped(store: TokenStore) -> None:
    data, plan = DataConfig(sequence_length=32), partial(plan_block, next_sentence=True)
    sources = [SourceBlocks([0], 0.3)]
    stream = ExampleStream(store, "train", data=data, plan=plan, seed=0, sources=sources)
    _, cursor = stream.take(Cursor(), 1)
    assert (cursor.epoch, cursor.offset) == (3, 1)
