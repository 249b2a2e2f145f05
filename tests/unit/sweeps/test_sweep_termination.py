"""Every policy on histories computed by hand."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from scipy.stats import wilcoxon

from orchestrator.specs.sweep_spec import ObjectiveSpec, TerminationSpec
from orchestrator.sweeps.policy.termination import Decision, combine_seeds, is_due, judge, outcome, signed_rank_p

NAN = math.nan
MAX, MIN = (ObjectiveSpec(metric="score", goal=goal) for goal in ("maximize", "minimize"))


def policy(name: str, **keys: Any) -> TerminationSpec:
    return TerminationSpec(policy=name, **keys)


def stopped_trials(
    rule: TerminationSpec, objective: ObjectiveSpec, histories: dict[int, list[float]], *, at: int | None = None
) -> list[int]:
    """Return the trials that would be stopped at report `at`, or each at its last report."""
    found = {name: judge(rule, objective, histories, name, report=at) for name in histories}
    return [name for name, decision in found.items() if decision is not None and decision.stop]


def reason(rule: TerminationSpec, objective: ObjectiveSpec, histories: dict[int, list[float]], trial: int) -> str:
    decision = judge(rule, objective, histories, trial)
    assert decision is not None
    return decision.text


class TestInterval:
    """Reports at which a policy decides."""

    @pytest.mark.parametrize(
        ("keys", "expected"),
        [
            ({}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
            ({"interval": 3}, [3, 6, 9]),
            ({"delay": 4}, [4, 5, 6, 7, 8, 9, 10]),
            ({"interval": 3, "delay": 5}, [6, 9]),  # multiples of the interval, from the delay on
            ({"interval": 3, "delay": 6}, [6, 9]),
        ],
    )
    def test_interval_and_delay(self, keys: dict[str, int], expected: list[int]) -> None:
        assert [report for report in range(1, 11) if is_due(policy("median", **keys), report)] == expected

    def test_rungs_of_asha(self) -> None:
        rule = policy("asha", reduction_factor=3, interval=2)
        assert [report for report in range(1, 60) if is_due(rule, report)] == [2, 6, 18, 54]
        late = policy("asha", reduction_factor=2, delay=4)
        assert [report for report in range(1, 20) if is_due(late, report)] == [4, 8, 16]

    def test_no_decision_between_intervals_or_without_policy(self) -> None:
        histories = {0: [9.0, 9.0], 1: [1.0, 1.0]}
        assert judge(policy("bandit", slack_factor=0.1, interval=3), MAX, histories, 1) is None
        assert judge(policy("none"), MAX, histories, 1) is None
        assert judge(policy("none"), MAX, {0: []}, 0) is None


class TestBandit:
    """Azure's example: 0.8 and a factor of 0.2 stop trials below 0.667."""

    def test_example_of_azure(self) -> None:
        histories = {0: [0.5, 0.8], 1: [0.5, 0.667], 2: [0.66, 0.6], 3: [0.1, 0.9]}
        rule = policy("bandit", slack_factor=0.2)
        assert stopped_trials(rule, MAX, {name: histories[name] for name in (0, 1, 2)}) == [2]
        assert stopped_trials(rule, MAX, histories) == [1, 2]  # 0.9 / 1.2 = 0.75
        assert stopped_trials(rule, MAX, histories, at=1) == [0, 1, 3]  # 0.66 / 1.2 = 0.55

    def test_reason_has_the_numbers(self) -> None:
        rule = policy("bandit", slack_factor=0.2)
        histories = {0: [0.7, 0.75, 0.79], 1: [0.6, 0.611, 0.605]}
        assert reason(rule, MAX, histories, 1) == "stopped at report 3: 0.611 x 1.2 < 0.79"
        assert reason(rule, MAX, histories, 0) == "continues at report 3: 0.79 x 1.2 >= 0.79"
        assert reason(rule, MIN, {0: [0.5], 1: [0.61]}, 1) == "stopped at report 1: 0.61 > 0.5 x 1.2"
        assert reason(policy("bandit", slack_amount=0.1), MAX, {0: [0.5], 1: [0.3]}, 1) == (
            "stopped at report 1: 0.3 < 0.5 - 0.1"
        )
        assert reason(policy("bandit", slack_amount=0.1), MIN, {0: [0.5], 1: [0.55]}, 1) == (
            "continues at report 1: 0.55 <= 0.5 + 0.1"
        )

    def test_minimize(self) -> None:
        histories = {0: [3.0, 2.0], 1: [2.5, 2.41], 2: [2.39, 5.0]}
        assert stopped_trials(policy("bandit", slack_factor=0.2), MIN, histories) == [1]  # 2 x 1.2 = 2.4
        assert stopped_trials(policy("bandit", slack_amount=0.5), MIN, histories) == []
        assert stopped_trials(policy("bandit", slack_amount=0.38), MIN, histories) == [1, 2]

    def test_tie_with_the_limit_continues(self) -> None:
        assert stopped_trials(policy("bandit", slack_amount=0.25), MAX, {0: [0.75], 1: [0.5]}) == []
        assert stopped_trials(policy("bandit", slack_factor=1), MAX, {0: [0.5], 1: [0.25]}) == []
        assert stopped_trials(policy("bandit", slack_factor=1), MIN, {0: [0.25], 1: [0.5]}) == []

    def test_late_trial_is_compared_at_the_same_report(self) -> None:
        histories = {0: [0.1, 0.2, 0.9], 1: [0.1, 0.2]}
        assert stopped_trials(policy("bandit", slack_factor=0.2), MAX, histories) == []
        assert stopped_trials(policy("bandit", slack_factor=0.2), MAX, {**histories, 1: [0.1, 0.2, 0.3]}) == [1]

    def test_better_trial_with_fewer_reports_counts(self) -> None:
        rule = policy("bandit", slack_factor=0.2)
        assert stopped_trials(rule, MAX, {0: [0.99], 1: [0.1, 0.5]}, at=None) == [1]
        assert stopped_trials(rule, MAX, {0: [0.55], 1: [0.1, 0.5]}, at=None) == []
        assert stopped_trials(rule, MIN, {0: [0.4], 1: [0.9, 0.5]}, at=None) == [1]
        assert stopped_trials(policy("asha", reduction_factor=2, interval=2), MAX, {0: [0.99], 1: [0.1, 0.5]}) == []

    def test_collapsed_trial_is_stopped_at_and_below_zero(self) -> None:
        """own x 1.2 < best, at every sign: an exception for values at or below 0 would spare collapsed trials."""
        rule = policy("bandit", slack_factor=0.2)
        assert stopped_trials(rule, MAX, {0: [0.5], 1: [0.0], 2: [-0.3], 3: [0.45]}) == [1, 2]
        assert reason(rule, MAX, {0: [0.5], 1: [0.0]}, 1) == "stopped at report 1: 0 x 1.2 < 0.5"
        assert reason(rule, MAX, {0: [0.5], 1: [-0.2]}, 1) == "stopped at report 1: -0.2 x 1.2 < 0.5"
        assert stopped_trials(rule, MAX, {0: [0.0], 1: [0.0], 2: [-0.1]}) == [2]
        assert stopped_trials(rule, MIN, {0: [0.0], 1: [0.1], 2: [0.0]}) == [1]  # 0.1 > 0 x 1.2
        assert stopped_trials(rule, MIN, {0: [-0.5], 1: [0.1]}) == [0, 1]

    def test_slack_factor_below_zero_stops_even_the_best(self) -> None:
        rule = policy("bandit", slack_factor=0.2)
        assert stopped_trials(rule, MAX, {0: [-0.1], 1: [-0.9]}) == [0, 1]  # -0.1 x 1.2 < -0.1
        assert stopped_trials(policy("bandit", slack_amount=0.2), MAX, {0: [-0.1], 1: [-0.9]}) == [1]


class TestExamplesOfAzure:
    """Examples of Microsoft's documentation: "Hyperparameter tuning a model (v2)" and the class `BanditPolicy`."""

    @pytest.mark.parametrize(("own", "stops"), [(0.66, True), (0.6667, False), (0.7, False), (0.0, True), (-0.5, True)])
    def test_ratio_of_the_best_at_interval_10(self, own: float, stops: bool) -> None:
        """Best 0.8 at interval 10, slack_factor 0.2: stops below 0.66 (0.8 / 1.2)."""
        histories = {0: [0.1] * 9 + [0.8], 1: [-1.0] * 9 + [own]}
        rule = policy("bandit", slack_factor=0.2, interval=10)
        assert stopped_trials(rule, MAX, histories) == ([1] if stops else [])
        assert stopped_trials(rule, MAX, histories, at=9) == []

    @pytest.mark.parametrize("factor", [0.1, 0.2, 1.0, 2.5])
    @pytest.mark.parametrize("top", [-0.8, -0.1, 0.0, 0.25, 0.8])
    def test_both_documented_formulas(self, top: float, factor: float) -> None:
        """(Y + Y x factor) < best in the class's documentation, Y < best / (1 + factor) in the guide."""
        for own in (one / 16 for one in range(-32, math.floor(16 * top) + 1)):
            stopped = stopped_trials(policy("bandit", slack_factor=factor), MAX, {0: [top], 1: [own]})
            assert (1 in stopped) == (own + own * factor < top)
            if abs(own - top / (1 + factor)) > 1e-9:
                assert (1 in stopped) == (own < top / (1 + factor))

    def test_delay_of_200_with_intervals_of_100(self) -> None:
        """slack_factor 0.2, evaluation_interval 100, delay_evaluation 200: first applied at interval 200."""
        rule = policy("bandit", slack_factor=0.2, interval=100, delay=200)
        assert [report for report in range(1, 401) if is_due(rule, report)] == [200, 300, 400]

    @pytest.mark.parametrize(("own", "stops"), [(0.59, True), (0.61, False), (-0.2, True)])
    def test_amount_below_the_best_after_100_intervals(self, own: float, stops: bool) -> None:
        """Best 0.8, slack_amount 0.2: stops below 0.6 (0.8 - 0.2)."""
        histories = {3: [0.0] * 99 + [0.8], 4: [-1.0] * 99 + [own]}
        rule = policy("bandit", slack_amount=0.2, interval=100)
        assert stopped_trials(rule, MAX, histories) == ([4] if stops else [])

    def test_91_percent_of_the_best_from_interval_5_on(self) -> None:
        """slack_factor 0.1, evaluation_interval 1, delay_evaluation 5: stops below 1 / 1.1, 91% of the best."""
        rule = policy("bandit", slack_factor=0.1, interval=1, delay=5)
        assert [report for report in range(1, 8) if is_due(rule, report)] == [5, 6, 7]
        assert stopped_trials(rule, MAX, {0: [1.0] * 5, 1: [0.9] * 5, 2: [0.92] * 5}) == [1]

    def test_median_at_interval_5(self) -> None:
        """Stops at interval 5 if the best is worse than the median of the running averages over intervals 1:5."""
        rule = policy("median", interval=1, delay=5)
        histories = {
            0: [0.5, 0.6, 0.7, 0.8, 0.9],
            1: [0.6] * 5,
            2: [0.1, 0.2, 0.3, 0.4, 0.59],
        }  # averages 0.7, 0.6, 0.318
        assert stopped_trials(rule, MAX, histories) == [2]
        assert stopped_trials(rule, MAX, histories, at=4) == []

    def test_lowest_20_percent_at_interval_5(self) -> None:
        """Stops at interval 5 the lowest 20% of performance of all jobs at interval 5."""
        rule = policy("truncation", percentage=20, interval=1, delay=5)
        histories = {number: [9.0 - number] * 4 + [number / 10] for number in range(10)}
        assert stopped_trials(rule, MAX, histories) == [0, 1]
        assert stopped_trials(rule, MAX, histories, at=4) == []


class TestMedian:
    """The best result of a trial compared with the median of running means."""

    def test_median_of_running_means(self) -> None:
        histories = {0: [1.0, 3.0], 1: [2.0, 2.0], 2: [0.5, 1.0], 3: [2.5, 4.5]}  # means 2, 2, 0.75, 3.5: median 2
        assert stopped_trials(policy("median"), MAX, histories) == [2]
        assert stopped_trials(policy("median"), MIN, histories) == [3]  # its best, 2.5, is above 2
        assert reason(policy("median"), MAX, histories, 2) == (
            "stopped at report 2: 1 < 2, the median of 4 running means"
        )

    def test_own_mean_is_included_and_a_tie_continues(self) -> None:
        assert stopped_trials(policy("median"), MAX, {0: [1.0], 1: [2.0]}) == [0]  # the median is 1.5
        assert stopped_trials(policy("median"), MAX, {0: [1.0]}) == []
        assert stopped_trials(policy("median"), MAX, {0: [2.0], 1: [2.0], 2: [2.0]}) == []

    def test_reports_beyond_those_of_the_trial_are_ignored(self) -> None:
        histories = {0: [1.0, 9.0, 9.0], 1: [1.5, 9.0], 2: [1.2]}
        assert stopped_trials(policy("median"), MAX, histories, at=1) == [0]
        decision = judge(policy("median"), MAX, histories, 2)
        assert decision == Decision(False, 1, "1.2 >= 1.2, the median of 3 running means")


class TestTruncation:
    """The worst percentage by the k-th report alone."""

    def test_worst_percentage_is_stopped(self) -> None:
        histories = {0: [9.0, 1.0], 1: [0.0, 5.0], 2: [0.0, 4.0], 3: [0.0, 2.0], 4: [0.0, 3.0]}
        assert stopped_trials(policy("truncation", percentage=20), MAX, histories) == [0]  # the best of all before
        assert stopped_trials(policy("truncation", percentage=40), MAX, histories) == [0, 3]
        assert stopped_trials(policy("truncation", percentage=39), MAX, histories) == [0]  # 1.95 of 5: one
        assert stopped_trials(policy("truncation", percentage=19), MAX, histories) == []
        assert stopped_trials(policy("truncation", percentage=40), MIN, histories) == [1, 2]
        assert reason(policy("truncation", percentage=40), MAX, histories, 3) == (
            "stopped at report 2: 2 is number 4 of 5, of which the last 2 are stopped"
        )

    def test_tie_stops_the_later_trial(self) -> None:
        assert stopped_trials(policy("truncation", percentage=50), MAX, {4: [1.0], 2: [1.0]}) == [2]
        assert stopped_trials(policy("truncation", percentage=50), MIN, {4: [1.0], 2: [1.0]}) == [2]

    def test_diverged_peer_is_the_worst(self) -> None:
        for objective in (MAX, MIN):
            assert stopped_trials(policy("truncation", percentage=34), objective, {0: [1.0], 1: [NAN], 2: [1.0]}) == [1]


class TestAsha:
    """The best trials of each rung continue."""

    def test_best_trials_of_a_rung_continue(self) -> None:
        rule = policy("asha", reduction_factor=3)
        assert stopped_trials(rule, MAX, {0: [0.5]}) == []
        assert stopped_trials(rule, MAX, {0: [0.5], 1: [0.4]}) == [1]
        six = {number: [value] for number, value in enumerate([0.5, 0.4, 0.9, 0.8, 0.1, 0.3])}
        assert stopped_trials(rule, MAX, six) == [0, 1, 4, 5]  # two of six continue
        assert stopped_trials(rule, MIN, six) == [0, 1, 2, 3]
        assert (
            reason(rule, MAX, six, 0)
            == "stopped at report 1: 0.5 is number 3 of 6 in this rung, of which the first 2 continue"
        )

    def test_best_result_until_the_rung_counts(self) -> None:
        rule = policy("asha", reduction_factor=2, interval=2)
        assert stopped_trials(rule, MAX, {0: [0.9, 0.1], 1: [0.2, 0.5, 0.95]}, at=2) == [1]


class TestWilcoxon:
    """Comparison with the best trial, seed by seed."""

    RULE = policy("wilcoxon", p_value=0.1)

    def test_trial_worse_with_every_seed_is_stopped(self) -> None:
        seeds = {0: [[0.9], [0.8], [0.85], [0.95]], 1: [[0.8], [0.79], [0.7], [0.9]]}
        histories = {name: combine_seeds(found, MAX) for name, found in seeds.items()}
        decision = judge(self.RULE, MAX, histories, 1, replicates=seeds)
        assert decision == Decision(True, 1, "p 0.0625 < 0.1 against trial 0")
        assert judge(self.RULE, MAX, histories, 0, replicates=seeds) == Decision(False, 1, "0.875 is the best of 2")

    def test_probability_equal_to_the_limit_continues(self) -> None:
        seeds = {0: [[0.9]] * 4, 1: [[0.8]] * 4}
        histories = {0: [0.9], 1: [0.8]}
        decision = judge(policy("wilcoxon", p_value=0.0625), MAX, histories, 1, replicates=seeds)
        assert decision == Decision(False, 1, "p 0.0625 >= 0.0625 against trial 0")

    def test_trial_worse_on_average_only_continues(self) -> None:
        seeds = {0: [[0.9], [0.8], [0.85], [0.95]], 1: [[0.8], [0.99], [0.7], [0.9]]}
        histories = {name: combine_seeds(found, MAX) for name, found in seeds.items()}
        decision = judge(self.RULE, MAX, histories, 1, replicates=seeds)
        assert decision is not None
        assert not decision.stop

    def test_minimize(self) -> None:
        seeds = {0: [[0.1], [0.2], [0.1], [0.2]], 1: [[0.2], [0.3], [0.4], [0.5]]}
        histories = {name: combine_seeds(found, MIN) for name, found in seeds.items()}
        decision = judge(self.RULE, MIN, histories, 1, replicates=seeds)
        assert decision is not None
        assert decision.stop

    def test_wilcoxon_ignores_later_reports_of_a_seed(self) -> None:
        seeds = {0: [[0.5, 0.1, 0.9]] * 4, 1: [[0.4, 0.6]] * 4}
        histories = {name: combine_seeds(found, MAX) for name, found in seeds.items()}
        decision = judge(self.RULE, MAX, histories, 1, replicates=seeds)
        assert decision == Decision(False, 2, "0.6 is the best of 2")

    @pytest.mark.parametrize(
        "differences",
        [[1, 2, 3, 4, 5], [1, -2, 3, 4, 5], [-1, -2, 3], [3.0, 1.5, -0.5, 2.5, -2.0, 4.0], [-1, -2, -3, -4]],
    )
    def test_probability_equals_that_of_scipy(self, differences: list[float]) -> None:
        theirs = wilcoxon(differences, alternative="greater", mode="exact").pvalue
        assert signed_rank_p(differences) == pytest.approx(theirs)

    def test_zeros_are_dropped_and_ties_share_ranks(self) -> None:
        assert signed_rank_p([0, 0]) == 1.0
        assert signed_rank_p([0, 1, 2]) == signed_rank_p([1, 2]) == 0.25
        assert signed_rank_p([0, 0, 1, -2, 3]) == signed_rank_p([1, -2, 3]) == 0.375
        assert signed_rank_p([1, 1, -1]) == 0.5  # ranks 2, 2, 2: sums of 4 and more are 4 of 8


class TestNotANumber:
    """A diverged trial is stopped under every policy; Azure would continue it."""

    @pytest.mark.parametrize("rule", [policy("none"), policy("median", interval=7), policy("bandit", slack_factor=1)])
    @pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
    def test_diverged_trial_is_stopped_immediately(self, rule: TerminationSpec, value: float) -> None:
        for objective in (MAX, MIN):
            decision = judge(rule, objective, {0: [1.0, value], 1: [1.0]}, 0)
            assert decision == Decision(True, 2, f"score is {value}")

    def test_other_trials_are_compared_by_finite_values(self) -> None:
        histories = {0: [0.9, NAN], 1: [0.5, 0.5], 2: [NAN, NAN]}
        assert stopped_trials(policy("bandit", slack_factor=0.5), MAX, {0: [0.9, NAN], 1: [0.5, 0.5]}) == [0, 1]
        assert (
            reason(policy("median"), MAX, histories, 1)
            == "stopped at report 2: 0.5 < 0.7, the median of 2 running means"
        )


class TestReplicates:
    """Seeds of a trial, compared report by report."""

    def test_report_of_a_replicated_trial_waits_for_all_seeds(self) -> None:
        assert combine_seeds([[1.0, 2.0, 3.0], [5.0, 6.0], [3.0, 9.0, 1.0]], MAX) == [3.0, 6.0]
        mean = ObjectiveSpec(metric="score", over_seeds="mean")
        assert combine_seeds([[1.0, 2.0], [5.0, 6.0]], mean) == [3.0, 4.0]
        assert combine_seeds([[1.0], []], MAX) == []

    def test_completed_seed_keeps_its_result(self) -> None:
        mean = ObjectiveSpec(metric="score", goal="maximize", over_seeds="mean")
        last = mean.model_copy(update={"reduction": "last"})
        seeds = [[3.0, 1.0], [5.0, 6.0, 8.0, 7.0]]
        assert combine_seeds(seeds, mean, completed={0}) == [4.0, 3.5, 5.5, 5.0]
        assert combine_seeds(seeds, last, completed={0, 1}) == [4.0, 3.5, 4.5, 4.0]
        assert outcome(combine_seeds(seeds, mean, completed={0, 1}), mean) == statistics.fmean([3.0, 8.0])
        assert combine_seeds(seeds, mean, completed={1}) == [4.0, 3.5]
        assert combine_seeds([[], [5.0]], mean, completed={0, 1}) == []

    def test_one_diverged_seed_makes_the_trial_diverged(self) -> None:
        assert math.isnan(combine_seeds([[1.0], [NAN], [1.0]], MAX)[0])

    def test_outcome_of_a_trial(self) -> None:
        last = ObjectiveSpec(metric="score", goal="maximize", reduction="last")
        assert [outcome([1.0, 3.0, 2.0], objective) for objective in (MAX, MIN, last)] == [3.0, 1.0, 2.0]
        assert outcome([1.0, NAN], MAX) is None, "settings with which training diverges are not the best"
        assert outcome([1.0, NAN], last) is None
        assert outcome([], MIN) is None
