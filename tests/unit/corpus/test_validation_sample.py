"""The sample of held-out documents, and the figures of a validation."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.unit.corpus.small_corpora import prepare, sources
from train_jobs.config import DataConfig, ObjectiveConfig
from train_jobs.config.verdict import LossVerdict, margin_text, verdict
from train_jobs.corpus.examples.example_stream import ExampleSpan
from train_jobs.corpus.examples.held_out_figures import SUMS, UnigramModel, unigram_figures, weighted_mean
from train_jobs.corpus.examples.pairs import plan_block
from train_jobs.corpus.examples.validation_sample import HeldOutSample, validation_sample
from train_jobs.corpus.store.token_store import TokenStore

OF_ONE_DOCUMENT = ObjectiveConfig(next_sentence=False, sequences="doc-sentences")
PLAN = partial(plan_block, objective=OF_ONE_DOCUMENT)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """Return a store of a large source, a middle one and a small one, with many blocks."""
    folder = tmp_path_factory.mktemp("mixed")
    small, middle, large = (sources(folder, count, documents=size)[-1] for count, size in ((3, 16), (2, 80), (1, 400)))
    text = [large, {"path": middle, "name": "my web/text"}, {"path": small, "name": "small"}]
    data = DataConfig.model_validate({"text": text, "vocab_size": 300, "validation_fraction": 0.4})
    return prepare(data, folder / "store", block_tokens=600)


def sample_of(store: TokenStore, most: int, length: int = 16) -> list[HeldOutSample]:
    return validation_sample(store, data=DataConfig(sequence_length=length), plan=PLAN, max_sequences=most)


def test_every_source_and_block_is_sampled(mixed: TokenStore) -> None:
    """Before, the first blocks filled a validation, and other sources had no sequence."""
    found = sample_of(mixed, 120)
    assert [one.name for one in found] == [source.name for source in mixed.manifest.sources]
    held = [
        sum(mixed.block_tokens("validation")[number] for number in numbers)
        for numbers in mixed.blocks_by_source("validation").values()
    ]
    assert [one.share for one in found] == pytest.approx([tokens / sum(held) for tokens in held])
    assert 115 <= sum(len(one.examples) for one in found) <= 120
    assert min(len(one.examples) for one in found) >= 15
    texts = [
        ",".join(map(str, mixed.block("validation", number).tokens.tolist()))
        for number in mixed.blocks_by_source("validation")[0]
    ]
    rows, tokens = found[0].examples.rows, found[0].examples.tokens
    ours = {
        number
        for row in rows
        for number, text in enumerate(texts)
        if ",".join(map(str, tokens[row[0] : row[1]].tolist())) in text
    }
    assert len(texts) > 4
    assert len(ours) > len(texts) / 2


def test_whole_split_when_it_is_small(mixed: TokenStore) -> None:
    found = sample_of(mixed, 10**6)
    used = sum(len(one.examples.tokens) for one in found)
    assert used == mixed.manifest.splits["validation"].tokens


def test_fewer_sequences_than_sources_are_allowed(mixed: TokenStore) -> None:
    assert sum(len(one.examples) for one in sample_of(mixed, 2)) <= 2


def sample_with(name: str, share: float, tokens: list[int]) -> HeldOutSample:
    none = np.zeros(0, np.int64)
    return HeldOutSample(
        name, share, ExampleSpan(none, none, none, np.zeros((0, 5), np.int64), np.array(tokens, np.uint16))
    )


def test_entropy_is_of_validated_tokens() -> None:
    """Two sources of equal size that share no token: one bit more than each alone. A separator is never validated."""
    sample = [sample_with("a", 0.5, [0, 4, 1, 4]), sample_with("b/c d", 0.5, [2, 2, 3, 3])]
    model = UnigramModel(sample, 5, separator=4)
    batches = [model.sums(source, np.array(labels), 0.0) for source, labels in ((0, [0, 1]), (1, [2, 3]))]
    found = unigram_figures(sample, np.array(batches), with_margin=True)
    assert found["unigram_entropy"] == pytest.approx(2 * math.log(2))
    assert model.base_rate == pytest.approx(0.25)
    assert found["unigram_entropy.a"] == found["unigram_entropy.b-c-d"] == pytest.approx(math.log(2))
    assert "unigram_margin_error" not in found  # one batch has no spread


def test_error_bar_equals_spread_of_batches() -> None:
    """With batches of equal size, the standard error is that of the mean of the batches' margins."""
    draw = np.random.default_rng(0)
    sample = [sample_with("a", 1.0, [0, 1, 2, 3])]
    model, losses = UnigramModel(sample, 5, separator=4), draw.normal(1.0, 0.3, 50)
    sums = np.zeros((1, SUMS))
    for loss in losses:
        sums[0] += model.sums(0, np.array([0, 1, 2]), 3 * loss)
    found = unigram_figures(sample, sums, with_margin=True)
    assert found["unigram_margin_error"] == pytest.approx(losses.std(ddof=1) / math.sqrt(50), rel=1e-9)


def test_mean_is_weighted_by_share_of_held_out_tokens() -> None:
    sample = [sample_with("a", 0.9, [0]), sample_with("a", 0.1, [0])]
    found = weighted_mean(sample, [{"loss": 1.0, "mlm_loss": 1.0}, {"loss": 3.0, "mlm_loss": 3.0}])
    assert found == pytest.approx({"loss": 1.2, "mlm_loss": 1.2, "mlm_loss.a-0": 1.0, "mlm_loss.a-1": 3.0})


@pytest.mark.parametrize(
    ("loss", "error", "answer"),
    [
        (4.8, 0.05, LossVerdict.LEARNED),
        (4.95, 0.05, LossVerdict.NO_BETTER),
        (5.05, 0.05, LossVerdict.NO_BETTER),
        (5.2, 0.05, LossVerdict.WORSE),
        (4.95, None, LossVerdict.LEARNED),
        (float("nan"), 0.05, LossVerdict.NO_BETTER),
    ],
)
def test_verdict_has_three_answers(loss: float, error: float | None, answer: LossVerdict) -> None:
    assert verdict(loss, 5.0, error) is answer


def test_margin_has_two_standard_errors() -> None:
    assert margin_text(4.5, 5.0, 0.02) == "0.5000 ± 0.0400 below unigram entropy"
    assert margin_text(5.5, 5.0, None) == "0.5000 above unigram entropy"


def test_renamed_sources_have_their_names(tmp_path: Path) -> None:
    """Names are not in the key of a store: one that exists is used again, with the names of this configuration."""
    paths = sources(tmp_path, 2, 60)

    def store(*names: str) -> TokenStore:
        text = [{"path": path, "name": name} for path, name in zip(paths, names, strict=True)]
        data = {"text": text, "vocab_size": 300, "validation_fraction": 0.4}
        return prepare(DataConfig.model_validate(data), tmp_path / "store")

    first, second = store("alpha", "beta"), store("legal", "medical")
    assert first.manifest.key == second.manifest.key
    assert [source.name for source in second.manifest.sources] == ["legal", "medical"]
    assert [part.name for part in sample_of(second, 60)] == ["legal", "medical"]
