"""Use of a text by sequences: figures against real passes, warnings, and batches by tokens."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.unit.corpus.small_corpora import prepare, sentences, sources
from train_jobs.config import DataConfig, ObjectiveConfig, PretrainConfig, SpecError
from train_jobs.corpus.examples.batches import Batch, PretrainingData
from train_jobs.corpus.examples.example_stream import Cursor
from train_jobs.corpus.examples.pairs import plan_block
from train_jobs.corpus.examples.text_use import sequence_figures
from train_jobs.corpus.store.token_store import TokenStore

LENGTH = 48
OBJECTIVES = (
    ObjectiveConfig(),
    ObjectiveConfig(next_sentence=False),
    ObjectiveConfig(next_sentence=False, sequences="doc-sentences"),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    folder = tmp_path_factory.mktemp("text-use")
    text = sources(folder, 2, documents=60)
    return prepare(DataConfig(text=text, vocab_size=300), folder / "store", block_tokens=1500)


def steps(store: TokenStore, objective: ObjectiveConfig, count: int, size: int) -> list[Batch]:
    data = PretrainingData(
        store,
        "train",
        data=DataConfig(sequence_length=LENGTH),
        plan=partial(plan_block, objective=objective),
        objective=objective,
        max_predictions=8,
        seed=3,
    )
    found, cursor = [], Cursor()
    for _ in range(count):
        batch, cursor = data.batch(cursor, global_batch_size=size, rank=0, world_size=1)
        found.append(batch)
    return found


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_figures_are_those_of_real_passes(store: TokenStore, objective: ObjectiveConfig) -> None:
    plan = partial(plan_block, objective=objective)
    found = sequence_figures(store, data=DataConfig(sequence_length=LENGTH), objective=objective, plan=plan)
    batches = steps(store, objective, count=20, size=100)
    assert found.tokens_per_sequence == pytest.approx(sum(batch.tokens for batch in batches) / 2000, rel=0.04)
    random = np.mean([batch.next_sentence_labels.mean() for batch in batches])
    assert found.random_pairs == pytest.approx(random, abs=0.04)
    assert (found.text_used == pytest.approx(1.0, abs=0.001)) == (not objective.next_sentence)


def test_text_used_counts_each_token_once(store: TokenStore) -> None:
    used = tokens = 0
    for number in range(store.blocks("train")):
        block = store.block("train", number)
        rows = plan_block(
            block,
            objective=ObjectiveConfig(),
            sequence_length=16,
            short_sequence_probability=0.0,
            rng=np.random.default_rng(number),
        )
        used += len({place for row in rows.tolist() for place in (*range(*row[:2]), *range(*row[2:4]))})
        tokens += len(block.tokens)
    found = sequence_figures(
        store,
        data=DataConfig(sequence_length=16, short_sequence_probability=0.0),
        objective=ObjectiveConfig(),
        plan=partial(plan_block, objective=ObjectiveConfig()),
    )
    assert used < 0.9 * tokens
    assert found.text_used == pytest.approx(used / tokens, abs=0.02)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_batch_tokens_set_the_number_of_sequences(store: TokenStore, objective: ObjectiveConfig) -> None:
    wanted = 4_000
    plan, data = partial(plan_block, objective=objective), DataConfig(sequence_length=LENGTH)
    mean = sequence_figures(store, data=data, objective=objective, plan=plan).tokens_per_sequence
    config = PretrainConfig.model_validate({"train": {"batch_tokens": wanted}, "data": {"sequence_length": LENGTH}})
    size = config.with_batch_of(mean).train.global_batch_size
    assert np.mean([batch.tokens for batch in steps(store, objective, 20, size)]) == pytest.approx(wanted, rel=0.05)


def test_batch_of_tokens_is_rounded_to_divide() -> None:
    config = PretrainConfig.model_validate({"train": {"batch_tokens": 1_000_000, "micro_batch_size": 32}})
    sized = config.with_batch_of(81.3)
    assert sized.train.global_batch_size % 128 == 0
    assert sized.train.global_batch_size * 81.3 == pytest.approx(1_000_000, rel=0.01)
    assert sized.train.accumulation_steps(4) == sized.train.global_batch_size // 128
    assert config.with_batch_of(500_000.0).train.accumulation_steps(2) == 1
    with pytest.raises(SpecError, match="fewer than 4 sequences, one a process"):
        config.with_batch_of(500_000.0).train.accumulation_steps(4)
    unchanged = PretrainConfig()
    assert unchanged.with_batch_of(81.3) is unchanged


def test_manifest_records_figures_and_warns_of_random_pairs(tmp_path: Path) -> None:
    """Documents of one sentence have no second part of their own: every pair is random."""
    (tmp_path / "lines.txt").write_text("\n\n".join(sentences(1, 500)) + "\n")
    manifest = prepare(DataConfig(text=[str(tmp_path / "lines.txt")], vocab_size=300), tmp_path / "store").manifest
    assert {one.layout for one in manifest.sequences} == {"pairs", "doc-sentences"}
    pairs = [one for one in manifest.sequences if one.layout == "pairs"]
    assert [one.random_pairs for one in pairs] == [1.0] * len(pairs)
    (warning,) = pairs[0].warnings()
    assert warning.startswith("100% of next-sentence pairs are random at 64 tokens (usual: 50% to 75%)")
    assert not [text for one in manifest.sequences if one.layout != "pairs" for text in one.warnings()]
