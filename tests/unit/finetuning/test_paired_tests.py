"""Tests between two models: against SciPy and published figures, and scored rows on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as theirs

from train_jobs.config.tasks import NUMBER_METRICS, own_metrics
from train_jobs.evaluation.paired_tests import ROUNDS, NotPairedError, PairedTest, holm, mcnemar_p, paired_tests
from train_jobs.evaluation.scored_rows import ScoredRows, example_ids, read_scored_rows, row_ids, scored_rows_text
from train_jobs.tasks.entities.conll import entity_rows, entity_scores, sentence_ids
from train_jobs.tasks.sentences.metrics import class_rows

CLASSES = ("ham", "spam")


def labelled(seed: int, *, rows: int = 120, right: float = 0.8) -> ScoredRows:
    """Return predictions of a model that is right in a share of the rows; labels are the same for all seeds."""
    label = np.random.default_rng(0).integers(0, 2, rows)
    rng = np.random.default_rng(seed)
    prediction = np.where(rng.random(rows) < right, label, 1 - label)
    ids = example_ids([f"text {row}" for row in range(rows)], None, label.tolist(), CLASSES)
    margin = prediction + rng.normal(0, 0.5, rows)
    return class_rows(own_metrics(CLASSES, "spam"), label, prediction, margin, rows=ids, classes=CLASSES)


def results(a: ScoredRows, b: ScoredRows) -> dict[str, PairedTest]:
    return {one.metric: one for one in paired_tests(a, b)}


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (1, 0), (5, 5), (3, 12), (12, 3), (0, 24), (10, 14)])
def test_mcnemar_with_few_discordant_rows_is_binomial(only_a: int, only_b: int) -> None:
    expected = stats.binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    assert mcnemar_p(only_a, only_b) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("only_a", "only_b"), [(12, 13), (20, 20), (25, 15), (121, 59), (3, 400)])
def test_mcnemar_with_many_discordant_rows_is_chi_squared(only_a: int, only_b: int) -> None:
    statistic = max(abs(only_a - only_b) - 1, 0) ** 2 / (only_a + only_b)
    assert mcnemar_p(only_a, only_b) == pytest.approx(stats.chi2.sf(statistic, 1), rel=1e-9)


def test_mcnemar_of_a_published_example() -> None:
    """The disease before and after a drug of Wikipedia's article: 121 and 59 discordant, 21.35 without correction.

    With Edwards' correction (121 - 59 - 1)^2 / 180 = 20.67, p = 5.45e-6, as R's mcnemar.test prints it.
    """
    assert mcnemar_p(121, 59) == pytest.approx(5.450e-06, rel=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("name", ["f1", "matthews", "auroc"])
def test_permutations_of_classes_match_scipy(name: str) -> None:
    """The same null distribution, drawn by SciPy with scikit-learn's metrics; 3 standard errors of 1,000 rounds."""
    a, b = labelled(1), labelled(5, right=0.7)
    label = np.asarray(a.columns["label"])
    score: Any = {
        "f1": theirs.f1_score,
        "matthews": theirs.matthews_corrcoef,
        "auroc": theirs.roc_auc_score,
    }[name]
    column = "margin" if name == "auroc" else "prediction"

    def difference(one: Any, other: Any) -> float:
        return float(score(label, one) - score(label, other))

    one, other = (np.asarray(side.columns[column]) for side in (a, b))
    expected = stats.permutation_test(
        (one, other), difference, permutation_type="samples", n_resamples=1000, rng=np.random.default_rng(3)
    )
    found = results(a, b)[name]
    assert (found.a, found.b) == pytest.approx((score(label, one), score(label, other)), abs=1e-12)
    assert found.method == f"permutation, {ROUNDS:,} rounds"
    assert 0.001 < found.p < 0.9, "neither end of the range hides an error"
    assert found.p == pytest.approx(expected.pvalue, abs=3 * np.sqrt(0.25 / 1000))


def test_permutations_of_numbers_match_scipy() -> None:
    rng = np.random.default_rng(2)
    gold = rng.normal(size=80)
    one, other = gold + rng.normal(0, 0.6, 80), gold + rng.normal(0, 0.9, 80)
    ids = row_ids([str(value) for value in gold])
    found = results(*(class_rows(NUMBER_METRICS, gold, values, None, rows=ids) for values in (one, other)))
    for name, correlation in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        expected = stats.permutation_test(
            (one, other),
            lambda x, y, correlation=correlation: correlation(gold, x)[0] - correlation(gold, y)[0],
            permutation_type="samples",
            n_resamples=1000,
            rng=np.random.default_rng(1),
        )
        assert found[name].p == pytest.approx(expected.pvalue, abs=0.045), name


def test_few_rows_have_the_exact_p() -> None:
    """Two of four rows differ: of the 4 equally likely assignments of these, 2 have a difference as large."""
    gold = [["B-PER"]] * 4
    a, b = (entity_rows(gold, tags, row_ids(["1", "2", "3", "4"])) for tags in (gold, [["B-PER"]] * 2 + [["O"]] * 2))
    found = results(a, b)["f1"]
    assert (found.a, found.b) == (1.0, pytest.approx(2 / 3))
    assert found.p == pytest.approx(2 / 4, abs=0.015), "both or none of the two differing rows swapped"


def test_equal_models_have_p_of_one() -> None:
    assert {one.p for one in paired_tests(labelled(1), labelled(1))} == {1.0}


def test_p_of_equally_good_models_is_uniform() -> None:
    """About 5% of 200 pairs of models of the same quality differ with p < 0.05, in both metrics."""
    found = [results(_classes_only(2 * seed + 1), _classes_only(2 * seed + 2)) for seed in range(200)]
    for name in ("accuracy", "f1"):
        rejected = sum(one[name].p < 0.05 for one in found)
        assert rejected <= 19, f"{name}: more than 3 standard errors above 10"  # McNemar's test is conservative
        assert name == "accuracy" or rejected >= 2


def _classes_only(seed: int) -> ScoredRows:
    whole = labelled(seed)
    return replace(whole, metrics={name: whole.metrics[name] for name in ("accuracy", "f1")})


def test_order_of_rows_and_of_classes_does_not_matter() -> None:
    a, b = labelled(1), labelled(5)
    order = np.random.default_rng(4).permutation(len(b.rows))
    columns = {name: np.asarray(values)[order] for name, values in b.columns.items()}
    for name in ("label", "prediction"):
        columns[name] = 1 - columns[name]
    definitions = {name: {**one, **({"positive": 0} if "positive" in one else {})} for name, one in b.metrics.items()}
    other = ScoredRows(columns, definitions, [b.rows[row] for row in order], CLASSES[::-1])
    assert paired_tests(a, other) == paired_tests(a, b)
    assert {one.metric for one in paired_tests(a, b)} == set(a.metrics)


def test_rows_that_differ_are_refused_with_the_reason() -> None:
    a = labelled(1)
    for other, words in (
        (labelled(2, rows=100), "120 and 100 rows, of which 100 are the same"),
        (replace(a, classes=("ham", "eggs")), "their classes differ: ham, spam, and ham, eggs"),
        (replace(a, metrics={}), "no metric in common"),
        (replace(a, metrics={"f1": {"kind": "f1", "positive": 0}}), "no metric in common"),
    ):
        with pytest.raises(NotPairedError, match=words):
            paired_tests(a, other)


def test_label_is_part_of_a_rows_identity() -> None:
    assert example_ids(["t"], None, [0], CLASSES) != example_ids(["t"], None, [1], CLASSES)
    assert example_ids(["t"], None, [0], CLASSES) == example_ids(["t"], None, [1], CLASSES[::-1])
    assert example_ids(["t"], ["u"], [0.5], ()) != example_ids(["tu"], [""], [0.5], ())
    assert sentence_ids([["a", "b"]], [["O", "O"]]) != sentence_ids([["a b"]], [["O"]])


def test_stored_rows_are_read_back_and_contain_no_text() -> None:
    gold, guess = [["B-PER", "O"], ["O", "B-LOC"]], [["B-PER", "O"], ["O", "O"]]
    sentences = entity_rows(gold, guess, sentence_ids([["Anna", "sings"], ["to", "Rome"]], gold))
    text = scored_rows_text({"dev": labelled(1), "test": sentences})
    found = read_scored_rows(text.encode())
    assert paired_tests(found["dev"], labelled(5)) == paired_tests(labelled(1), labelled(5))
    assert results(found["test"], sentences)["f1"].a == entity_scores(gold, guess)["f1"]
    assert not [word for word in ("Anna", "sings", "Rome", "text 1") if word in text]
    with pytest.raises(ValueError, match="not of version 1"):
        read_scored_rows(json.dumps({"version": 2, "sets": {}}).encode())


def test_holm_adjusts_stepwise() -> None:
    """The example of Holm's procedure with four tests: 0.005, 0.01, 0.03, 0.04 become 0.02, 0.03, 0.06, 0.06."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
