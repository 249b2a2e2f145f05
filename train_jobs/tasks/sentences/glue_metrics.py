"""How predictions are scored. Equal to scikit-learn's and scipy's to 1e-9, which is tested; defined everywhere.

Where a definition divides zero by zero, which is where a model predicts one thing for all, the score is 0: so says
scikit-learn of Matthews and F1, and a correlation with a constant, which scipy leaves undefined, is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np
import numpy.typing as npt

Values = npt.ArrayLike
Floats = npt.NDArray[np.float64]


def accuracy(labels: Values, predictions: Values) -> float:
    """Share of predictions that are right."""
    found, wanted = _aligned(labels, predictions)
    return float(np.mean(found == wanted))


def f1(labels: Values, predictions: Values) -> float:
    """F1 of class 1 of two: harmonic mean of precision and recall; 0 without a true positive."""
    wanted, found = (values == 1 for values in _aligned(labels, predictions))
    both, either = float(np.sum(wanted & found)), float(np.sum(wanted) + np.sum(found))
    return 2 * both / either if either else 0.0


def matthews(labels: Values, predictions: Values) -> float:
    """Matthews' correlation of any number of classes (Gorodkin 2004, R_K); 0 if either is constant."""
    wanted, found = _aligned(labels, predictions)
    classes, codes = np.unique(np.concatenate([wanted, found]), return_inverse=True)
    size = len(classes)
    table = np.bincount(codes[: len(wanted)] * size + codes[len(wanted) :], minlength=size**2).reshape(size, size)
    rows, columns, total = table.sum(1).tolist(), table.sum(0).tolist(), len(wanted)  # Python's numbers: no overflow
    covariance = int(np.trace(table)) * total - sum(a * b for a, b in zip(rows, columns, strict=True))
    spread = (total**2 - sum(a * a for a in rows)) * (total**2 - sum(b * b for b in columns))
    return covariance / spread**0.5 if spread else 0.0


def pearson(labels: Values, predictions: Values) -> float:
    """Pearson's correlation; 0 if either is constant."""
    wanted, found = (_centred(values) for values in _aligned(labels, predictions))
    spread = float(np.linalg.norm(wanted) * np.linalg.norm(found))
    return float(np.clip(wanted @ found / spread, -1.0, 1.0)) if spread else 0.0


def spearman(labels: Values, predictions: Values) -> float:
    """Spearman's correlation: Pearson's of ranks, equal values sharing the mean of theirs; 0 if either is constant."""
    wanted, found = _aligned(labels, predictions)
    return pearson(_ranks(wanted), _ranks(found))


METRICS: Mapping[str, Callable[[Values, Values], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def scores(names: Sequence[str], labels: Values, predictions: Values) -> dict[str, float]:
    """Metrics by name, and `score`, the mean of them, which is what GLUE averages and a best checkpoint is best in."""
    found = {name: METRICS[name](labels, predictions) for name in names}
    return {**found, "score": fmean(found.values())}


def is_collapsed(labels: Values, predictions: Values, *, regression: bool) -> bool:
    """Whether a model learned nothing: one number for all, or no more right than the most frequent label is."""
    wanted, found = _aligned(labels, predictions)
    if regression:
        return bool(np.all(found == found[0]))
    return bool(np.sum(wanted == found) <= np.unique(wanted, return_counts=True)[1].max())


def _aligned(labels: Values, predictions: Values) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
    wanted, found = np.asarray(labels), np.asarray(predictions)
    assert wanted.shape == found.shape == (wanted.size,), f"{wanted.shape} labels, {found.shape} predictions"
    assert wanted.size, "nothing to score"
    return wanted, found


def _centred(values: npt.NDArray[np.generic]) -> Floats:
    numbers = values.astype(np.float64)
    if np.all(numbers == numbers[0]):  # else a mean that rounds leaves a spread of its own
        return np.zeros_like(numbers)
    centred: Floats = numbers - numbers.mean()
    return centred


def _ranks(values: npt.NDArray[np.generic]) -> Floats:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2)[which]
    return ranks
