"""Significance tests between two models that were scored on the same rows.

    for one in paired_tests(rows_of_a, rows_of_b):
        print(one.metric, one.a, one.b, one.p, one.method)

Accuracy has McNemar's test (McNemar 1947): if the models are equally good, a row that only one of them has right
belongs to either with probability 0.5. Below 25 such rows it is exact (binomial), else chi-squared with Edwards' (1948)
continuity correction. Any other metric has a paired permutation test, in this field approximate randomisation (Noreen
1989, Yeh 2000): if the models are equally good, their predictions on any row can be swapped, and differences as large
as the observed one are common. All p-values are two-sided.

A swap is expressed by weights, as a resample of the bootstrap is: the rows of b follow those of a in one table, and
each row counts in one half or in the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from train_jobs.evaluation.resampling import MAX_CELLS, Definition, Floats, Statistic, columns_of, statistic_of
from train_jobs.evaluation.scored_rows import ScoredRows

ROUNDS = 10_000
MIN_ROUNDS = 1000
MOST_DRAWS = 40_000_000  # of rounds x rows x 2; larger sets have fewer rounds
SEED = 20_000_731
EXACT_BELOW = 25  # discordant rows
CLASS_COLUMNS = ("label", "prediction")
TOLERANCE = 1e-12  # of equal differences that were added up in another order


class NotPairedError(ValueError):
    """The rows of two sets are not the same, or their metrics are not."""


@dataclass(frozen=True)
class PairedTest:
    """The test of one metric."""

    metric: str
    a: float
    """Score of a."""
    b: float
    """Score of b."""
    p: float
    """Probability, if both models are equally good, of a difference at least as large in either direction."""
    method: str
    """Name of the test with its number of discordant rows or of rounds."""


def paired_tests(a: ScoredRows, b: ScoredRows) -> list[PairedTest]:
    """Test each metric that both sets define in the same way.

    Args:
        a: rows of one model.
        b: rows of the other, in any order.

    Raises:
        NotPairedError: the rows are not the same, or no metric is; the message is a reason for people.
    """
    names = [name for name, one in a.metrics.items() if _named(one, a) == _named(b.metrics.get(name, {}), b)]
    if not names:
        raise NotPairedError("they have no metric in common")
    one, other = _paired(a, b)
    found = {name: mcnemar(one, other) for name in names if a.metrics[name]["kind"] == "accuracy"}
    together: dict[tuple[str, ...], dict[str, Statistic]] = {}
    for name in names:
        if name not in found:
            together.setdefault(columns_of(a.metrics[name]), {})[name] = statistic_of(a.metrics[name])
    # Without the columns that a metric does not read, most rows are equal: of classes only the combinations remain.
    for columns, statistics in together.items():
        read_by_a, read_by_b = ({key: side[key] for key in columns} for side in (one, other))
        found |= permutation_tests(read_by_a, read_by_b, statistics)
    weights = np.ones((1, len(next(iter(one.values())))))
    tests = []
    for name in names:
        score, other_score = (float(statistic_of(a.metrics[name])(weights, side)[0]) for side in (one, other))
        p, method = found[name]
        if not math.isnan(p):
            tests.append(PairedTest(name, score, other_score, p, method))
    return tests


def mcnemar(a: Mapping[str, Floats], b: Mapping[str, Floats]) -> tuple[float, str]:
    """Return p and method of McNemar's test.

    Args:
        a: label and prediction of each row, by one model.
        b: by the other, in the same order.
    """
    right = [side["label"] == side["prediction"] for side in (a, b)]
    only_a, only_b = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    return mcnemar_p(only_a, only_b), f"McNemar, {'exact, ' if only_a + only_b < EXACT_BELOW else ''}" + (
        f"{only_a} + {only_b} discordant rows"
    )


def mcnemar_p(only_a: int, only_b: int) -> float:
    """Return the two-sided p of McNemar's test.

    Args:
        only_a: rows that only one model has right.
        only_b: rows that only the other has right.
    """
    discordant = only_a + only_b
    if discordant < EXACT_BELOW:
        tail = sum(math.comb(discordant, count) for count in range(min(only_a, only_b) + 1))
        return min(1.0, 2 * tail / 2**discordant)
    statistic = max(abs(only_a - only_b) - 1, 0) ** 2 / discordant
    return math.erfc(math.sqrt(statistic / 2))  # upper tail of chi-squared with one degree of freedom


def permutation_tests(
    a: Mapping[str, Floats], b: Mapping[str, Floats], statistics: Mapping[str, Statistic]
) -> dict[str, tuple[float, str]]:
    """Return p and method of the paired permutation test, by metric; p is NaN where the metric is undefined.

    Args:
        a: columns of one model, [rows] each.
        b: columns of the other, in the same order.
        statistics: name of a metric -> its statistic.
    """
    random = np.random.default_rng(SEED)
    distinct, repeats = np.unique(np.column_stack([*a.values(), *b.values()]), axis=0, return_counts=True)
    counts = repeats.astype(np.float64)
    half = len(a)
    stacked = dict(zip(a, np.concatenate([distinct[:, :half], distinct[:, half:]]).T, strict=True))
    rounds = max(MIN_ROUNDS, min(ROUNDS, MOST_DRAWS // (2 * len(distinct))))
    observed = _differences(statistics, stacked, counts, np.zeros((1, len(distinct))))
    extreme = dict.fromkeys(statistics, 0)
    for size in _chunks(rounds, max(1, MAX_CELLS // (2 * len(distinct)))):
        # Of rows that are equal in every column of both models, only the number of swapped ones matters.
        swapped = random.binomial(repeats, 0.5, size=(size, len(distinct))).astype(np.float64)
        for name, values in _differences(statistics, stacked, counts, swapped).items():
            extreme[name] += int((np.abs(values) >= abs(observed[name][0]) - TOLERANCE).sum())
    method = f"permutation, {rounds:,} rounds"
    # + 1: the observed assignment is one of those that are equally likely, so p is never 0.
    return {
        name: (math.nan if np.isnan(observed[name][0]) else (count + 1) / (rounds + 1), method)
        for name, count in extreme.items()
    }


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number, in their order (Holm 1979): the family-wise error stays below p."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = largest
    return adjusted


def _differences(
    statistics: Mapping[str, Statistic], stacked: Mapping[str, Floats], counts: Floats, swapped: Floats
) -> dict[str, Floats]:
    """Return the score of b minus that of a, [rounds] of each metric, after `swapped` of the rows changed sides."""
    kept = counts - swapped
    one, other = np.concatenate([kept, swapped], axis=1), np.concatenate([swapped, kept], axis=1)
    return {name: statistic(other, stacked) - statistic(one, stacked) for name, statistic in statistics.items()}


def _chunks(total: int, size: int) -> Iterator[int]:
    for start in range(0, total, size):
        yield min(size, total - start)


def _named(definition: Definition, rows: ScoredRows) -> dict[str, object]:
    """Return a definition with the name of its class in place of the number, which each model chooses."""
    found = dict(definition)
    return {**found, "positive": rows.classes[found["positive"]]} if "positive" in found and rows.classes else found


def _paired(a: ScoredRows, b: ScoredRows) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return the columns that both have, with the rows of both in the same order and the numbers of classes of a.

    Raises:
        NotPairedError: classes or rows are not the same.
    """
    if sorted(a.classes) != sorted(b.classes):
        raise NotPairedError(f"their classes differ: {_listed(a.classes)}, and {_listed(b.classes)}")
    mine, theirs = np.array(a.rows), np.array(b.rows)
    if sorted(a.rows) != sorted(b.rows):
        same = len(set(a.rows) & set(b.rows))
        raise NotPairedError(
            f"they were not scored on the same rows: {len(mine):,} and {len(theirs):,} rows, of which {same:,} are the"
            " same in text and label"
        )
    if not len(mine):
        raise NotPairedError("they have no rows")
    names = [name for name in a.columns if name in b.columns]
    one, other = (
        {name: np.asarray(side.columns[name], np.float64)[order] for name in names}
        for side, order in ((a, mine.argsort(kind="stable")), (b, theirs.argsort(kind="stable")))
    )
    if a.classes:
        numbers = np.array([a.classes.index(name) for name in b.classes], np.float64)
        other |= {name: numbers[other[name].astype(np.int64)] for name in CLASS_COLUMNS if name in other}
    return one, other


def _listed(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "") if names else "none"
