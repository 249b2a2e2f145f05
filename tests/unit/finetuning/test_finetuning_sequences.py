"""Rows as tokens, their order, batches and losses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from train_jobs.config import ModelConfig
from train_jobs.config.finetune import FinetuneTrainConfig
from train_jobs.config.tasks import SentenceTask
from train_jobs.corpus.tokenize.vocabulary import load_vocabulary
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert.pretraining_heads import initialise
from train_jobs.models.bert.task_heads import BertForSequenceClassification
from train_jobs.readers.sentence_data import Examples, TaskData
from train_jobs.readers.tables import RowTable
from train_jobs.tasks.sentences.classification import Classification, Texts, encode
from train_jobs.tasks.sequences import EncodedRows, batches_by_length, epoch_batches, truncated_lengths

SHAPE = ModelConfig(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
)
CLASSES = SentenceTask(name="t", text="text", label="label", labels=("x", "y", "z"), metrics=("accuracy",))
NUMBER = SentenceTask(name="t", text="text", label="label", metrics=("pearson", "spearman"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]) + "\n")
    return load_vocabulary(path, lowercase=True)


def examples(texts: list[str], pairs: list[str] | None = None, labels: Any = None) -> Examples:
    return Examples(RowTable(Path("t.tsv"), {}, []), texts, pairs, labels)


def rows(count: int = 11, *, regression: bool = False) -> EncodedRows:
    rng = np.random.default_rng(0)
    ids = [np.array([2, *rng.integers(5, 13, length), 3]) for length in rng.integers(1, 40, count)]
    targets = rng.normal(size=count).astype(np.float32) if regression else rng.integers(0, 3, count)
    return EncodedRows(ids, np.fromiter(map(len, ids), np.int64, count), targets, 0)


def task(world: World, *, regression: bool = False, **config: Any) -> Classification:
    model = BertForSequenceClassification(SHAPE, 16, 1 if regression else 3)
    initialise(model, 0)
    train = rows(regression=regression)
    settings = FinetuneTrainConfig(global_batch_size=4, **config)
    described = NUMBER if regression else CLASSES
    split = examples([])
    texts = Texts(
        config=SimpleNamespace(train=settings, max_length=48),  # type: ignore[arg-type]
        rows=train,
        labels=described.class_names,
        notes=[],
        data=TaskData(described, split, {"dev": split}, {}),
        sets={"train": train, "dev": train},
    )
    return Classification(model, texts, seed=3, world=world)


def world(rank: int = 0, size: int = 1) -> World:
    return World(rank=rank, local_rank=rank, size=size, device=torch.device("cpu"))


def test_pair_has_two_segments(tokenizer: Tokenizer) -> None:
    found = encode(examples(["a b", "c"], ["d", "e f g"], [1, 0]), tokenizer, max_length=16, regression=False)
    batch = found.batch(np.array([0, 1]))
    assert batch.input_ids.tolist() == [[2, 5, 6, 3, 8, 3, 0], [2, 7, 3, 9, 10, 11, 3]]
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1]]
    assert (batch.lengths.tolist(), batch.targets.tolist(), batch.tokens) == ([6, 7], [1, 0], 13)
    assert batch.slice(0, 1).input_ids.tolist() == [[2, 5, 6, 3, 8, 3]]
    assert found.truncated == 0


def test_single_text_has_one_segment_truncated_at_end(tokenizer: Tokenizer) -> None:
    found = encode(examples(["a b c d e f g h", "a"]), tokenizer, max_length=8, regression=False)
    assert [ids.tolist() for ids in found.ids] == [[2, 5, 6, 7, 8, 9, 10, 3], [2, 5, 3]]
    assert not found.batch(np.array([0, 1])).token_type_ids.any()
    assert found.truncated == 1
    assert found.targets.tolist() == [-100, -100]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(3, 4, (3, 4)), (9, 2, (8, 2)), (2, 9, (2, 8)), (9, 9, (5, 5)), (6, 20, (5, 5)), (5, 6, (5, 5)), (20, 6, (5, 5))],
)
def test_longer_text_is_truncated_first(first: int, second: int, expected: tuple[int, int]) -> None:
    assert truncated_lengths(first, second, 10) == expected


def test_truncation_matches_hugging_face(tokenizer: Tokenizer) -> None:
    for room in (6, 7):
        tokenizer.enable_truncation(room, strategy="longest_first")
        for first in range(1, 9):
            for second in range(1, 9):
                found = tokenizer.encode("a" + " a" * (first - 1), "b" + " b" * (second - 1), add_special_tokens=False)
                assert truncated_lengths(first, second, room) == (found.type_ids.count(0), found.type_ids.count(1))
    tokenizer.no_truncation()


@pytest.mark.parametrize("grouped", [False, True])
def test_each_epoch_has_each_row_once_in_new_order(grouped: bool) -> None:
    lengths = np.random.default_rng(1).integers(3, 100, 1003)

    def order(seed: int, epoch: int) -> list[list[int]]:
        found = epoch_batches(lengths, global_batch_size=8, seed=seed, epoch=epoch, group_by_length=grouped)
        return [batch.tolist() for batch in found]

    first = order(0, 0)
    assert sorted(row for batch in first for row in batch) == list(range(1003))
    assert [len(batch) for batch in first] == [8] * 125 + [3]
    assert first == order(0, 0)
    assert first != order(0, 1)
    assert first != order(1, 0)


def test_grouped_batches_pad_little_in_random_order() -> None:
    lengths = np.random.default_rng(1).integers(3, 100, 1000)
    given = {"global_batch_size": 8, "seed": 0, "epoch": 0}
    padded = {}
    for grouped in (False, True):
        batches = epoch_batches(lengths, group_by_length=grouped, **given)  # type: ignore[arg-type]
        padded[grouped] = sum(lengths[batch].max() * len(batch) for batch in batches) / lengths.sum()
    assert padded[True] < 1.1 < 1.5 < padded[False]
    means = [lengths[batch].mean() for batch in epoch_batches(lengths, group_by_length=True, **given)]  # type: ignore[arg-type]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3


def test_prediction_batches_by_length_keep_all_rows() -> None:
    found = batches_by_length(np.array([3, 9, 5, 9, 1]), 2)
    assert [batch.tolist() for batch in found] == [[1, 3], [2, 0], [4]]


def test_epochs_continue_and_ranks_share_batches() -> None:
    alone, pair = task(world()), [task(world(rank, 2)) for rank in (0, 1)]
    cursor: dict[str, int] = {}
    seen = []
    for _ in range(4):
        whole, following = alone.train_batch(cursor)
        shares = [one.train_batch(cursor)[0] for one in pair]
        assert sum(map(len, shares)) == len(whole)
        assert sorted(shares[0].lengths.tolist() + shares[1].lengths.tolist()) == sorted(whole.lengths.tolist())
        seen.append(len(whole))
        cursor = following
    assert seen == [4, 4, 3, 4]
    assert cursor == {"epoch": 1, "batch": 1}


@pytest.mark.parametrize("regression", [False, True])
def test_process_without_rows_adds_nothing(regression: bool) -> None:
    one = task(world(3, 4), regression=regression)
    batch, _ = one.train_batch({"epoch": 0, "batch": 2})  # of three rows
    assert one.counts(batch) == [0.0]
    loss, sums = one.loss(batch, torch.tensor([3.0]))
    assert (loss.item(), sums.tolist()) == (0.0, [0.0, 0.0])
    loss.backward()
    assert all(not p.grad.any() for p in one.model.parameters() if p.grad is not None)


@pytest.mark.parametrize("regression", [False, True])
def test_loss_is_same_padded_and_unpadded(regression: bool) -> None:
    losses = []
    for unpad in (False, True):
        one = task(world(), regression=regression, unpad=unpad)
        batch, _ = one.train_batch({})
        losses.append(one.loss(batch, torch.tensor(one.counts(batch)))[0].item())
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0] > 0.1


def test_balanced_classes_have_equal_weight() -> None:
    one = task(world(), class_weights="balanced")
    targets = rows().targets
    batch = rows().batch(np.arange(len(targets)))
    counts = np.bincount(targets)
    assert one.counts(batch)[0] == pytest.approx(len(targets), rel=1e-5)
    first = rows().batch(np.flatnonzero(targets == 0))
    assert one.counts(first)[0] == pytest.approx(len(targets) / 3, rel=1e-5)
    assert counts.min() < counts.max(), "what this is about"
    logits = one._logits(batch)
    weights = torch.from_numpy((len(targets) / (3 * counts)).astype(np.float32))
    expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets), weight=weights)
    assert one.loss(batch, torch.tensor(one.counts(batch)))[0].item() == pytest.approx(expected.item(), abs=1e-5)


def test_predictions_keep_row_order() -> None:
    one = task(world())
    one.model.eval()
    data = rows()
    with torch.no_grad():
        found = one.predict(data, 3)
        for row in range(len(data)):
            alone = one._logits(data.batch(np.array([row])))
            np.testing.assert_allclose(found[row], alone[0].numpy(), atol=1e-5)
        metrics = one.validate(4)
    right = np.mean(one.predictions(found) == data.targets)
    assert metrics["accuracy"] == metrics["score"] == pytest.approx(right)
