"""Distribution functions of parameters, and the Kolmogorov-Smirnov distance of samples from them."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

Law = Callable[[float], float]
DRAWS = 10_000


def limit(count: int) -> float:
    """Return the distance that a sample of the law itself exceeds only once in ten thousand cases."""
    return 2.23 / math.sqrt(count)


def distance_to(law: Law, numbers: Sequence[float]) -> float:
    """Return the greatest distance between the law and the empirical distribution; also for laws with jumps."""
    ordered, count = sorted(numbers), len(numbers)
    little = (ordered[-1] - ordered[0]) * 1e-9
    found = 0.0
    for value in set(ordered):
        up_to, below = bisect_right(ordered, value), bisect_left(ordered, value)
        found = max(found, abs(law(value) - up_to / count), abs(law(value - little) - below / count))
    return found


def uniform(low: float, high: float) -> Law:
    return lambda x: min(max((x - low) / (high - low), 0.0), 1.0)


def log_of(law: Law) -> Law:
    """Return the distribution of exp(X) for X of this law."""
    return lambda x: law(math.log(x)) if x > 0 else 0.0


def quantised(law: Law, q: float) -> Law:
    """Return the distribution of round(X / q) * q."""
    return lambda x: law((math.floor(x / q + 1e-11) + 0.5) * q)


def integers(count: int) -> Law:
    """Return the distribution of the numbers 0 to count - 1."""
    return lambda x: min(max((math.floor(x) + 1) / count, 0.0), 1.0)


CASES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "uniform": ({"low": -2, "high": 5}, ["uniform", [-2.0, 5.0]]),
    "loguniform": (
        {"low": 1e-6, "high": 1e-4, "log": True},
        ["loguniform", [math.log(1e-6), math.log(1e-4)]],
    ),
    "quniform": ({"low": 0.05, "high": 1.0, "q": 0.1}, ["quniform", [0.05, 1.0, 0.1]]),
    "qloguniform": (
        {"low": 8, "high": 1024, "log": True, "q": 8},
        ["qloguniform", [math.log(8), math.log(1024), 8]],
    ),
    "normal": ({"mean": 3, "sd": 0.5}, ["normal", [3.0, 0.5]]),
    "lognormal": ({"mean": -9, "sd": 1.5, "log": True}, ["lognormal", [-9.0, 1.5]]),
    "qnormal": ({"mean": 100, "sd": 30, "q": 10}, ["qnormal", [100.0, 30.0, 10]]),
    "qlognormal": ({"mean": 4, "sd": 1, "log": True, "q": 2}, ["qlognormal", [4.0, 1.0, 2]]),
    "randint": ({"randint": 7}, ["randint", [7]]),
    "choice": ({"choice": [0, 1, 2, 3]}, ["choice", [[0, 1, 2, 3]]]),
}
"""Parameter, and what it is on Azure's wire."""


def law_of(name: str) -> Law:
    return law_of_wire(CASES[name][1])


def law_of_wire(wire: list[Any]) -> Law:
    """Return the law that Azure documents for a wire form; for a choice, that of the option's number."""
    kind, numbers = wire
    if kind == "choice":
        return integers(len(numbers[0]))
    if kind == "randint":
        return integers(numbers[0])
    law = NormalDist(*numbers[:2]).cdf if kind.endswith("normal") else uniform(*numbers[:2])
    law = log_of(law) if "log" in kind else law
    return quantised(law, numbers[2]) if kind.startswith("q") else law
