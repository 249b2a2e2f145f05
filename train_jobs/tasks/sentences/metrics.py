"""Metrics of sentence tasks.

scikit-learn and SciPy compute them. If a definition divides zero by zero, because a model predicts one value for all
rows, the score is 0: scikit-learn warns about that case and SciPy returns NaN, so it is handled here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from train_jobs.config.tasks import AUROC, ClassMetrics
from train_jobs.evaluation.resampling import Floats
from train_jobs.evaluation.scored_rows import ScoredRows

Values = npt.ArrayLike


def accuracy(labels: Values, predictions: Values) -> float:
    """Return the share of correct predictions, 0 to 1."""
    # imported here and below: scikit-learn and SciPy take a second to import, and a plan or a dry run needs no metric
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(*_aligned(labels, predictions)))


def f1(labels: Values, predictions: Values, positive: int = 1) -> float:
    """Return F1 of one class, 0 to 1; 0 without a true positive.

    Args:
        labels: [rows] gold ids.
        predictions: [rows] predicted ids.
        positive: id of the class. GLUE's F1 is that of class 1.
    """
    from sklearn.metrics import f1_score

    wanted, found = (values == positive for values in _aligned(labels, predictions))
    return float(f1_score(wanted, found, zero_division=0))


def macro_f1(labels: Values, predictions: Values) -> float:
    """Return the mean F1 of all classes that are a label or a prediction, 0 to 1."""
    from sklearn.metrics import f1_score

    return float(f1_score(*_aligned(labels, predictions), average="macro", zero_division=0))


def balanced_accuracy(labels: Values, predictions: Values) -> float:
    """Return the mean recall of all classes that are a label, 0 to 1; a constant prediction has 1 / classes."""
    from sklearn.metrics import recall_score

    wanted, found = _aligned(labels, predictions)
    return float(recall_score(wanted, found, labels=np.unique(wanted), average="macro", zero_division=0))


def auroc(labels: Values, probabilities: Values) -> float:
    """Return the area under the ROC curve, 0 to 1; 0 if the rows have only one label.

    Args:
        labels: [rows] whether the row is positive.
        probabilities: [rows] of the positive class, or any number that grows with it.
    """
    from sklearn.metrics import roc_auc_score

    wanted, found = _aligned(labels, probabilities)
    return 0.0 if _is_constant(wanted) else float(roc_auc_score(wanted, found))


def matthews(labels: Values, predictions: Values) -> float:
    """Return Matthews' correlation of any number of classes (Gorodkin 2004, R_K); 0 if either is constant."""
    from sklearn.metrics import matthews_corrcoef

    wanted, found = _aligned(labels, predictions)
    return 0.0 if _is_constant(wanted) or _is_constant(found) else float(matthews_corrcoef(wanted, found))


def pearson(labels: Values, predictions: Values) -> float:
    """Return Pearson's correlation; 0 if either is constant."""
    from scipy.stats import pearsonr

    wanted, found = (values.astype(np.float64) for values in _aligned(labels, predictions))
    if _is_constant(wanted) or _is_constant(found):
        return 0.0
    with warnings.catch_warnings():  # predictions of a collapsed model are nearly constant, and SciPy warns about that
        warnings.simplefilter("ignore")
        return float(pearsonr(wanted, found).statistic)


def spearman(labels: Values, predictions: Values) -> float:
    """Return Spearman's correlation, Pearson's of the ranks, where ties share their mean; 0 if either is constant."""
    from scipy.stats import rankdata

    return pearson(*map(rankdata, _aligned(labels, predictions)))


METRICS: Mapping[str, Callable[[Values, Values], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "balanced_accuracy": balanced_accuracy,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


"""Metrics of labels and predictions; AUROC also needs probabilities."""


def scores(names: Sequence[str], labels: Values, predictions: Values, *, positive: int = 1) -> dict[str, float]:
    """Return metrics by name, and their mean as `score`, which selects the best checkpoint.

    Args:
        names: keys of METRICS.
        labels: [rows] gold ids of classes, or numbers.
        predictions: [rows] predicted ones.
        positive: id of the class that F1 refers to.
    """
    found = _measured(names, labels, predictions, positive)
    return {**found, "score": fmean(found.values())}


def class_scores(
    metrics: ClassMetrics, labels: Values, predictions: Values, probabilities: Values | None
) -> dict[str, float]:
    """Return the metrics of a task: those of its score, the score, and the others that it reports.

    Args:
        metrics: names of the metrics.
        labels: [rows] gold ids of classes, or numbers.
        predictions: [rows] predicted ones.
        probabilities: [rows] of the positive class, for AUROC; None: there are not two classes.
    """
    found = scores(metrics.scored, labels, predictions, positive=metrics.positive)
    found |= _measured([name for name in metrics.reported if name != AUROC], labels, predictions, metrics.positive)
    if AUROC in metrics.reported:
        assert probabilities is not None, "AUROC is reported for two classes"
        found[AUROC] = auroc(np.asarray(labels) == metrics.positive, probabilities)
    return found


def class_rows(
    metrics: ClassMetrics,
    labels: Values,
    predictions: Values,
    margins: Values | None,
    *,
    confidences: Values | None = None,
    **identity: Sequence[str],
) -> ScoredRows:
    """Return the rows behind the metrics of `class_scores`, for confidence intervals and tests.

    Args:
        metrics: names of the metrics.
        labels: [rows] gold ids of classes, or numbers.
        predictions: [rows] predicted ones.
        margins: [rows] larger for the positive class, for AUROC; None: there are not two classes.
        confidences: [rows] probability of the predicted class, for reports; None: not known, or numbers.
        identity: `rows` and `classes` of `ScoredRows`, for tests.
    """
    columns = {"label": labels, "prediction": predictions}
    if AUROC in metrics.reported:
        assert margins is not None, "AUROC is reported for two classes"
        columns["margin"] = margins
    if confidences is not None:
        columns["confidence"] = np.round(np.asarray(confidences, np.float64), 6)
    about = {name: {"positive": metrics.positive} for name in ("f1", AUROC)}
    definitions = {name: {"kind": name, **about.get(name, {})} for name in (*metrics.scored, *metrics.reported)}
    return ScoredRows(columns, definitions, **identity)


def top_probabilities(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return [rows]: the probability of the class with the largest logit.

    Args:
        logits: [rows, classes].
    """
    # the largest logit is subtracted, so exp cannot overflow, and its own exp is 1
    return 1 / np.exp(logits - logits.max(1, keepdims=True)).sum(1)


def class_resamples(metrics: ClassMetrics, rows: ScoredRows) -> dict[str, Floats]:
    """Return the metrics of `class_scores` for resamples of the rows, for confidence intervals.

    Args:
        metrics: names of the metrics.
        rows: the rows, from `class_rows`.
    """
    found = rows.resamples()
    return {**found, "score": np.mean([found[name] for name in metrics.scored], axis=0)}


def class_details(names: Sequence[str], labels: Values, predictions: Values) -> dict[str, Any]:
    """Return rows, the share of the most frequent label, and the scores of each class, for result.json.

    Args:
        names: of the classes, in the order of their ids; empty for a regression.
        labels: [rows] gold ids of classes, or numbers.
        predictions: [rows] predicted ones.
    """
    rows = {"rows": len(np.asarray(labels))}
    return (
        {**rows, "base_rate": base_rate(labels), "per_class": per_class(names, labels, predictions)} if names else rows
    )


def per_class(names: Sequence[str], labels: Values, predictions: Values) -> dict[str, dict[str, float]]:
    """Return precision, recall, F1 and rows of each class; undefined ones are 0.

    Args:
        names: of the classes, in the order of their ids.
        labels: [rows] gold ids.
        predictions: [rows] predicted ones.
    """
    from sklearn.metrics import precision_recall_fscore_support

    figures = precision_recall_fscore_support(
        *_aligned(labels, predictions), labels=range(len(names)), average=None, zero_division=0
    )
    keys = ("precision", "recall", "f1", "rows")
    return {
        name: dict(zip(keys, map(float, row), strict=True))
        for name, row in zip(names, zip(*figures, strict=True), strict=True)
    }


def base_rate(labels: Values) -> float:
    """Return the share of the most frequent label: the accuracy of a constant prediction."""
    counts = np.unique(np.asarray(labels), return_counts=True)[1]
    return float(counts.max() / counts.sum())


def _measured(names: Sequence[str], labels: Values, predictions: Values, positive: int) -> dict[str, float]:
    return {
        name: f1(labels, predictions, positive) if name == "f1" else METRICS[name](labels, predictions)
        for name in names
    }


def is_collapsed(labels: Values, predictions: Values, *, regression: bool) -> bool:
    """Return whether a model learned nothing: one number for all rows, or no better than the most frequent label.

    Args:
        labels: [rows] gold ids of classes, or numbers.
        predictions: [rows] predicted ones.
        regression: whether they are numbers.
    """
    # Fine-tuning BERT-large on small sets fails on some seeds (Devlin et al. 2019, section 4.1), and a mean over seeds
    # hides it: so collapsed runs are counted separately.
    wanted, found = _aligned(labels, predictions)
    if regression:
        return _is_constant(found)
    return bool(np.sum(wanted == found) <= np.unique(wanted, return_counts=True)[1].max())


def _aligned(labels: Values, predictions: Values) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
    wanted, found = np.asarray(labels), np.asarray(predictions)
    assert wanted.shape == found.shape == (wanted.size,), f"{wanted.shape} labels, {found.shape} predictions"
    assert wanted.size, "nothing to score"
    return wanted, found


def _is_constant(values: npt.NDArray[np.generic]) -> bool:
    return bool(np.all(values == values[0]))
