"""Decide when a trial is stopped early: pure functions of the reports of all trials.

A *report* is a logged value of the primary metric, at any step; like Azure's, policies count reports. A trial is judged
once for each report: its k-th report against the k-th reports of all trials, finished ones included. Bandit, median and
truncation are Azure's:

    bandit      its best < best of all / (1 + slack_factor), or < best of all - slack_amount, of reports 1..k
    median      its best < median over all of the mean of reports 1..k
    truncation  its k-th report is among the worst percentage of all k-th reports

and the mirror image of each for a metric to minimize. The formulas apply to values of any sign: Azure documents no
exception. While the best of all is negative, slack_factor stops every trial that it judges, even the best one, and the
plan warns (`orchestrator.sweeps.design.checks.policy_warnings`). Azure documents neither trials that have reported less
often nor values that are not finite. Here, every policy stops a trial whose last value is not finite, and compares the
other trials by their finite values.

The signed-rank test is our own. Seeds of a task often tie (accuracy on a small set), but SciPy's exact method ignores
ties, and its exact permutation test calls the statistic for each of up to 65,536 combinations of signs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from itertools import product
from typing import NamedTuple

from orchestrator.specs.sweep_spec import ObjectiveSpec, TerminationSpec

Reports = Sequence[float]
Histories = Mapping[int, Reports]
"""Trial -> its reports so far, combined over its seeds; in the order in which trials started."""
Replicates = Mapping[int, Sequence[Reports]]
"""Trial -> the reports of each of its seeds."""
MAX_PAIRS = 16  # differences in a signed-rank test: it enumerates 2**16 combinations of signs, more would take seconds


class Decision(NamedTuple):
    """A decision about a trial at one of its reports."""

    stop: bool
    report: int
    """Number of the report, from 1."""
    why: str
    """The comparison, with its numbers."""

    @property
    def text(self) -> str:
        """The decision as text, such as `stopped at report 3: 0.611 x 1.2 < 0.79`."""
        return f"{'stopped' if self.stop else 'continues'} at report {self.report}: {self.why}"


def judge(
    policy: TerminationSpec,
    objective: ObjectiveSpec,
    histories: Histories,
    trial: int,
    *,
    report: int | None = None,
    replicates: Replicates | None = None,
) -> Decision | None:
    """Decide whether a trial is stopped at a report.

    Args:
        policy: name and parameters.
        objective: metric and goal.
        histories: reports of all trials.
        trial: the trial to judge.
        report: number of the report to judge, from 1; None: the last. Later reports are ignored.
        replicates: reports of each seed, for wilcoxon.

    Returns:
        The decision; None: the policy does not judge this report.
    """
    k = len(histories[trial]) if report is None else report
    if k == 0:
        return None
    last = histories[trial][k - 1]
    if not math.isfinite(last):
        return Decision(True, k, f"{objective.metric} is {last}")
    if policy.policy == "none" or not is_due(policy, k):
        return None
    cut = {name: reports[:k] for name, reports in histories.items()}
    case = _Comparison(policy, objective.goal == "maximize", cut, replicates or {}, trial, k)
    stop, why = _POLICIES[policy.policy](case)
    return Decision(stop, k, why)


def is_due(policy: TerminationSpec, report: int) -> bool:
    """Return whether a policy judges a report, given its number from 1; asha judges only at its rungs."""
    if report < policy.delay:
        return False
    if policy.policy != "asha":
        return report % policy.interval == 0
    assert policy.reduction_factor is not None
    rung = policy.interval
    while rung < report:
        rung *= policy.reduction_factor
    return rung == report


def best(values: Reports, *, maximize: bool) -> float:
    """Return the best of the finite values; without one, the worst possible value."""
    worst = -math.inf if maximize else math.inf
    return (max if maximize else min)(filter(math.isfinite, values), default=worst)


def ranked_trials(outcomes: Mapping[int, float | None], completed: Set[int], *, maximize: bool) -> list[int]:
    """Return the trials with a result from the best to the worst, in a tie those that started first.

    Trials that did not complete follow all others: they have no final model, and their last checkpoint may be worse
    than their result.

    Args:
        outcomes: results of finished trials; None: the trial has no result.
        completed: numbers of the trials that completed.
        maximize: whether more is better.
    """
    found = {number: value for number, value in outcomes.items() if value is not None}
    ranks = {number: (*rank(value, number in completed, maximize=maximize), number) for number, value in found.items()}
    return sorted(found, key=ranks.__getitem__)


def rank(value: float, completed: bool, *, maximize: bool) -> tuple[bool, float]:
    """Return the key that sorts results from the best to the worst, those of completed trials first."""
    return not completed, -value if maximize else value


def combine_seeds(
    seeds: Sequence[Reports], objective: ObjectiveSpec, *, completed: Collection[int] = ()
) -> list[float]:
    """Return the median or mean over seeds of each report.

    A completed seed may have fewer reports than the others, since `evaluation.patience` ends each by itself. Its result
    stands for the reports that it did not make. A report that another seed has yet to make is left out.

    Args:
        seeds: reports of each seed.
        objective: how seeds are combined, and which report is the result of a seed.
        completed: indices of the seeds that completed.
    """
    combine = statistics.median if objective.over_seeds == "median" else statistics.fmean
    lengths = [len(reports) for reports in seeds]
    pending = [length for seed, length in enumerate(lengths) if seed not in completed or not length]
    count = min(pending) if pending else max(lengths)
    results = (outcome(reports, objective) for reports in seeds)
    kept = (math.nan if result is None else result for result in results)
    whole = [[*reports, *[result] * (count - len(reports))] for reports, result in zip(seeds, kept, strict=True)]
    columns = [[reports[number] for reports in whole] for number in range(count)]
    return [combine(column) if all(map(math.isfinite, column)) else math.nan for column in columns]


def outcome(reports: Reports, objective: ObjectiveSpec) -> float | None:
    """Return the result of a trial; None: it has no report, or its last one is not finite, as it diverged."""
    if not reports or not math.isfinite(reports[-1]):
        return None
    considered = reports if objective.reduction == "best" else reports[-1:]
    return best(considered, maximize=objective.goal == "maximize")


class _Comparison(NamedTuple):
    """One trial compared with all others at its k-th report."""

    policy: TerminationSpec
    maximize: bool
    histories: Histories
    replicates: Replicates
    trial: int
    k: int

    @property
    def peers(self) -> dict[int, Reports]:
        """Trials that have reported at least k times, this one included."""
        return {name: reports for name, reports in self.histories.items() if len(reports) >= self.k}

    def best_of(self, trial: int) -> float:
        return best(self.histories[trial], maximize=self.maximize)

    def worse(self, one: float, other: float) -> bool:
        return one < other if self.maximize else one > other

    def compared(self, left: str, right: str, *, worse: bool) -> str:
        """Return `LEFT < RIGHT`, with the sign that fits."""
        sign = ("<" if worse else ">=") if self.maximize else (">" if worse else "<=")
        return f"{left} {sign} {right}"

    def ranking(self, values: Mapping[int, float]) -> list[int]:
        """Return trials sorted from best to worst; in a tie, the one that started earlier is first."""
        return sorted(values, key=values.__getitem__, reverse=self.maximize)

    def rank(self, values: Mapping[int, float]) -> tuple[int, str]:
        """Return the rank of the trial, from 1, and the same as text."""
        rank = self.ranking(values).index(self.trial) + 1
        return rank, f"{_number(values[self.trial])} is number {rank} of {len(values)}"


def _bandit(case: _Comparison) -> tuple[bool, str]:
    policy, own = case.policy, case.best_of(case.trial)
    # A trial that has reported less often counts as well: its best can only improve until its k-th report. Otherwise,
    # of two simultaneous trials, the one that is always a moment ahead would never be compared with the other.
    top = best([case.best_of(name) for name in case.histories], maximize=case.maximize)
    mine, theirs = _number(own), _number(top)
    if policy.slack_amount is not None:
        stop = case.worse(own, top - policy.slack_amount if case.maximize else top + policy.slack_amount)
        limit = f"{theirs} {'-' if case.maximize else '+'} {_number(policy.slack_amount)}"
        return stop, case.compared(mine, limit, worse=stop)
    assert policy.slack_factor is not None
    # As Azure documents it, at every sign: "(Y + Y * 0.2)" is compared with the best. Below 0 the slack has the wrong
    # sign, but an exception for such values would also spare a trial that has collapsed to 0 while the best is at 0.5.
    ratio = 1 + policy.slack_factor
    scaled = f" x {_number(ratio)}"
    if case.maximize:
        stop = own * ratio < top
        return stop, case.compared(mine + scaled, theirs, worse=stop)
    stop = own > top * ratio
    return stop, case.compared(mine, theirs + scaled, worse=stop)


def _median(case: _Comparison) -> tuple[bool, str]:
    # The trial's best against running means of all, as Azure documents it: conservative, since for a metric that
    # improves steadily a trial's best is always better than its own mean. Optuna's MedianPruner compares otherwise.
    finite = [[value for value in values if math.isfinite(value)] for values in case.peers.values()]
    means = [statistics.fmean(values) for values in finite if values]
    middle, own = statistics.median(means), case.best_of(case.trial)
    stop = case.worse(own, middle)
    text = case.compared(_number(own), _number(middle), worse=stop)
    return stop, f"{text}, the median of {len(means)} running means"


def _truncation(case: _Comparison) -> tuple[bool, str]:
    assert case.policy.percentage is not None
    values = {name: best(reports[-1:], maximize=case.maximize) for name, reports in case.peers.items()}
    cut = math.floor(len(values) * case.policy.percentage / 100)
    rank, text = case.rank(values)
    return rank > len(values) - cut, f"{text}, of which the last {cut} are stopped"


def _asha(case: _Comparison) -> tuple[bool, str]:
    assert case.policy.reduction_factor is not None
    values = {name: case.best_of(name) for name in case.peers}
    kept = max(1, len(values) // case.policy.reduction_factor)
    rank, text = case.rank(values)
    return rank > kept, f"{text} in this rung, of which the first {kept} continue"


def _wilcoxon(case: _Comparison) -> tuple[bool, str]:
    """Compare a trial with the best one by a one-sided signed-rank test (Wilcoxon 1945) over the best of each seed."""
    assert case.policy.p_value is not None
    leader = case.ranking({name: case.best_of(name) for name in case.peers})[0]
    if leader == case.trial:
        return False, f"{_number(case.best_of(leader))} is the best of {len(case.peers)}"
    own, other = (
        [best(reports[: case.k], maximize=case.maximize) for reports in case.replicates[trial]]
        for trial in (case.trial, leader)
    )
    sign = 1 if case.maximize else -1
    p_value = signed_rank_p([sign * (theirs - mine) for mine, theirs in zip(own, other, strict=True)])
    stop = p_value < case.policy.p_value
    text = f"p {_number(p_value)} {'<' if stop else '>='} {_number(case.policy.p_value)}"
    return stop, f"{text} against trial {leader}"


def signed_rank_p(differences: Sequence[float]) -> float:
    """Return the exact one-sided p-value of Wilcoxon's signed-rank test.

    This is the probability, with random signs, of a sum of positive ranks at least as large as the observed one. Zeros
    are skipped, ties share the mean of their ranks, and all combinations of signs are enumerated.

    Args:
        differences: differences of the pairs; the first 16 that are not zero count.
    """
    counted = [value for value in differences if value != 0][:MAX_PAIRS]
    sizes = sorted(abs(value) for value in counted)
    ranks = [statistics.fmean(rank for rank, size in enumerate(sizes, 1) if size == abs(value)) for value in counted]
    seen = sum(rank for rank, value in zip(ranks, counted, strict=True) if value > 0)
    sums = [
        sum(rank for rank, up in zip(ranks, signs, strict=True) if up) for signs in product((0, 1), repeat=len(ranks))
    ]
    return sum(total >= seen for total in sums) / len(sums)


def _number(value: float) -> str:
    return f"{value:.4g}"


_POLICIES: Mapping[str, Callable[[_Comparison], tuple[bool, str]]] = {
    "bandit": _bandit,
    "median": _median,
    "truncation": _truncation,
    "asha": _asha,
    "wilcoxon": _wilcoxon,
}
