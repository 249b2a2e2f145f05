"""When a trial is stopped early: functions of what all trials have reported, and of nothing else.

A *report* is a value of the primary metric that a trial logged, whatever step it was at; policies count reports, as
Azure's do. A trial is judged once for each report, the k-th among all k-th reports that there are, of trials that ended
too. Bandit, median and truncation are Azure's:

    bandit      its best < best of all / (1 + slack_factor), or < best of all - slack_amount, of reports 1..k
    median      its best < median over all of the mean of reports 1..k
    truncation  its k-th report is among the worst percentage of all k-th reports

and the mirror image of each where less is better. Azure's example of a bandit compares trials at the same report and
says nothing of those that have reported less often; nor does Azure say how it takes values that are not numbers: here a
trial whose last value is none is stopped by any policy, and others are compared by the values that are.

The signed-rank test is our own: seeds of a task often tie (accuracy on a small set), SciPy's exact method ignores ties,
and its exact permutation test calls the statistic once for each of up to 65,536 signs, while a sweep waits.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from orchestrator.specs.sweep_spec import ObjectiveSpec, TerminationSpec

Reports = Sequence[float]
Histories = Mapping[int, Reports]
"""Trial -> its reports so far, of a replicated one what its seeds come to; trials in the order in which they began."""
Replicates = Mapping[int, Sequence[Reports]]
"""Trial -> the reports of each of its seeds."""
MOST_PAIRS = 16  # signs of so many differences are gone through one by one


class Decision(NamedTuple):
    """What became of a trial at one of its reports."""

    stop: bool
    report: int
    """Which, from 1 on."""
    why: str
    """The comparison, with its numbers."""

    @property
    def text(self) -> str:
        """`stopped at report 3: 0.611 x 1.2 < 0.79`."""
        return f"{'stopped' if self.stop else 'goes on'} at report {self.report}: {self.why}"


def judge(
    policy: TerminationSpec,
    objective: ObjectiveSpec,
    histories: Histories,
    trial: int,
    *,
    report: int | None = None,
    replicates: Replicates | None = None,
) -> Decision | None:
    """Whether a trial is stopped at a report; None: the policy does not look at it.

    Args:
        policy: which, and its numbers.
        objective: whether less or more is better.
        histories: of all trials.
        trial: which is judged.
        report: at which of its reports, from 1 on; None: the last. Later ones count for nothing.
        replicates: reports of each seed, for wilcoxon.
    """
    k = len(histories[trial]) if report is None else report
    if k == 0:
        return None
    last = histories[trial][k - 1]
    if not math.isfinite(last):
        return Decision(True, k, f"{objective.metric} is {last}")
    if policy.policy == "none" or not is_due(policy, k):
        return None
    scene = _Comparison(
        policy, objective.goal == "maximize", {name: found[:k] for name, found in histories.items()}, trial, k
    )
    if policy.policy == "wilcoxon":
        assert replicates is not None, "wilcoxon compares seed by seed"
        stop, why = _wilcoxon(scene, replicates)
    else:
        stop, why = _POLICIES[policy.policy](scene)
    return Decision(stop, k, why)


def is_due(policy: TerminationSpec, report: int) -> bool:
    """Whether a policy looks at a trial's report of that number; asha does at its rungs."""
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
    """The best of the values that are numbers; the worst there is if none is."""
    found = [value for value in values if math.isfinite(value)]
    if not found:
        return -math.inf if maximize else math.inf
    return max(found) if maximize else min(found)


def together(seeds: Sequence[Reports], objective: ObjectiveSpec) -> list[float]:
    """Reports of a replicated trial: of those that all of its seeds have made, the median or mean of each."""
    combine = statistics.median if objective.over_seeds == "median" else statistics.fmean
    return [combine(column) if all(map(math.isfinite, column)) else math.nan for column in zip(*seeds, strict=False)]


def outcome(reports: Reports, objective: ObjectiveSpec) -> float | None:
    """What a trial comes to; None: nothing that could be compared."""
    maximize = objective.goal == "maximize"
    value = best(reports if objective.reduction == "best" else reports[-1:], maximize=maximize)
    return value if math.isfinite(value) else None


class _Comparison(NamedTuple):
    """One trial among all, at its k-th report."""

    policy: TerminationSpec
    maximize: bool
    histories: Histories
    trial: int
    k: int

    @property
    def peers(self) -> dict[int, Reports]:
        """Trials that have reported as often, this one among them."""
        return {name: found for name, found in self.histories.items() if len(found) >= self.k}

    def best_of(self, trial: int) -> float:
        return best(self.histories[trial], maximize=self.maximize)

    def worse(self, one: float, other: float) -> bool:
        return one < other if self.maximize else one > other

    def compared(self, left: str, right: str, *, worse: bool) -> str:
        """`LEFT < RIGHT`, whichever way is worse."""
        sign = ("<" if worse else ">=") if self.maximize else (">" if worse else "<=")
        return f"{left} {sign} {right}"

    def places(self, values: Mapping[int, float]) -> list[int]:
        """Trials, the best first; of equals the one that began earlier."""
        order = list(values)
        sign = -1 if self.maximize else 1
        return sorted(order, key=lambda name: (sign * values[name], order.index(name)))


def _bandit(scene: _Comparison) -> tuple[bool, str]:
    policy, own = scene.policy, scene.best_of(scene.trial)
    # Whoever has reported less often counts as well: its best can but become better until it has come so far. Else of
    # two trials abreast the one that is always a moment ahead would never be held against the other.
    top = best([scene.best_of(name) for name in scene.histories], maximize=scene.maximize)
    mine, theirs = _number(own), _number(top)
    if policy.slack_amount is not None:
        stop = scene.worse(own, top - policy.slack_amount if scene.maximize else top + policy.slack_amount)
        limit = f"{theirs} {'-' if scene.maximize else '+'} {_number(policy.slack_amount)}"
        return stop, scene.compared(mine, limit, worse=stop)
    assert policy.slack_factor is not None
    if min(own, top) <= 0:
        return False, f"a ratio says nothing of {mine} and {theirs}, slack_amount would"
    ratio = 1 + policy.slack_factor
    if scene.maximize:
        stop = own * ratio < top
        return stop, scene.compared(f"{mine} x {_number(ratio)}", theirs, worse=stop)
    stop = own > top * ratio
    return stop, scene.compared(mine, f"{theirs} x {_number(ratio)}", worse=stop)


def _median(scene: _Comparison) -> tuple[bool, str]:
    counted = [[value for value in values if math.isfinite(value)] for values in scene.peers.values()]
    means = [statistics.fmean(values) for values in counted if values]
    middle, own = statistics.median(means), scene.best_of(scene.trial)
    stop = scene.worse(own, middle)
    return (
        stop,
        f"{scene.compared(_number(own), _number(middle), worse=stop)}, the median of {len(means)} running means",
    )


def _truncation(scene: _Comparison) -> tuple[bool, str]:
    assert scene.policy.percentage is not None
    worst = -math.inf if scene.maximize else math.inf
    values = {name: found[-1] if math.isfinite(found[-1]) else worst for name, found in scene.peers.items()}
    cut = math.floor(len(values) * scene.policy.percentage / 100)
    place = scene.places(values).index(scene.trial) + 1
    stop = place > len(values) - cut
    lead = f"{_number(values[scene.trial])} is number {place} of {len(values)}"
    return stop, f"{lead}, of which the last {cut} are stopped"


def _asha(scene: _Comparison) -> tuple[bool, str]:
    factor = scene.policy.reduction_factor
    assert factor is not None
    values = {name: scene.best_of(name) for name in scene.peers}
    kept = max(1, len(values) // factor)
    place = scene.places(values).index(scene.trial) + 1
    lead = f"{_number(values[scene.trial])} is number {place} of {len(values)}"
    return place > kept, f"{lead} in this rung, of which the first {kept} go on"


def _wilcoxon(scene: _Comparison, replicates: Replicates) -> tuple[bool, str]:
    """Signed-rank test (Wilcoxon 1945), one-sided: each seed's best against that of the best trial's same seed."""
    p_value = scene.policy.p_value
    assert p_value is not None
    leader = scene.places({name: scene.best_of(name) for name in scene.peers})[0]
    if leader == scene.trial:
        return False, f"{_number(scene.best_of(leader))} is the best of {len(scene.peers)}"
    pairs = zip(replicates[scene.trial], replicates[leader], strict=True)
    sign = 1 if scene.maximize else -1
    lead = [
        sign * (best(other[: scene.k], maximize=scene.maximize) - best(own[: scene.k], maximize=scene.maximize))
        for own, other in pairs
    ]
    found = signed_rank_p(lead)
    return (
        found < p_value,
        f"p {_number(found)} {'<' if found < p_value else '>='} {_number(p_value)} against trial {leader}",
    )


def signed_rank_p(differences: Sequence[float]) -> float:
    """How likely a sum of ranks as large as that of the positive differences is if signs are a matter of chance.

    Exact: all signs are gone through. Zeros are left out, equal sizes share the mean of their ranks.

    Args:
        differences: at most 16 of them count.
    """
    counted = [value for value in differences if value != 0][:MOST_PAIRS]
    sizes = sorted(abs(value) for value in counted)
    ranks = [statistics.fmean(place for place, size in enumerate(sizes, 1) if size == abs(value)) for value in counted]
    seen = sum(rank for rank, value in zip(ranks, counted, strict=True) if value > 0)
    sums = [
        sum(rank for rank, up in zip(ranks, signs, strict=True) if up) for signs in product((0, 1), repeat=len(ranks))
    ]
    return sum(found >= seen for found in sums) / len(sums)


def _number(value: float) -> str:
    return f"{value:.4g}"


_POLICIES: Mapping[str, Callable[[_Comparison], tuple[bool, str]]] = {
    "bandit": _bandit,
    "median": _median,
    "truncation": _truncation,
    "asha": _asha,
}
