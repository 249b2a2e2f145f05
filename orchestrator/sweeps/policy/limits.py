"""Limits of a whole sweep: check whether one is reached, and name the command that raises it."""

from __future__ import annotations

import math
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
    """The reason as text, such as `limits.hours: 2 h are over`."""
    next_value: int
    """A new limit that allows the same time, or the same cost, again."""


def reached_limit(record: SweepRecord, spent: float, now: float) -> ReachedLimit | None:
    """Return the limit of a sweep that is used up; None: no limit is.

    Args:
        record: the sweep; its hours count from the submission.
        spent: cost of all of its trials, in USD.
        now: seconds since the epoch, by the clock of the sweep.
    """
    limits, took = record.spec.limits, (now - record.created) / HOUR
    if limits.hours is not None and took > limits.hours:
        return ReachedLimit("hours", f"limits.hours: {limits.hours:g} h are over", math.ceil(took + limits.hours))
    if limits.cost is not None and spent > limits.cost:
        why = f"limits.cost: {spent:.2f} USD spent, more than {limits.cost:g}"
        return ReachedLimit("cost", why, math.ceil(spent + limits.cost))
    return None


def require_unused_limits(record: SweepRecord, spent: float, now: float) -> None:
    """Check that no limit of a sweep is used up: its driver would end it immediately, as if it had completed.

    Args:
        record: the sweep.
        spent: cost of all of its trials, in USD.
        now: seconds since the epoch, by the clock of the sweep.

    Raises:
        ConflictError: a limit is used up.
    """
    if (limit := reached_limit(record, spent, now)) is not None:
        raise ConflictError(
            f"sweep {record.name} has reached {limit.why}",
            fix=f"orchestrator sweep extend {record.name} --{limit.key} {limit.next_value}",
        )


def require_price(limits: LimitsSpec, price: float | None, fix: str) -> None:
    """Check that the trials have a price if the cost is limited.

    Args:
        limits: limits of the sweep.
        price: price of one machine and hour in USD; None: unknown.
        fix: the command or the option that sets the price.

    Raises:
        SpecError: the cost is limited, and the price is unknown.
    """
    if limits.cost is not None and price is None:
        raise SpecError(
            "cannot limit the cost: the trial has no price",
            facts={"key": "limits.cost", "need": "USD for one machine and hour"},
            fix=fix,
        )
