"""Limits of a whole sweep: which of them is reached, and by what command it is raised."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from orchestrator.specs.sweep_spec import LimitsSpec
from orchestrator.support.errors import ConflictError, SpecError
from orchestrator.sweeps.design.sweep_record import SweepRecord

HOUR = 3600.0


class ReachedLimit(NamedTuple):
    """A limit of a sweep that is used up."""

    key: str
    """hours or cost."""
    why: str
    """`limits.hours: 2 h are over`."""
    enough: int
    """What would let it go on for as long, or for as much, again."""


def reached(record: SweepRecord, spent: float) -> ReachedLimit | None:
    """Which limit of a sweep is used up.

    Args:
        record: what was asked for.
        spent: USD, on all of its trials.
    """
    limits, took = record.spec.limits, (time.time() - record.created) / HOUR
    if limits.hours is not None and took > limits.hours:
        return ReachedLimit("hours", f"limits.hours: {limits.hours:g} h are over", math.ceil(took + limits.hours))
    if limits.cost is not None and spent > limits.cost:
        why = f"limits.cost: {spent:.2f} USD are more than {limits.cost:g}"
        return ReachedLimit("cost", why, math.ceil(spent + limits.cost))
    return None


def require_left(record: SweepRecord, spent: float) -> None:
    """Sees that a sweep which is to go on may: else its driver would end it at once, as if all were well.

    Raises:
        ConflictError: a limit is used up.
    """
    if (limit := reached(record, spent)) is not None:
        raise ConflictError(
            f"sweep {record.name} has used up {limit.why}",
            fix=f"orchestrator sweep extend {record.name} --{limit.key} {limit.enough}",
        )


def require_price(limits: LimitsSpec, price: float | None, fix: str) -> None:
    """Sees that a limit of the cost counts something.

    Args:
        limits: of the sweep.
        price: USD for one of the trial's machines and hour; None: it has none.
        fix: the command or the option that mends it.

    Raises:
        SpecError: there is such a limit, and no price.
    """
    if limits.cost is not None and price is None:
        raise SpecError(
            "limits.cost would never be reached: the trial has no price",
            facts={"key": "limits.cost", "need": "USD for one machine and hour"},
            fix=fix,
        )


def differing(wanted: LimitsSpec, there: LimitsSpec) -> dict[str, str]:
    """Limits that a sweep which is there has otherwise: key -> `24 (it has 1)`."""
    asked, had = wanted.model_dump(), there.model_dump()
    return {key: f"{_told(asked[key])} (it has {_told(had[key])})" for key in asked if asked[key] != had[key]}


def _told(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
