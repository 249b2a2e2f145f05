"""Bootstrap intervals: each statistic against scikit-learn and SciPy, widths against theory, and the job's results."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finetune_jobs import WORDS, run, settings
from scipy import stats
from sklearn import metrics as theirs

from orchestrator.runs.results import read_results
from train_jobs.config.finetune import ColumnsConfig, FinetuneConfig
from train_jobs.config.tasks import own_metrics
from train_jobs.evaluation import resampling
from train_jobs.readers.sentence_data import hold_back, read_data, read_table_task
from train_jobs.tasks.entities.conll import entity_intervals, entity_rows, entity_scores
from train_jobs.tasks.sentences.metrics import class_resamples, class_rows


def drawn(rows: int, classes: int = 2, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, classes, rows)
    prediction = np.where(rng.random(rows) < 0.7, label, rng.integers(0, classes, rows))
    return {"label": label, "prediction": prediction, "margin": np.round(label + rng.normal(0, 1, rows), 1)}


@pytest.mark.parametrize("seed", range(4))
def test_weighted_statistics_match_those_of_repeated_rows(seed: int) -> None:
    rng, columns = np.random.default_rng(seed), drawn(60, 2 + seed % 2, seed)
    weights = rng.multinomial(60, [1 / 60] * 60, size=3).astype(float)
    floats = {name: values.astype(float) for name, values in columns.items()}
    for row, counts in enumerate(weights):
        label, guess, margin = (np.repeat(values, counts.astype(int)) for values in columns.values())
        expected = {
            resampling.accuracy: theirs.accuracy_score(label, guess),
            resampling.f1_of(1): theirs.f1_score(label == 1, guess == 1),
            resampling.macro_f1: theirs.f1_score(label, guess, average="macro"),
            resampling.balanced_accuracy: theirs.balanced_accuracy_score(label, guess),
            resampling.matthews: theirs.matthews_corrcoef(label, guess),
            resampling.auroc_of(1): theirs.roc_auc_score(label == 1, margin),
        }
        for statistic, value in expected.items():
            assert statistic(weights, floats)[row] == pytest.approx(value, abs=1e-12)
        numbers = {"label": floats["margin"], "prediction": floats["margin"] ** 2 + floats["label"]}
        one, other = (np.repeat(values, counts.astype(int)) for values in numbers.values())
        assert resampling.pearson(weights, numbers)[row] == pytest.approx(stats.pearsonr(one, other)[0], abs=1e-12)
        assert resampling.spearman(weights, numbers)[row] == pytest.approx(stats.spearmanr(one, other)[0], abs=1e-12)


def test_interval_of_accuracy_has_the_binomial_width() -> None:
    right = np.arange(1000) < 800
    found = resampling.bootstrap({"label": np.ones(1000), "prediction": right}, {"accuracy": resampling.accuracy})
    low, high = resampling.interval(found["accuracy"]) or (0, 0)
    width = 1.96 * np.sqrt(0.8 * 0.2 / 1000)
    assert (low, high) == pytest.approx((0.8 - width, 0.8 + width), abs=0.004)
    assert len(found["accuracy"]) == resampling.RESAMPLES


def test_interval_covers_the_truth_in_95_of_100_samples() -> None:
    """400 samples of 200 rows of a known accuracy: the share of intervals that contain it is 0.95 +- 0.03."""
    rng, hits = np.random.default_rng(1), 0
    for _ in range(400):
        found = resampling.bootstrap(
            {"label": np.ones(200), "prediction": rng.random(200) < 0.7}, {"accuracy": resampling.accuracy}
        )
        low, high = resampling.interval(found["accuracy"]) or (0, 0)
        hits += low <= 0.7 <= high
    assert 0.92 <= hits / 400 <= 0.98


def test_interval_depends_on_rows_alone_and_not_on_their_order() -> None:
    columns, order = drawn(300), np.random.default_rng(9).permutation(300)
    shuffled = {name: values[order] for name, values in columns.items()}
    metrics = own_metrics(("a", "b"), "a")
    one, other = (
        class_resamples(metrics, class_rows(metrics, some["label"], some["prediction"], some["margin"]))
        for some in (columns, shuffled)
    )
    assert {name: list(values) for name, values in one.items()} == {
        name: list(values) for name, values in other.items()
    }


def test_entities_are_resampled_by_sentence() -> None:
    gold = [["B-PER", "O"], ["O", "B-LOC"], ["B-PER", "B-LOC"]] * 20
    guess = [["B-PER", "O"], ["O", "O"], ["B-PER", "B-PER"]] * 20
    scores, found = entity_scores(gold, guess), entity_intervals(entity_rows(gold, guess))
    assert {"precision", "recall", "f1", "score", "f1_PER"} <= found.keys()
    assert all(low <= scores[name] <= high for name, (low, high) in found.items() if name in scores)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables in which the rare label "cancer" goes with the word `not`."""
    folder, draw = tmp_path_factory.mktemp("tables"), random.Random(5)
    for name, rows in {"train": 160, "dev": 80}.items():
        lines = []
        for _ in range(rows):
            words, rare = draw.choices(WORDS, k=6), draw.random() < 0.3
            lines.append(f"{' '.join(['not', *words] if rare else words)}\t{'cancer' if rare else 'normal'}")
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("seeds", [[1], [1, 2]])
def test_result_of_own_task_has_intervals_and_base_rate(
    bert: Path, tables: Path, tmp_path: Path, seeds: list[int]
) -> None:
    data = {"train": tables / "train.tsv", "validation": tables / "dev.tsv", "positive_label": "cancer"}
    assert run(tmp_path, settings(bert, "own", data, seeds=seeds, train={"epochs": 2})) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    found = read_results(result)
    assert found is not None
    (scores,) = found.scores
    assert {"accuracy", "f1", "macro_f1", "balanced_accuracy", "matthews", "auroc", "score"} <= scores.metrics.keys()
    for name, figure in scores.metrics.items():
        assert figure.low is not None, name
        assert figure.high is not None
        assert figure.low <= figure.mean <= figure.high, name
    labels = [line.split("\t")[1] for line in (tables / "dev.tsv").read_text().splitlines()[1:]]
    assert scores.base_rate == pytest.approx(labels.count("normal") / len(labels))
    assert f"most frequent label {scores.base_rate:.4f}" in scores.text
    one = result if len(seeds) == 1 else result["seeds"][0]
    classes = one["sets"]["dev"]["per_class"]
    assert classes["cancer"]["f1"] == pytest.approx(one["metrics"]["f1"])
    assert classes["normal"]["rows"] == labels.count("normal")


def test_held_back_rows_choose_nothing_and_are_scored_once(bert: Path, tables: Path, tmp_path: Path) -> None:
    """dev is what remains of the validation rows; test_... are the scores of the others, as `predict` finds them."""
    data = {"train": tables / "train.tsv", "validation": tables / "dev.tsv", "test_fraction": 0.5}
    config = settings(bert, "own", data, train={"epochs": 2})
    assert run(tmp_path / "one", config) == 0
    result = json.loads((tmp_path / "one" / "out" / "result.json").read_text())
    rows = {name: facts["rows"] for name, facts in result["sets"].items()}
    assert sum(rows.values()) == 80
    assert 25 <= rows["test"] <= 55
    assert {"test_accuracy", "test_macro_f1", "test_auroc"} <= result["metrics"].keys() & result["intervals"].keys()
    # the same rows as files: a labelled test set has the same scores, and dev alone chooses
    split = read_data(FinetuneConfig.model_validate(config))
    for name, part in {"dev": split.dev["dev"], "test": split.held_back["held_back"]}.items():
        lines = [f"{text}\t{split.task.labels[label]}" for text, label in zip(part.texts, part.labels, strict=True)]
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    files = {"train": tables / "train.tsv", "validation": tmp_path / "dev.tsv", "test": tmp_path / "test.tsv"}
    assert run(tmp_path / "two", settings(bert, "own", files, train={"epochs": 2})) == 0
    other = json.loads((tmp_path / "two" / "out" / "result.json").read_text())
    assert other["metrics"] == result["metrics"]
    assert other["intervals"] == result["intervals"]


def test_equal_texts_are_held_back_together(tables: Path) -> None:
    columns = ColumnsConfig()
    whole = read_table_task(columns, {"train": tables / "train.tsv"})[1]["train"]
    doubled = replace(whole, texts=whole.texts * 2, labels=[*(whole.labels or []), *(whole.labels or [])])
    doubled.table.lines.extend(doubled.table.lines)
    stay, back = hold_back(doubled, 0.3)
    assert not {*stay.texts} & {*back.texts}
    assert 0.2 < len(back) / len(doubled) < 0.4
