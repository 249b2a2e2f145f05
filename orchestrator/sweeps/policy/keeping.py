"""Which trials keep their checkpoints and models: the best N of a sweep."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.jobs.base import Plan
from orchestrator.specs.sweep_spec import SweepSpec, trials

AUTO = 3


def losers(outcomes: Mapping[int, float | None], keep: int | None, *, maximize: bool) -> set[int]:
    """Trials that keep nothing: more only ever join them.

    Args:
        outcomes: of the trials that have ended, what each came to; None: nothing that could be compared.
        keep: how many keep theirs; of equals who began first. None: all.
        maximize: whether more is better.
    """
    if keep is None:
        return set()
    sign = -1 if maximize else 1
    ranked = sorted((sign * value, number) for number, value in outcomes.items() if value is not None)
    return outcomes.keys() - {number for _, number in ranked[:keep]}


def at_once(spec: SweepSpec, keep: int | None) -> int:
    """How many trials have their checkpoints and models on the disk at a time, at most."""
    whole = trials(spec)
    return whole if keep is None else min(whole, keep + spec.limits.concurrent)


def most_bytes(spec: SweepSpec, plan: Plan, keep: int | None) -> int | None:
    """Return the most bytes that they take on the disk at a time; None: such a job saves none."""
    if plan.weights_bytes is None:
        return None
    return at_once(spec, keep) * spec.replicates * plan.weights_bytes


def told(keep: int | None) -> str:
    """In words."""
    return "of all trials" if keep is None else "of the best trial" if keep == 1 else f"of the best {keep} trials"
