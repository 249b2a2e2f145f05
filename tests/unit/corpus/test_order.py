"""Blocks of an epoch with weighted sources, over ranks and restarts."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tests.unit.corpus.small_corpora import prepare, sources
from tests.unit.corpus.test_examples import names
from train_jobs.config import DataConfig, ObjectiveConfig
from train_jobs.corpus.examples.epoch_order import (
    OPEN_BLOCKS,
    WINDOW_SEQUENCES,
    EpochOrder,
    SourceBlocks,
    Visit,
    epoch_order,
)
from train_jobs.corpus.examples.example_stream import Cursor, ExampleStream, source_blocks
from train_jobs.corpus.examples.pairs import plan_block
from train_jobs.corpus.store.token_store import TokenStore

EPOCHS = 6
Name = tuple[int, int, int]  # pass, block, number in the block's plan


def order_of(blocks_of: list[SourceBlocks], epoch: int = 0, seed: int = 0) -> EpochOrder:
    return epoch_order(blocks_of, seed=seed, sequence_length=128, epoch=epoch)


def epochs(weight: float, blocks: int = 7) -> list[list[Visit]]:
    """Return the visits of each epoch."""
    blocks_of = [SourceBlocks(range(blocks), [1000] * blocks, weight)]
    return [order_of(blocks_of, epoch, seed=3).visits for epoch in range(EPOCHS)]


def share(visit: Visit) -> Fraction:
    return Fraction(visit.last - visit.first, visit.units)


@pytest.mark.parametrize("blocks", [7, 1])
@pytest.mark.parametrize("weight", [1.0, 2.0, 0.5, 2.5, 0.1, 0.013])
def test_epochs_continue_one_endless_cycle(weight: float, blocks: int) -> None:
    """Each epoch has its exact share; after any number of epochs the counts of two blocks differ by at most one."""
    found, amounts = epochs(weight, blocks), dict.fromkeys(range(blocks), Fraction())
    parts: dict[tuple[int, int], list[Visit]] = {}
    for epoch in found:
        assert sum(map(share, epoch)) == Fraction(str(weight)) * blocks
        assert len({visit.name for visit in epoch}) == len(epoch)
        for visit in epoch:
            amounts[visit.block] += share(visit)
            parts.setdefault(visit.name, []).append(visit)
        assert max(amounts.values()) - min(amounts.values()) <= 1
    for visits in parts.values():  # a divided block: each part begins where the part of the epoch before ended
        assert visits[0].first == 0
        assert all(before.last == after.first for before, after in pairwise(visits))
    for block in range(blocks):
        assert sorted(number for number, b in parts if b == block) == list(range(math.ceil(amounts[block])))


def test_small_source_with_a_fractional_weight_is_in_every_epoch() -> None:
    """One block at weight 0.1 and 50 at weight 1: every window has the share of the small source."""
    blocks_of = [SourceBlocks(range(50), [1 << 20] * 50), SourceBlocks([50], [1 << 20], 0.1)]
    for epoch in range(12):
        order = order_of(blocks_of, epoch)
        for window in range(order.windows):
            large, small = tokens_by_source(blocks_of, order, window)
            assert small / (large + small) == pytest.approx(0.1 / 50.1, rel=0.01)


def test_weights_are_exact_decimals() -> None:
    """0.29 times 100 is less than 29 in binary floating point."""
    assert [len(epoch) for epoch in epochs(0.29, blocks=100)] == [29] * EPOCHS
    assert [len(epoch) for epoch in epochs(0.5, blocks=7)] == [4] * EPOCHS  # one of them divided


def test_order_differs_between_passes_and_epochs() -> None:
    whole = epochs(1.0, blocks=50)
    assert len({tuple(visit.block for visit in epoch) for epoch in whole}) == EPOCHS
    halves = epochs(0.5, blocks=50)
    assert len({frozenset(visit.block for visit in epoch) for epoch in halves}) == EPOCHS


def test_visits_of_sources_follow_weights() -> None:
    blocks_of = [
        SourceBlocks([0, 2, 4, 6, 8], [1000] * 5, 2.0),
        SourceBlocks([1, 3, 5, 7, 9], [1000] * 5),
        SourceBlocks([10, 11], [1000] * 2, 0.5),
    ]
    for epoch in range(4):
        blocks = [visit.block for visit in order_of(blocks_of, epoch).visits]
        counts = Counter(blocks)
        assert [counts[block] for block in range(10)] == [2, 1] * 5
        assert counts[10] + counts[11] == 1
        assert blocks != sorted(blocks)


def tokens_by_source(blocks_of: list[SourceBlocks], order: EpochOrder, window: int) -> list[int]:
    """Return the tokens that each source contributes to a window."""
    found = [0] * len(blocks_of)
    for part in order.parts(window):
        number = next(n for n, source in enumerate(blocks_of) if part.visit.block in source.blocks)
        source = blocks_of[number]
        low, high = part.bounds(source.tokens[list(source.blocks).index(part.visit.block)])
        found[number] += high - low
    return found


def test_each_window_has_each_source_in_proportion() -> None:
    """Sources of 40, 7 and 1 blocks of uneven sizes, with weights: no window is off by more than a token per lane."""
    draw, blocks_of, first = random.Random(0), [], 0
    for count, weight in ((40, 1.0), (7, 3.0), (1, 2.0)):
        sizes = [draw.randint(1, 1 << 20) for _ in range(count)]
        blocks_of.append(SourceBlocks(range(first, first + count), sizes, weight))
        first += count
    order = order_of(blocks_of)
    total = [int(source.weight) * sum(source.tokens) for source in blocks_of]
    assert order.windows == round(sum(total) / (WINDOW_SEQUENCES * 128)) > 50
    seen = [0] * len(blocks_of)
    for window in range(order.windows):
        found = tokens_by_source(blocks_of, order, window)
        for tokens, whole in zip(found, total, strict=True):
            assert tokens == pytest.approx(whole / order.windows, abs=2 * OPEN_BLOCKS)
        seen = [before + tokens for before, tokens in zip(seen, found, strict=True)]
    assert seen == total


def test_open_blocks_are_bounded_with_many_sources() -> None:
    blocks_of = [SourceBlocks([number], [1 << 20]) for number in range(300)]
    order = order_of(blocks_of)
    assert max(len(order.parts(window)) for window in range(order.windows)) <= 2 * OPEN_BLOCKS
    assert sum(part.goes_on for part in order.parts(order.windows // 2)) <= OPEN_BLOCKS
    assert sorted(visit.block for visit in order.visits) == list(range(300))
    assert len({part.visit.block for part in order.parts(0)}) > OPEN_BLOCKS / 2


def test_sources_and_passes_have_independent_orders() -> None:
    blocks_of = [SourceBlocks(range(50), [1000] * 50, 0.5), SourceBlocks(range(50, 100), [1000] * 50, 0.5)]
    halves = [visit.block for visit in order_of(blocks_of).visits]
    first, second = ({block % 50 for block in halves if block // 50 == source} for source in (0, 1))
    assert len(first) == len(second) == 25
    assert first != second


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give small stores epochs of several windows, and more blocks than lanes."""
    monkeypatch.setattr("train_jobs.corpus.examples.epoch_order.WINDOW_SEQUENCES", 40)
    monkeypatch.setattr("train_jobs.corpus.examples.epoch_order.OPEN_BLOCKS", 3)


def weighted(store: TokenStore) -> ExampleStream:
    count, tokens = store.blocks("train"), store.block_tokens("train")
    assert count >= 6
    bounds = ((0, 2, 2.0), (2, 4, 2.5), (4, 5, 0.5), (5, count, 1.0))
    blocks_of = [SourceBlocks(range(first, last), tokens[first:last], weight) for first, last, weight in bounds]
    data, plan = DataConfig(sequence_length=32), partial(plan_block, objective=ObjectiveConfig(next_sentence=True))
    return ExampleStream(store, "train", data=data, plan=plan, seed=0, sources=blocks_of)


@pytest.mark.usefixtures("small_windows")
def test_each_example_once_over_restarts_and_world_sizes(store: TokenStore) -> None:
    """Three epochs by 1, 2, 3 and 8 processes in turn; each change is a restart from a checkpoint."""
    end, total = Cursor(epoch=3), 0
    straight, cursor = weighted(store), Cursor()
    expected: list[Name] = []
    while cursor.epoch < end.epoch:
        spans, cursor = straight.take(cursor, 1)
        expected += names(spans)
    assert len(set(expected)) == len(expected)

    batch = 24
    ranks, saved, found = (1, 2, 3, 8), json.dumps(Cursor().as_dict()), []
    for turn in range(len(expected) // batch // 10):
        world = ranks[turn % len(ranks)]
        streams = [weighted(store) for _ in range(world)]
        for _ in range(10):
            shares = []
            for rank, stream in enumerate(streams):
                bounds = batch * rank // world, batch * (rank + 1) // world
                spans, after = stream.take(Cursor.from_dict(json.loads(saved)), batch, bounds)
                shares.append(names(spans))
            saved = json.dumps(after.as_dict())
            assert all(shares)
            found += [name for part in shares for name in part]
            total += batch
    assert turn >= 7
    assert found == expected[: len(found)]
    assert len(expected) - total < 10 * batch


@pytest.mark.usefixtures("small_windows")
def test_source_weights_set_repetitions(store: TokenStore) -> None:
    stream, cursor, seen = weighted(store), Cursor(), Counter[int]()
    while cursor.epoch < 4:
        spans, cursor = stream.take(cursor, 50)
        for span in spans:
            seen.update(span.blocks.tolist())
    for block, times in {0: 8, 1: 8, 2: 10, 3: 10, 4: 2, 5: 4}.items():
        expected = sum(len(stream._planned(Visit(number, block, 1)).rows) for number in range(times))
        assert expected <= seen[block] <= expected + 50  # the last request may reach into the next epoch


def test_each_pass_over_block_has_new_pairs(store: TokenStore) -> None:
    stream = weighted(store)
    plans = [stream._planned(Visit(number, 0, 1)).rows.tolist() for number in (0, 1, 2)]
    assert all(len({tuple(row) for row in a} & {tuple(row) for row in b}) < 0.5 * len(a) for a, b in pairwise(plans))


@pytest.mark.parametrize("weight", [0.3, 0.001])
def test_divided_block_gives_each_example_once(store: TokenStore, weight: float) -> None:
    """Epochs of a part of one block, or of less than one example: a pass has the examples of an undivided one."""
    data, plan = DataConfig(sequence_length=32), partial(plan_block, objective=ObjectiveConfig(next_sentence=True))
    blocks_of = [SourceBlocks([0], store.block_tokens("train")[:1], weight)]
    stream = ExampleStream(store, "train", data=data, plan=plan, seed=0, sources=blocks_of)
    whole = [len(stream._planned(Visit(number, 0, 1)).rows) for number in (0, 1)]
    cursor, found = Cursor(), list[Name]()
    while cursor.epoch < math.ceil(2 / weight):
        spans, cursor = stream.take(cursor, 1)
        found += names(spans)
    first_passes = sorted(name for name in found if name[0] < 2)
    assert first_passes == [(number, 0, example) for number in (0, 1) for example in range(whole[number])]


def test_batches_mix_sources_by_weight(tmp_path: Path) -> None:
    """A source that is read three times has its share in every stretch of 200 examples, as have the others."""
    text = [{"path": path, "weight": weight} for path, weight in zip(sources(tmp_path, 3, 60), (1, 3, 1), strict=True)]
    data = DataConfig.model_validate({"text": text, "vocab_size": 300, "sequence_length": 16})
    store = prepare(data, tmp_path / "store", block_tokens=600)
    source_of = {block: source for source, blocks in store.blocks_by_source("train").items() for block in blocks}
    plan = partial(plan_block, objective=ObjectiveConfig(next_sentence=True))
    stream = ExampleStream(
        store, "train", data=data, plan=plan, seed=0, sources=source_blocks(store, "train", weighted=True)
    )
    order, cursor = [], Cursor()
    while cursor.epoch == 0:
        spans, cursor = stream.take(cursor, 1)
        order += [source_of[block] for _, block, _ in names(spans)]
    assert len(order) > 1000
    for first in range(0, len(order) - 200, 200):
        counts = Counter(order[first : first + 200])
        assert counts[1] == pytest.approx(120, abs=35)  # five standard deviations
        assert counts[0] == pytest.approx(40, abs=29)
