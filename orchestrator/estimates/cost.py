"""Machine hours and cost of runs, summed over their attempts. A machine is counted from an attempt's start to its end.

Prices are in USD per machine and hour. Without a price, hours are reported without a cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from orchestrator.runs.status import RunAttempt, attempt_seconds
from train_jobs.config.fields import Config

HOUR = 3600.0


class RunCost(Config):
    """Machine hours and cost of a run so far."""

    name: str
    """The run's name."""
    nodes: int
    """Number of machines."""
    attempts: int
    """Number of attempts."""
    node_hours: float
    """Hours of all attempts times the number of machines."""
    process_hours: float
    """Hours of all attempts times the number of processes."""
    price_per_hour: float | None
    """USD for one machine and hour of the newest attempt; None: unknown."""
    price_origin: str | None
    """Source of the price."""
    cost: float | None
    """USD."""
    repeated_steps: int
    """Optimizer steps repeated because an attempt ended after its last checkpoint."""
    repeated_node_hours: float
    """Machine time of those steps, and of attempts that ended before their first step."""
    repeated_cost: float | None
    """Cost of that time in USD."""


def price_of(hours: float, price_per_hour: float | None) -> float | None:
    """Return the price of machine hours in USD; None without a price."""
    return None if price_per_hour is None else hours * price_per_hour


def price_of_attempts(attempts: Sequence[RunAttempt], hours: Sequence[float], price: float | None) -> float | None:
    """Return the price of machine hours of attempts in USD: a run may move to machines with another price.

    Args:
        attempts: of a run.
        hours: machine hours of each.
        price: USD for one machine and hour, for attempts without a price of their own.

    Returns:
        None if an attempt has no price.
    """
    prices = [price if attempt.price_per_hour is None else attempt.price_per_hour for attempt in attempts]
    total = 0.0
    for taken, own in zip(hours, prices, strict=True):
        if own is None:
            return None
        total += taken * own
    return None if price is None else total


def repeated(attempts: Sequence[RunAttempt], reports: Sequence[Mapping[str, Any]]) -> tuple[int, list[float]]:
    """Return the number of repeated steps, and for each attempt the seconds that their first computation took.

    Args:
        attempts: oldest first. The last one has not lost any steps yet.
        reports: reports {step, time} of the job, in order. A resumed job removes the reports after its checkpoint, so
            the last report before the next attempt is where that resumed, to within the interval between reports.
    """
    steps, seconds = 0, [0.0] * len(attempts)
    for number, (attempt, following) in enumerate(pairwise(attempts)):
        kept = next((report for report in reversed(reports) if report["time"] < following.started), None)
        reached = attempt.step or 0
        if kept is not None and 0 < reached <= kept["step"]:
            continue  # its last checkpoint contains all of its steps
        # Work since the last kept report is lost. An attempt without any lost all of its time, including its start.
        steps += max(0, reached - (kept["step"] if kept else 0))
        begun = max(attempt.started, kept["time"] if kept else 0.0)
        seconds[number] = max(0.0, (attempt.ended or following.started) - begun)
    return steps, seconds


def run_cost(
    name: str,
    attempts: Sequence[RunAttempt],
    reports: Sequence[Mapping[str, Any]],
    *,
    plan: Mapping[str, Any],
    now: float,
) -> RunCost:
    """Return the cost of a run so far.

    Args:
        name: the run's name.
        attempts: oldest first.
        reports: its reports {step, time}, in order.
        plan: its plan, which has the machines and their price.
        now: seconds since the epoch.
    """
    compute, origin = plan["compute"], plan["changes"].get("compute.price_per_hour", {})
    nodes, price = compute["nodes"], compute.get("price_per_hour")
    hours = [attempt_seconds([attempt], now) / HOUR for attempt in attempts]
    steps, seconds = repeated(attempts, reports)
    again = [nodes * lost / HOUR for lost in seconds]
    return RunCost(
        name=name,
        nodes=nodes,
        attempts=len(attempts),
        node_hours=nodes * sum(hours),
        process_hours=plan["world_size"] * sum(hours),
        price_per_hour=price,
        price_origin=origin.get("from") or compute.get("price_origin"),
        cost=price_of_attempts(attempts, [nodes * taken for taken in hours], price),
        repeated_steps=steps,
        repeated_node_hours=sum(again),
        repeated_cost=price_of_attempts(attempts, again, price),
    )
