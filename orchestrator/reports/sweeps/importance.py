"""Which settings had to do with the outcome."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from orchestrator.sweeps.driver.sweep_status import TrialRow

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LEAST_TRIALS = 4  # that came to something; of fewer nothing can be told


def importance_of(goal: Literal["minimize", "maximize"], rows: Iterable[TrialRow]) -> dict[str, float]:
    """Setting -> share, the largest first, of those that every trial has.

    Args:
        goal: which of two outcomes is better.
        rows: the trials.
    """
    import optuna

    distributions: dict[str, optuna.distributions.BaseDistribution] = {}
    found = [(row.settings, row.outcome) for row in rows if row.outcome is not None]
    if len(found) < LEAST_TRIALS or len({outcome for _, outcome in found}) == 1:
        return {}
    for path in found[0][0]:
        values = [settings.get(path) for settings, _ in found]
        if (distribution := _distribution(values)) is not None:
            distributions[path] = distribution
    if len(distributions) < 2:
        return dict.fromkeys(distributions, 1.0)
    again = optuna.create_study(direction=goal)
    for settings, outcome in found:
        params = {path: _plain(settings[path]) for path in distributions}
        again.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=outcome))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    shares = optuna.importance.get_param_importances(again, evaluator=evaluator)
    return dict(sorted(shares.items(), key=lambda one: -one[1]))


def _distribution(values: list[object]) -> BaseDistribution | None:
    """On which the values lie; None: of values that are all alike, or missing in some trials."""
    import optuna

    if None in values or len({str(value) for value in values}) == 1:
        return None
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        places = [float(value) for value in values]  # type: ignore[arg-type]
        low, high = min(places), max(places)
        return optuna.distributions.FloatDistribution(low, high, log=low > 0 and high / low >= 20)
    return optuna.distributions.CategoricalDistribution(sorted({_plain(value) for value in values}, key=str))


def _plain(value: object) -> float | str:
    """As the distribution holds it."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
