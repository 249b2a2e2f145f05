"""Order of examples, epochs, and cursors."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations, pairwise

from train_jobs.config import DataConfig
from train_jobs.corpus.examples import Cursor, ExampleStream, Span, share
from train_jobs.corpus.store import TokenStore


def stream(store: TokenStore, *, seed: int = 0, length: int = 32) -> ExampleStream:
    return ExampleStream(store, "train", data=DataConfig(sequence_length=length), next_sentence=True, seed=seed)


def names(spans: list[Span]) -> list[tuple[int, int, int]]:
    return [(span.epoch, span.block, span.offset + row) for span in spans for row in range(len(span))]


def test_every_example_comes_once_in_an_epoch(store: TokenStore) -> None:
    examples = stream(store)
    assert store.blocks("train") > 2
    epoch = sum(map(len, examples.first_epoch(10**9)))
    spans, cursor = examples.take(Cursor(), epoch)
    assert cursor == Cursor(epoch=1)
    assert max(Counter(names(spans)).values()) == 1
    assert names(spans) == names(examples.first_epoch(10**9))
    plans = {block: max(offset for _, b, offset in names(spans) if b == block) for _, block, _ in names(spans)}
    assert len(plans) == store.blocks("train")
    assert sum(last + 1 for last in plans.values()) == epoch


def test_steps_of_any_size_give_the_same_examples(store: TokenStore) -> None:
    whole, end = stream(store).take(Cursor(), 500)
    for size in (1, 7, 100):
        examples, cursor, taken = stream(store), Cursor(), []
        while len(taken) < 500:
            spans, cursor = examples.take(cursor, min(size, 500 - len(taken)))
            taken += names(spans)
        assert taken == names(whole)
        assert cursor == end


def test_a_new_process_goes_on_from_a_saved_cursor(store: TokenStore) -> None:
    epoch = sum(map(len, stream(store).first_epoch(10**9)))
    _, cursor = stream(store).take(Cursor(), epoch + 13)
    saved = json.dumps(cursor.as_dict())
    going_on, _ = stream(store).take(Cursor.from_dict(json.loads(saved)), 40)
    straight, _ = stream(store).take(Cursor(), epoch + 53)
    assert names(going_on) == names(straight)[-40:]
    rows = [row.tolist() for span in straight for row in span.rows]
    assert [row.tolist() for span in going_on for row in span.rows] == rows[-40:]


def test_epochs_and_seeds_differ_in_order(store: TokenStore) -> None:
    def first_blocks(seed: int) -> list[int]:
        examples = stream(store, seed=seed)
        return [examples.take(Cursor(epoch=epoch), 1)[0][0].block for epoch in range(12)]

    assert len(set(first_blocks(0))) > 1
    assert first_blocks(0) != first_blocks(1)


def test_epochs_and_seeds_differ_in_pairs(store: TokenStore) -> None:
    pairs = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        spans, _ = stream(store, seed=seed).take(Cursor(epoch=epoch), 200)
        pairs.append({(span.block, *row) for span in spans for row in span.rows.tolist()})
    for left, right in combinations(pairs, 2):
        assert len(left & right) < 0.5 * len(left)


def test_shares_are_consecutive_and_complete(store: TokenStore) -> None:
    spans, _ = stream(store).take(Cursor(), 200)
    cuts = [0, 1, 60, 61, 150, 200]
    parts = [list(share(spans, start, stop)) for start, stop in pairwise(cuts)]
    assert [sum(map(len, part)) for part in parts] == [1, 59, 1, 89, 50]
    assert [name for part in parts for name in names(part)] == names(spans)


def test_the_first_epoch_ends_where_it_is_told_or_where_it_ends(store: TokenStore) -> None:
    examples = stream(store)
    assert sum(map(len, examples.first_epoch(5))) == 5
    assert {span.epoch for span in examples.first_epoch(10**9)} == {0}
