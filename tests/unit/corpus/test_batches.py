"""Batches: layout, sharding over ranks, resuming, validation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.unit.corpus.small_corpora import prepare
from train_jobs.artifacts.store_manifest import SpecialIds
from train_jobs.config import DataConfig, ObjectiveConfig
from train_jobs.corpus.examples import epoch_order
from train_jobs.corpus.examples.batches import Batch, PretrainingData, assemble
from train_jobs.corpus.examples.example_stream import Cursor
from train_jobs.corpus.examples.pairs import plan_block
from train_jobs.corpus.preparation import prepare_store
from train_jobs.corpus.store.token_store import TokenStore

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
LENGTH, PREDICTIONS = 32, 5
Maker = Callable[..., PretrainingData]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give small stores epochs of several windows, and more blocks than lanes."""
    monkeypatch.setattr(epoch_order, "WINDOW_SEQUENCES", 40)
    monkeypatch.setattr(epoch_order, "OPEN_BLOCKS", 3)


@pytest.fixture
def make(store: TokenStore) -> Maker:
    def pretraining_data(split: str = "train", *, seed: int = 0, **objective: object) -> PretrainingData:
        return PretrainingData(
            store,
            split,  # type: ignore[arg-type]
            data=DataConfig(sequence_length=LENGTH),
            plan=partial(plan_block, objective=ObjectiveConfig(**objective)),  # type: ignore[arg-type]
            objective=ObjectiveConfig(**objective),  # type: ignore[arg-type]
            max_predictions=PREDICTIONS,
            seed=seed,
        )

    return pretraining_data


def assert_equal(left: Batch, right: Batch) -> None:
    for name, array in left.arrays().items():
        np.testing.assert_array_equal(array, right.arrays()[name], err_msg=name)


def joined(batches: list[Batch]) -> Batch:
    return Batch(**{name: np.concatenate([b.arrays()[name] for b in batches]) for name in batches[0].arrays()})


def test_layout_of_pairs_and_single_sequences() -> None:
    tokens = np.arange(100, 120, dtype=np.uint16)
    rows = np.array([[0, 3, 10, 12, 1], [4, 6, 6, 6, 0], [0, 4, 4, 7, 0]])
    found = assemble(tokens, rows, sequence_length=10, special=SPECIAL)
    assert found.input_ids.tolist() == [
        [2, 100, 101, 102, 3, 110, 111, 3, 0, 0],
        [2, 104, 105, 3, 0, 0, 0, 0, 0, 0],
        [2, 100, 101, 102, 103, 3, 104, 105, 106, 3],
    ]
    assert found.token_type_ids.tolist() == [
        [0, 0, 0, 0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 1, 1, 1, 1],
    ]
    assert found.lengths.tolist() == [8, 4, 10]
    assert [np.flatnonzero(row).tolist() for row in found.candidates] == [
        [1, 2, 3, 5, 6],
        [1, 2],
        [1, 2, 3, 4, 6, 7, 8],
    ]


def test_shapes_types_and_slices(make: Maker) -> None:
    batch, _ = make().batch(Cursor(), global_batch_size=12, rank=0, world_size=1)
    shapes = {name: array.shape for name, array in batch.arrays().items()}
    assert shapes == {
        "input_ids": (12, LENGTH),
        "token_type_ids": (12, LENGTH),
        "lengths": (12,),
        "masked_positions": (12, PREDICTIONS),
        "masked_labels": (12, PREDICTIONS),
        "next_sentence_labels": (12,),
    }
    assert {array.dtype for array in batch.arrays().values()} == {np.dtype(np.int64)}
    assert set(batch.next_sentence_labels.tolist()) == {0, 1}
    assert len(batch.slice(3, 8)) == 5
    assert_equal(joined([batch.slice(0, 5), batch.slice(5, 12)]), batch)


def test_restored_labels_give_text_of_store(make: Maker, store: TokenStore) -> None:
    batch, _ = make().batch(Cursor(), global_batch_size=64, rank=0, world_size=1)
    text = {tuple(store.block("train", i).tokens.tolist()) for i in range(store.blocks("train"))}
    flat = ["," + ",".join(map(str, tokens)) + "," for tokens in text]
    for row in range(len(batch)):
        ids = batch.input_ids[row].copy()
        real = batch.masked_labels[row] >= 0
        ids[batch.masked_positions[row][real]] = batch.masked_labels[row][real]
        first_segment = ids[1 : np.flatnonzero((ids == SPECIAL.sep) & (batch.token_type_ids[row] == 0))[0]]
        needle = "," + ",".join(map(str, first_segment.tolist())) + ","
        assert any(needle in haystack for haystack in flat)


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_global_batch_is_same_for_any_world_size(make: Maker, world_size: int) -> None:
    cursor = Cursor(window=1, offset=3)
    whole, following = make().batch(cursor, global_batch_size=100, rank=0, world_size=1)
    parts = [
        make().batch(cursor, global_batch_size=100, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    assert {next_cursor for _, next_cursor in parts} == {following}
    sizes = [len(part) for part, _ in parts]
    assert max(sizes) - min(sizes) <= 1
    assert_equal(joined([part for part, _ in parts]), whole)


def test_resume_from_cursor_equals_uninterrupted_run(make: Maker) -> None:
    straight, cursor, cursors = make(), Cursor(), []
    batches = []
    for _ in range(30):  # more than an epoch
        cursors.append(cursor.as_dict())
        batch, cursor = straight.batch(cursor, global_batch_size=50, rank=0, world_size=1)
        batches.append(batch)
    assert cursor.epoch > 0
    for step in (0, 11, 29):
        batch, _ = make().batch(Cursor.from_dict(cursors[step]), global_batch_size=50, rank=0, world_size=1)
        assert_equal(batch, batches[step])


def test_masks_are_independent_of_batch_size(make: Maker) -> None:
    whole, _ = make().batch(Cursor(), global_batch_size=30, rank=0, world_size=1)
    cursor, parts = Cursor(), []
    for size in (1, 9, 20):
        part, cursor = make().batch(cursor, global_batch_size=size, rank=0, world_size=1)
        parts.append(part)
    assert_equal(joined(parts), whole)


def test_epoch_and_seed_change_pairs_and_masks(tmp_path: Path, corpus_file: Callable[..., Path]) -> None:
    config = DataConfig(text=[corpus_file()], vocab_size=200, sequence_length=LENGTH)
    one_block = prepare_store(config, tmp_path / "store", progress=lambda _: None)
    assert one_block.blocks("train") == 1

    def batch(seed: int, epoch: int) -> Batch:
        data = PretrainingData(
            one_block,
            "train",
            data=config,
            plan=partial(plan_block, objective=ObjectiveConfig(next_sentence=True)),
            objective=ObjectiveConfig(),
            max_predictions=PREDICTIONS,
            seed=seed,
        )
        return data.batch(Cursor(epoch=epoch), global_batch_size=100, rank=0, world_size=1)[0]

    first = batch(0, 0)
    for other in (batch(0, 1), batch(1, 0)):
        equal_length = first.lengths == other.lengths
        assert 0 < equal_length.sum() < 95
        assert (first.masked_positions == other.masked_positions).all(axis=1)[equal_length].mean() < 0.5


def test_static_masks_repeat_with_their_examples(make: Maker) -> None:
    def epoch(number: int, duplicates: int | None) -> dict[bytes, bytes]:
        """Map text with restored labels to the masked positions and their inputs."""
        data, cursor, found = make(duplicates=duplicates), Cursor(epoch=number), {}
        while cursor.epoch == number:
            batch, cursor = data.batch(cursor, global_batch_size=1, rank=0, world_size=1)
            ids, real = batch.input_ids[0].copy(), batch.masked_labels[0] >= 0
            ids[batch.masked_positions[0][real]] = batch.masked_labels[0][real]
            found[ids.tobytes()] = batch.masked_positions.tobytes() + batch.input_ids.tobytes()
        return found

    first, again = epoch(0, 3), epoch(3, 3)
    assert len(first) > 100
    assert again == first
    assert epoch(0, None) == first
    assert epoch(1, 3) == epoch(1, None) != first


def held_out(data: PretrainingData, most: int, size: int, rank: int = 0, world: int = 1) -> list[Batch]:
    return [batch for _, batch in data.validation_batches(most, size, rank, world)]


def test_validation_same_for_any_training_and_split(make: Maker) -> None:
    whole = held_out(make("validation"), 50, 8)
    assert [len(batch) for batch in whole] == [8, 8, 8, 8, 8, 8, 2]
    assert_equal(joined(held_out(make("validation", seed=9), 50, 8)), joined(whole))
    other = make("validation", masked_lm_probability=0.4, whole_word=True, duplicates=1)
    assert_equal(joined(held_out(other, 50, 8)), joined(whole))
    shared = [batch for rank in range(3) for batch in held_out(make("validation"), 50, 8, rank, 3)]
    assert [len(batch) for batch in shared] == [8, 8, 8, 8, 8, 8, 2]
    assert_equal(joined(shared), joined(whole))


def test_validation_stops_at_end_of_split(make: Maker) -> None:
    data = make("validation")
    total = sum(map(len, held_out(data, 10**6, 64)))
    assert 50 < total < 1000
    assert held_out(data, 10**6, 64, 1, total + 1) in ([], [held_out(data, 10**6, 64)[0]])


def test_whole_words_follow_vocabulary(make: Maker, store: TokenStore) -> None:
    pieces = store.vocabulary.read_text(encoding="utf-8").splitlines()
    batch, _ = make(whole_word=True).batch(Cursor(), global_batch_size=200, rank=0, world_size=1)
    longest = 0
    for row in range(len(batch)):
        real = batch.masked_labels[row] >= 0
        chosen = dict(zip(batch.masked_positions[row][real].tolist(), batch.masked_labels[row][real], strict=True))
        ids = batch.input_ids[row].copy()
        ids[list(chosen)] = list(chosen.values())
        words: list[list[int]] = []
        for position in range(1, batch.lengths[row]):
            if ids[position] == SPECIAL.sep:
                continue
            if words and pieces[ids[position]].startswith("##"):
                words[-1].append(position)
            else:
                words.append([position])
        predicted = [word for word in words if word[0] in chosen]
        assert [position for word in predicted for position in word] == sorted(chosen)
        longest = max(longest, *map(len, predicted), 0)
    assert longest > 2


def test_sequences_without_next_sentence_are_single(make: Maker) -> None:
    data = make(next_sentence=False, sequences="doc-sentences")
    batch, _ = data.batch(Cursor(), global_batch_size=40, rank=0, world_size=1)
    assert not batch.token_type_ids.any()
    assert not batch.next_sentence_labels.any()
    assert ((batch.input_ids == SPECIAL.sep).sum(axis=1) == 1).all()
    assert 0.8 * LENGTH < batch.lengths.max() <= LENGTH


def test_source_weights_apply_to_training_only(tmp_path: Path, corpus_file: Callable[..., Path]) -> None:
    paths = [str(corpus_file(f"{name}.txt", documents=60, seed=seed)) for name, seed in (("a", 1), ("b", 2))]

    def data_of(first: float, second: float) -> tuple[PretrainingData, dict[int, int]]:
        text = [{"path": path, "weight": weight} for path, weight in zip(paths, (first, second), strict=True)]
        config = DataConfig.model_validate(
            {"text": text, "vocab_size": 300, "validation_fraction": 0.25, "sequence_length": LENGTH}
        )
        store = prepare(config, tmp_path / f"{first}-{second}", block_tokens=500)
        data = PretrainingData(
            store,
            "train",
            data=config,
            plan=partial(plan_block, objective=ObjectiveConfig(next_sentence=True)),
            objective=ObjectiveConfig(),
            max_predictions=PREDICTIONS,
            seed=0,
        )
        return data, {block: number for number, blocks in store.blocks_by_source("train").items() for block in blocks}

    def sequences(data: PretrainingData, source: dict[int, int]) -> list[int]:
        spans, cursor = [], Cursor()
        while cursor.epoch < 2:
            taken, cursor = data._stream.take(cursor, 1)
            spans += taken
        return [sum(source[int(span.blocks[0])] == number for span in spans) for number in (0, 1)]

    even, uneven = data_of(1, 1), data_of(3, 0.5)
    once, often = sequences(*even), sequences(*uneven)
    assert often[0] == pytest.approx(3 * once[0], rel=0.1)
    assert often[1] == pytest.approx(0.5 * once[1], rel=0.1)
    for left, right in zip(*(held_out(data, 30, 10) for data, _ in (even, uneven)), strict=True):
        assert_equal(left, right)


def test_separators_between_documents_are_never_predicted(make: Maker) -> None:
    full, _ = make(next_sentence=False).batch(Cursor(), global_batch_size=64, rank=0, world_size=1)
    one, _ = make(next_sentence=False, sequences="doc-sentences").batch(
        Cursor(), global_batch_size=64, rank=0, world_size=1
    )
    assert ((one.input_ids == SPECIAL.sep).sum(axis=1) == 1).all()
    separators = (full.input_ids == SPECIAL.sep).sum(axis=1)
    assert separators.max() > 1
    assert not full.token_type_ids.any()
    rows = np.arange(len(full))
    assert (full.input_ids[rows, full.lengths - 1] == SPECIAL.sep).all()
    assert (full.input_ids[rows, full.lengths - 2] != SPECIAL.sep).all()
    labels = full.masked_labels[full.masked_labels != -100]
    assert not np.isin(labels, (SPECIAL.sep, SPECIAL.cls)).any()
    assert full.lengths.mean() > one.lengths.mean()
