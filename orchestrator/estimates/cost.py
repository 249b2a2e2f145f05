"""What runs took and cost: arithmetic over their attempts. A machine counts from an attempt's start to its end.

A price is one of USD for one machine and hour; without one the hours stand and the cost is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from orchestrator.runs.status import Attempt, attempt_seconds
from train_jobs.config.base import Config

HOUR = 3600.0


class RunCost(Config):
    """What a run took and cost until now."""

    name: str
    """The run's name."""
    nodes: int
    """Machines that it runs on."""
    attempts: int
    """How often it was started."""
    node_hours: float
    """Hours of all its attempts, times its machines."""
    process_hours: float
    """The same, times its processes."""
    price_per_hour: float | None
    """USD for one machine and hour; None: nobody said."""
    price_origin: str | None
    """Where the price was written."""
    cost: float | None
    """USD."""
    repeated_steps: int
    """Optimizer steps that were done again, because an attempt ended past its last checkpoint."""
    repeated_node_hours: float
    """Machine time of those steps, and of attempts that ended before their first step."""
    repeated_cost: float | None
    """USD of that time."""


def price_of(hours: float, price_per_hour: float | None) -> float | None:
    """USD for so many machine hours; None without a price."""
    return None if price_per_hour is None else hours * price_per_hour


def repeated(attempts: Sequence[Attempt], reports: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """Steps that were done again, and the seconds that had gone into them.

    Args:
        attempts: the oldest first. Of the last one nothing is lost yet.
        reports: the job's reports {step, time} as they stand now. A resumed job cuts those past its checkpoint, so the
            last one that is older than the next attempt tells, to the distance between reports, where that went on.
    """
    steps, seconds = 0, 0.0
    for attempt, following in pairwise(attempts):
        kept = next((report for report in reversed(reports) if report["time"] < following.started), None)
        reached = attempt.step or 0
        if kept is not None and 0 < reached <= kept["step"]:
            continue  # its last checkpoint had all that it did
        steps += max(0, reached - (kept["step"] if kept else 0))
        begun = max(attempt.started, kept["time"] if kept else 0.0)
        seconds += max(0.0, (attempt.ended or following.started) - begun)
    return steps, seconds


def run_cost(
    name: str,
    attempts: Sequence[Attempt],
    reports: Sequence[Mapping[str, Any]],
    *,
    nodes: int,
    processes: int,
    price_per_hour: float | None,
    price_origin: str | None,
    now: float,
) -> RunCost:
    """The figures of one run.

    Args:
        name: the run's name.
        attempts: its starts, the oldest first.
        reports: its reports {step, time}, in order.
        nodes: its machines.
        processes: processes on all of them together.
        price_per_hour: USD for one machine and hour.
        price_origin: where that was written.
        now: seconds since the epoch.
    """
    hours = attempt_seconds(attempts, now) / HOUR
    steps, seconds = repeated(attempts, reports)
    again = nodes * seconds / HOUR
    return RunCost(
        name=name,
        nodes=nodes,
        attempts=len(attempts),
        node_hours=nodes * hours,
        process_hours=processes * hours,
        price_per_hour=price_per_hour,
        price_origin=price_origin,
        cost=price_of(nodes * hours, price_per_hour),
        repeated_steps=steps,
        repeated_node_hours=again,
        repeated_cost=price_of(again, price_per_hour),
    )
