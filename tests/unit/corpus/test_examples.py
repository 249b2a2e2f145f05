"""Example order, epochs and cursors."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from itertools import combinations, pairwise

import pytest

from train_jobs.config import ConflictError, DataConfig, ObjectiveConfig
from train_jobs.corpus.examples import epoch_order
from train_jobs.corpus.examples.example_stream import Cursor, ExampleSpan, ExampleStream
from train_jobs.corpus.examples.pairs import plan_block
from train_jobs.corpus.store.token_store import TokenStore


def stream(store: TokenStore, *, seed: int = 0, length: int = 32, duplicates: int | None = None) -> ExampleStream:
    data = DataConfig(sequence_length=length)
    return ExampleStream(
        store,
        "train",
        data=data,
        plan=partial(plan_block, objective=ObjectiveConfig(next_sentence=True)),
        seed=seed,
        objective=ObjectiveConfig(duplicates=duplicates),
    )


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give small stores epochs of several windows, and more blocks than lanes."""
    monkeypatch.setattr(epoch_order, "WINDOW_SEQUENCES", 40)
    monkeypatch.setattr(epoch_order, "OPEN_BLOCKS", 3)


def names(spans: list[ExampleSpan]) -> list[tuple[int, int, int]]:
    return [
        name
        for span in spans
        for name in zip(span.copies.tolist(), span.blocks.tolist(), span.numbers.tolist(), strict=True)
    ]


def first_epoch(examples: ExampleStream) -> tuple[list[ExampleSpan], int]:
    """Return the examples of epoch 0, and their number."""
    spans, cursor = [], Cursor()
    while cursor.epoch == 0:
        taken, cursor = examples.take(cursor, 1)
        spans += taken
    return spans, len(spans)


def texts(spans: list[ExampleSpan]) -> list[tuple[list[int], list[int], int]]:
    """Return the tokens of A and B, and the label, of each example."""
    return [
        (span.tokens[row[0] : row[1]].tolist(), span.tokens[row[2] : row[3]].tolist(), row[4])
        for span in spans
        for row in span.rows.tolist()
    ]


def test_each_example_occurs_once_per_epoch(store: TokenStore) -> None:
    examples = stream(store)
    assert store.blocks("train") > 2
    spans, epoch = first_epoch(examples)
    assert max(Counter(names(spans)).values()) == 1
    assert {copy for copy, _, _ in names(spans)} == {0}
    plans = {block: max(offset for _, b, offset in names(spans) if b == block) for _, block, _ in names(spans)}
    assert len(plans) == store.blocks("train")
    assert sum(last + 1 for last in plans.values()) == epoch


def test_examples_are_independent_of_step_size(store: TokenStore) -> None:
    whole, end = stream(store).take(Cursor(), 500)
    for size in (1, 7, 100):
        examples, cursor, taken = stream(store), Cursor(), []
        while len(taken) < 500:
            spans, cursor = examples.take(cursor, min(size, 500 - len(taken)))
            taken += names(spans)
        assert taken == names(whole)
        assert cursor == end


def test_new_process_resumes_from_saved_cursor(store: TokenStore) -> None:
    _, epoch = first_epoch(stream(store))
    _, cursor = stream(store).take(Cursor(), epoch + 13)
    saved = json.dumps(cursor.as_dict())
    going_on, _ = stream(store).take(Cursor.from_dict(json.loads(saved)), 40)
    straight, _ = stream(store).take(Cursor(), epoch + 53)
    assert names(going_on) == names(straight)[-40:]
    assert texts(going_on) == texts(straight)[-40:]


def test_order_differs_between_epochs_and_seeds(store: TokenStore) -> None:
    def first_blocks(seed: int) -> list[int]:
        examples = stream(store, seed=seed)
        return [int(examples.take(Cursor(epoch=epoch), 1)[0][0].blocks[0]) for epoch in range(12)]

    assert len(set(first_blocks(0))) > 1
    assert first_blocks(0) != first_blocks(1)


def test_pairs_differ_between_epochs_and_seeds(store: TokenStore) -> None:
    pairs = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        spans, _ = stream(store, seed=seed).take(Cursor(epoch=epoch), 200)
        pairs.append({(tuple(a), tuple(b)) for a, b, _ in texts(spans)})
    for left, right in combinations(pairs, 2):
        assert len(left & right) < 0.5 * len(left)


@pytest.mark.parametrize("windows", [40, 2048])
def test_shares_join_to_whole_batch(store: TokenStore, monkeypatch: pytest.MonkeyPatch, windows: int) -> None:
    """Windows smaller than the batch, of which a process reads only its share, and one that is larger."""
    monkeypatch.setattr(epoch_order, "WINDOW_SEQUENCES", windows)
    spans, end = stream(store).take(Cursor(), 200)
    cuts = [0, 1, 60, 61, 150, 200]
    found = [stream(store).take(Cursor(), 200, bounds) for bounds in pairwise(cuts)]
    assert [sum(map(len, part)) for part, _ in found] == [1, 59, 1, 89, 50]
    assert [name for part, _ in found for name in names(part)] == names(spans)
    assert [text for part, _ in found for text in texts(part)] == texts(spans)
    assert {cursor for _, cursor in found} == {end}


def test_static_examples_repeat_after_given_epochs(store: TokenStore) -> None:
    """Epochs 0 and 1 equal those of dynamic data; 2 and 4 repeat epoch 0 and 3 repeats epoch 1, in their own order."""

    def epoch(number: int, duplicates: int | None) -> list[tuple[int | str, ...]]:
        examples, cursor = stream(store, duplicates=duplicates), Cursor(epoch=number)
        found = []
        while cursor.epoch == number:
            (span,), cursor = examples.take(cursor, 1)
            found.append((*names([span])[0], str(texts([span]))))
        return found

    static = [epoch(number, 2) for number in range(5)]
    assert static[:2] == [epoch(number, None) for number in range(2)]
    assert set(static[2]) == set(static[4]) == set(static[0])
    assert set(static[3]) == set(static[1])
    assert epoch(2, None) != static[2]
    for left, right in ((0, 2), (2, 4), (1, 3)):
        for block in range(store.blocks("train")):  # not only the order of the blocks differs
            orders = [[example for example in static[number] if example[1] == block] for number in (left, right)]
            assert orders[0] != orders[1]


def test_static_data_resumes_from_saved_cursor(store: TokenStore) -> None:
    _, cursor = stream(store, duplicates=1).take(Cursor(epoch=1), 45)
    straight, _ = stream(store, duplicates=1).take(Cursor(epoch=1), 100)
    going_on, _ = stream(store, duplicates=1).take(cursor, 55)
    assert names(going_on) == names(straight)[45:]
    assert {copy for copy, _, _ in names(straight)} == {0}


def test_cursor_of_older_version_is_refused() -> None:
    with pytest.raises(ConflictError, match="another order of examples") as caught:
        Cursor.from_dict({"epoch": 0, "block": 3, "offset": 17})
    assert caught.value.facts["have"] == "epoch, block, offset"


def test_windows_read_several_blocks(store: TokenStore) -> None:
    """Batches have examples of several blocks, though only a few blocks are open."""
    examples, cursor, seen = stream(store), Cursor(), set()
    while cursor.epoch == 0:
        spans, cursor = examples.take(cursor, 32)
        if len(examples._open) > 0:  # not at the end of the epoch
            assert len({block for _, block, _ in names(spans)}) > 1
        assert len(examples._open) <= 3
        seen.add(cursor.window)
    assert len(seen) > 3
