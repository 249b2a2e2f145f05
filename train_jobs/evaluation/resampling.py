"""Confidence intervals of scores by the bootstrap over rows (Efron 1979, percentile method).

    columns = {"label": labels, "prediction": predictions}
    found = bootstrap(columns, {"accuracy": accuracy})
    interval(found["accuracy"])  # (0.81, 0.88)

A resample draws as many rows as there are, with replacement, so a row has a weight: how often it was drawn. Each score
is a function of weights and columns, computed for many resamples together. Rows that are equal in every column are
drawn together, which is exact: of classes only the combinations remain. Random numbers are fixed, so the same rows have
the same interval on any machine. An interval shows the chance of the rows, not that of training: several seeds show
that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Columns = Mapping[str, Floats]
"""Name -> value of each distinct row, [distinct rows]."""
Statistic = Callable[[Floats, Columns], Floats]
"""Function of weights [resamples, distinct rows] and columns: the score of each resample, NaN if it is undefined."""
Definition = Mapping[str, Any]
"""JSON form of a statistic: `kind`, a key of `KINDS`, and the arguments of its function."""

RESAMPLES = 1000
CONFIDENCE = 0.95
SEED = 20_190_524
MAX_CELLS = 4_000_000  # weights at a time: 32 MB


def bootstrap(
    columns: Mapping[str, npt.ArrayLike], statistics: Mapping[str, Statistic], *, resamples: int = RESAMPLES
) -> dict[str, Floats]:
    """Return the scores of resamples by name, [resamples] each.

    Args:
        columns: name -> value of each row.
        statistics: name -> score.
        resamples: number of resamples.
    """
    rows = np.column_stack([np.asarray(values, np.float64) for values in columns.values()])
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    kept = dict(zip(columns, distinct.T, strict=True))
    random = np.random.default_rng(SEED)
    found: dict[str, list[Floats]] = {name: [] for name in statistics}
    chunk = max(1, MAX_CELLS // len(distinct))
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        weights = random.multinomial(len(rows), counts / len(rows), size=size).astype(np.float64)
        for name, statistic in statistics.items():
            found[name].append(statistic(weights, kept))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def interval(values: Floats) -> tuple[float, float] | None:
    """Return the 95% interval of a score's resamples; None: it is undefined in all of them."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return None
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(defined, [tail, 100 - tail])
    return float(low), float(high)


def intervals(resamples: Mapping[str, Floats]) -> dict[str, list[float]]:
    """Return the 95% interval of each score, without those that are never defined."""
    found = {name: interval(values) for name, values in resamples.items()}
    return {name: list(ends) for name, ends in found.items() if ends is not None}


def accuracy(weights: Floats, columns: Columns) -> Floats:
    """Return the share of rows whose prediction is their label."""
    return weights @ (columns["label"] == columns["prediction"]) / weights.sum(1)


def f1_of(positive: int) -> Statistic:
    """Return the F1 of one class."""

    def f1(weights: Floats, columns: Columns) -> Floats:
        right, labels, predictions = _class_counts(weights, columns, [positive])
        return _ratio(2 * right, labels + predictions)[:, 0]

    return f1


def macro_f1(weights: Floats, columns: Columns) -> Floats:
    """Return the mean F1 of the classes that are a label or a prediction of the resample."""
    right, labels, predictions = _class_counts(weights, columns)
    total = labels + predictions
    return _ratio(2 * right, total).sum(1) / (total > 0).sum(1)


def balanced_accuracy(weights: Floats, columns: Columns) -> Floats:
    """Return the mean recall of the classes that are a label of the resample."""
    right, labels, _ = _class_counts(weights, columns)
    return _ratio(right, labels).sum(1) / (labels > 0).sum(1)


def matthews(weights: Floats, columns: Columns) -> Floats:
    """Return Matthews' correlation (Gorodkin 2004, R_K); 0 if labels or predictions are constant."""
    right, labels, predictions = _class_counts(weights, columns)
    total = weights.sum(1)
    covariance = right.sum(1) * total - (labels * predictions).sum(1)
    spread = (total**2 - (labels**2).sum(1)) * (total**2 - (predictions**2).sum(1))
    return _ratio(covariance, np.sqrt(spread))


def pearson(weights: Floats, columns: Columns) -> Floats:
    """Return Pearson's correlation of labels and predictions; 0 if either is constant."""
    shape = weights.shape
    return _correlation(
        weights, np.broadcast_to(columns["label"], shape), np.broadcast_to(columns["prediction"], shape)
    )


def spearman(weights: Floats, columns: Columns) -> Floats:
    """Return Spearman's correlation, Pearson's of the ranks; 0 if either is constant."""
    return _correlation(weights, _ranks(weights, columns["label"]), _ranks(weights, columns["prediction"]))


def auroc_of(positive: int) -> Statistic:
    """Return the area under the ROC curve of the column `margin`; NaN if a resample has only one label."""

    def auroc(weights: Floats, columns: Columns) -> Floats:
        chosen = columns["label"] == positive
        count, others = weights @ chosen, weights @ ~chosen
        ranks = (weights * _ranks(weights, columns["margin"])) @ chosen
        found = _ratio(ranks - count * (count + 1) / 2, count * others)
        return np.where((count > 0) & (others > 0), found, np.nan)

    return auroc


def mean_of(column: str, *, scale: float = 1.0, among: str | None = None) -> Statistic:
    """Return the mean of a column.

    Args:
        column: its name.
        scale: factor of the result, such as 100 for percent.
        among: column of 0 and 1 that chooses rows. None: all rows.
    """

    def mean(weights: Floats, columns: Columns) -> Floats:
        counted = weights if among is None else weights * columns[among]
        total = counted.sum(1)
        return np.where(total > 0, scale * _ratio(counted @ columns[column], total), np.nan)

    return mean


def ratio_of(part: str, wholes: Sequence[str], *, scale: float = 1.0) -> Statistic:
    """Return the sum of a column divided by the sum of others, 0 if that is 0: F1 is 2 x right / (gold + predicted)."""

    def ratio(weights: Floats, columns: Columns) -> Floats:
        return scale * _ratio(weights @ columns[part], sum((weights @ columns[one] for one in wholes), np.zeros(1)))

    return ratio


def statistic_of(definition: Definition) -> Statistic:
    """Return the statistic of its JSON form, such as {"kind": "f1", "positive": 1}.

    Raises:
        ValueError: this version does not know its kind.
    """
    arguments = dict(definition)
    kind = arguments.pop("kind")
    if kind not in KINDS:
        raise ValueError(f"unknown statistic {kind!r}")
    return KINDS[kind](**arguments)


def columns_of(definition: Definition) -> tuple[str, ...]:
    """Return the names of the columns that a statistic reads."""
    match definition:
        case {"kind": "ratio", "part": part, "wholes": wholes}:
            return (part, *wholes)
        case {"kind": "mean", "column": column}:
            return (column, *([definition["among"]] if definition.get("among") else []))
        case {"kind": "auroc"}:
            return ("label", "margin")
        case _:
            return ("label", "prediction")


def _class_counts(weights: Floats, columns: Columns, classes: list[int] | None = None) -> tuple[Floats, Floats, Floats]:
    """Return the rows of each class that are right, labelled and predicted so, [resamples, classes] each."""
    label, prediction = columns["label"], columns["prediction"]
    chosen = np.union1d(label, prediction) if classes is None else np.array(classes, np.float64)
    labelled, predicted = label[:, None] == chosen, prediction[:, None] == chosen
    return weights @ (labelled & predicted), weights @ labelled, weights @ predicted


def _ranks(weights: Floats, values: Floats) -> Floats:
    """Return the ranks of values from 1, [resamples, distinct rows]; ties, repeated rows too, share their mean."""
    order = np.argsort(values, kind="stable")
    _, starts, groups = np.unique(values[order], return_index=True, return_inverse=True)
    sizes = np.add.reduceat(weights[:, order], starts, axis=1)
    ranks = np.empty_like(weights)
    ranks[:, order] = (np.cumsum(sizes, axis=1) - sizes + (sizes + 1) / 2)[:, groups]
    return ranks


def _correlation(weights: Floats, one: Floats, other: Floats) -> Floats:
    total = weights.sum(1, keepdims=True)
    one = one - (weights * one).sum(1, keepdims=True) / total
    other = other - (weights * other).sum(1, keepdims=True) / total
    spread = np.sqrt((weights * one**2).sum(1) * (weights * other**2).sum(1))
    return _ratio((weights * one * other).sum(1), spread)


def _ratio(part: Floats, whole: Floats) -> Floats:
    """Return part / whole, 0 where the whole is 0."""
    part, whole = np.broadcast_arrays(part, whole)
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole > 0)


KINDS: Mapping[str, Callable[..., Statistic]] = {
    "accuracy": lambda: accuracy,
    "f1": f1_of,
    "macro_f1": lambda: macro_f1,
    "balanced_accuracy": lambda: balanced_accuracy,
    "matthews": lambda: matthews,
    "pearson": lambda: pearson,
    "spearman": lambda: spearman,
    "auroc": auroc_of,
    "mean": mean_of,
    "ratio": ratio_of,
}
"""Kind in a definition -> function of its arguments that returns the statistic."""
