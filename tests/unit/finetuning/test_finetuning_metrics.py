"""Metrics: golden values computed by hand and by scikit-learn and SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from train_jobs.config.tasks import GLUE_SUITE, own_metrics
from train_jobs.tasks.sentences.metrics import METRICS, auroc, base_rate, class_scores, is_collapsed, per_class, scores

PERFECT = ([0, 1, 1, 0], [0, 1, 1, 0])


@pytest.mark.parametrize(
    ("name", "labels", "predictions", "expected"),
    [
        ("accuracy", *PERFECT, 1.0),
        ("accuracy", [0, 1, 1, 0], [1, 1, 1, 1], 0.5),
        ("accuracy", [2, 1, 0], [2, 0, 0], 2 / 3),
        ("f1", *PERFECT, 1.0),
        ("f1", [1, 1, 0, 0], [1, 0, 1, 0], 0.5),
        ("f1", [1, 1, 0], [1, 1, 1], 0.8),  # MRPC's baseline: all equivalent
        ("f1", [1, 1, 0], [0, 0, 0], 0.0),
        ("f1", [0, 0], [0, 0], 0.0),  # no positives and none predicted: undefined, so 0
        ("matthews", *PERFECT, 1.0),
        ("matthews", [0, 1], [1, 0], -1.0),
        ("matthews", [1, 1, 1, 0], [1, 1, 1, 1], 0.0),  # CoLA's baseline: all acceptable
        ("matthews", [1, 1], [0, 1], 0.0),
        ("matthews", [1, 1, 1, 0], [1, 0, 1, 1], -1 / 3),
        ("matthews", [0, 1, 2], [0, 1, 2], 1.0),  # AX has three classes
        ("matthews", [0, 1, 2, 2], [0, 2, 2, 1], 0.2),
        ("pearson", [1, 2, 3], [2, 4, 6], 1.0),
        ("pearson", [1, 2, 3], [3, 2, 1], -1.0),
        ("pearson", [1, 2, 3], [1, 2, 4], 3 / math.sqrt(28 / 3)),
        ("pearson", [1, 2, 3], [0.1, 0.1, 0.1], 0.0),
        ("pearson", [2, 2], [1, 5], 0.0),
        ("pearson", [0.1, 0.1, 0.1], [0.7, 0.7, 0.7], 0.0),  # the means are not exactly 0.1 and 0.7
        ("spearman", [1, 2, 3], [1, 100, 1000], 1.0),
        ("spearman", [1, 2, 3, 4], [1, 2, 2, 3], 4.5 / math.sqrt(22.5)),  # a tie shares its rank
        ("spearman", [1, 1, 2], [3, 3, 1], -1.0),
        ("spearman", [1, 2, 3], [7, 7, 7], 0.0),
    ],
)
def test_metric_has_golden_value(name: str, labels: list[float], predictions: list[float], expected: float) -> None:
    assert METRICS[name](labels, predictions) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_metrics_match_scikit_learn_and_scipy(seed: int) -> None:
    theirs, stats = pytest.importorskip("sklearn.metrics"), pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(seed)
    pair = rng.integers(0, 2, (2, 300))
    numbers = np.round(rng.uniform(0, 5, 300), 1)  # with ties
    guesses = np.round(numbers + rng.normal(0, 2, 300), 1 if seed % 2 else 6)
    assert METRICS["accuracy"](*pair) == pytest.approx(theirs.accuracy_score(*pair), abs=1e-9)
    assert METRICS["f1"](*pair) == pytest.approx(theirs.f1_score(*pair), abs=1e-9)
    assert METRICS["pearson"](numbers, guesses) == pytest.approx(stats.pearsonr(numbers, guesses)[0], abs=1e-9)
    assert METRICS["spearman"](numbers, guesses) == pytest.approx(stats.spearmanr(numbers, guesses)[0], abs=1e-9)
    for classes in (2, 3, 7):
        several = rng.integers(0, classes, (2, 300))
        assert METRICS["matthews"](*several) == pytest.approx(theirs.matthews_corrcoef(*several), abs=1e-9)


@pytest.mark.parametrize("constant", [0, 1, 2])
def test_constant_prediction_matches_scikit_learn(constant: int) -> None:
    theirs = pytest.importorskip("sklearn.metrics")
    labels = np.random.default_rng(3).integers(0, 3, 300)
    guesses = np.full_like(labels, constant)
    assert METRICS["accuracy"](labels, guesses) == pytest.approx(theirs.accuracy_score(labels, guesses), abs=1e-9)
    assert METRICS["matthews"](labels, guesses) == pytest.approx(theirs.matthews_corrcoef(labels, guesses), abs=1e-9)
    two, guess = labels > 0, guesses > 0
    assert METRICS["f1"](two, guess) == pytest.approx(theirs.f1_score(two, guess, zero_division=0), abs=1e-9)


@pytest.mark.parametrize(
    ("task", "labels", "predictions", "expected"),
    [
        ("CoLA", [1, 0, 1, 1], [1, 0, 0, 1], {"matthews": 1 / math.sqrt(3)}),
        ("CoLA", [1, 0, 1, 1], [1, 1, 1, 1], {"matthews": 0.0}),
        ("SST-2", [1, 0, 1, 1], [1, 1, 1, 1], {"accuracy": 0.75}),
        ("MRPC", [1, 0, 1, 1], [1, 1, 1, 1], {"f1": 6 / 7, "accuracy": 0.75}),
        ("MRPC", [1, 0, 1, 1], [0, 0, 0, 0], {"f1": 0.0, "accuracy": 0.25}),
        ("QQP", [0, 0, 1, 1], [1, 0, 1, 0], {"f1": 0.5, "accuracy": 0.5}),
        ("QQP", [0, 0, 0], [0, 0, 0], {"f1": 0.0, "accuracy": 1.0}),
        ("STS-B", [0.0, 2.5, 5.0], [0.0, 2.5, 5.0], {"pearson": 1.0, "spearman": 1.0}),
        ("STS-B", [0.0, 0.0, 5.0], [1.0, 1.0, 1.5], {"pearson": 1.0, "spearman": 1.0}),
        ("STS-B", [1.0, 2.0, 2.0, 3.0], [1.0, 1.0, 2.0, 4.0], {"pearson": 3 / math.sqrt(12), "spearman": 7.5 / 9}),
        ("STS-B", [0.0, 2.5, 5.0], [2.7, 2.7, 2.7], {"pearson": 0.0, "spearman": 0.0}),
        ("MNLI", [0, 1, 2, 2], [0, 0, 2, 0], {"accuracy": 0.5}),  # no value counts as the second class
        ("MNLI", [0, 1, 2, 2], [2, 2, 2, 2], {"accuracy": 0.5}),
        ("QNLI", [0, 1, 1], [1, 1, 1], {"accuracy": 2 / 3}),
        ("RTE", [0, 1, 1], [0, 0, 0], {"accuracy": 1 / 3}),
        ("WNLI", [0, 1, 0], [1, 0, 1], {"accuracy": 0.0}),
        ("AX", [0, 1, 2, 2], [2, 2, 2, 2], {"matthews": 0.0}),
        ("AX", [0, 1, 2, 2], [0, 2, 2, 1], {"matthews": 0.2}),
    ],
)
def test_each_glue_task_has_golden_score(
    task: str, labels: list[float], predictions: list[float], expected: dict[str, float]
) -> None:
    found = scores(GLUE_SUITE[task].metrics, labels, predictions)
    assert found == pytest.approx({**expected, "score": sum(expected.values()) / len(expected)}, abs=1e-12)


def test_golden_scores_cover_all_glue_tasks() -> None:
    (marks,) = (mark for mark in test_each_glue_task_has_golden_score.pytestmark)  # type: ignore[attr-defined]
    assert {case[0] for case in marks.args[1]} == set(GLUE_SUITE)


def test_pearson_of_nearly_constant_values_does_not_warn() -> None:
    assert METRICS["pearson"]([1.0, 2.0, 3.0], [2.3, 2.3, 2.3 + 1e-13]) == pytest.approx(math.sqrt(3) / 2, abs=1e-2)


def test_metrics_of_many_rows_do_not_overflow() -> None:
    labels = np.tile(np.array([0, 1, 1]), 300_000)
    assert METRICS["matthews"](labels, labels) == 1.0


def test_score_is_mean_of_metrics() -> None:
    found = scores(("f1", "accuracy"), [1, 1, 0], [1, 1, 1])
    assert found == pytest.approx({"f1": 0.8, "accuracy": 2 / 3, "score": (0.8 + 2 / 3) / 2})
    assert scores(("matthews",), *PERFECT) == {"matthews": 1.0, "score": 1.0}


@pytest.mark.parametrize(
    ("labels", "predictions", "regression", "expected"),
    [
        ([1, 1, 0], [1, 1, 1], False, True),
        ([1, 1, 0, 0], [1, 1, 1, 0], False, False),
        ([1, 1, 1, 0], [1, 0, 1, 1], False, True),  # not constant, and worse than a constant
        ([1.0, 2.0], [0.3, 0.3], True, True),
        ([1.0, 2.0], [0.3, 0.31], True, False),
    ],
)
def test_collapsed_model_is_recognised(
    labels: list[float], predictions: list[float], regression: bool, expected: bool
) -> None:
    assert is_collapsed(labels, predictions, regression=regression) is expected


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_metrics_of_own_classes_match_scikit_learn(classes: int) -> None:
    theirs, rng = pytest.importorskip("sklearn.metrics"), np.random.default_rng(classes)
    labels, guesses = rng.integers(0, classes, (2, 200))
    assert METRICS["macro_f1"](labels, guesses) == pytest.approx(theirs.f1_score(labels, guesses, average="macro"))
    assert METRICS["balanced_accuracy"](labels, guesses) == pytest.approx(
        theirs.balanced_accuracy_score(labels, guesses)
    )
    found = per_class([f"c{number}" for number in range(classes)], labels, guesses)
    report = theirs.classification_report(labels, guesses, output_dict=True)
    for number in range(classes):
        expected = report[str(number)]
        assert found[f"c{number}"] == pytest.approx(
            {**{key: expected[key] for key in ("precision", "recall")}, "f1": expected["f1-score"]}
            | {"rows": expected["support"]}
        )


def test_constant_prediction_of_own_classes_is_seen() -> None:
    """Always "normal": F1 of the second label was 0.947 and looked like success."""
    labels, always = np.array([0] * 10 + [1] * 90), np.ones(100, np.int64)
    found = class_scores(own_metrics(("cancer", "normal"), "cancer"), labels, always, np.zeros(100))
    assert found == pytest.approx(
        {"accuracy": 0.9, "f1": 0.0, "score": 0.45, "macro_f1": 0.9 / 1.9}
        | {"balanced_accuracy": 0.5, "matthews": 0.0, "auroc": 0.5}
    )
    unnamed = class_scores(own_metrics(("cancer", "normal"), None), labels, always, np.zeros(100))
    assert unnamed["score"] == pytest.approx((0.9 + 0.9 / 1.9) / 2)
    assert "f1" not in unnamed
    assert base_rate(labels) == 0.9


def test_auroc_refers_to_the_positive_class_and_has_ties() -> None:
    assert auroc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]) == 0.75
    assert auroc([0, 1], [0.5, 0.5]) == 0.5
    assert auroc([1, 1], [0.2, 0.5]) == 0.0  # undefined
    first = own_metrics(("a", "b"), "a")
    assert class_scores(first, [0, 0, 1], [0, 0, 1], [3.0, 2.0, -1.0])["auroc"] == 1.0
