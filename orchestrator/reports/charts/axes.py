"""Axes of a figure: numbers, their logarithms, or names side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.reports.charts.notation import nice_ticks, number, tick_label

MARGIN = 0.05  # of the range of values, free above and below
FLAT = 1e-6  # of the size of values: a smaller range is rounding error, and no axis could label it
WIDE = 20.0  # ratio of the largest to the smallest positive value from which logarithms are drawn
MOST_CHOICES = 6
LONGEST_NAMES = 66  # characters of all names below an axis
SHORTEST_NAME = 4  # characters that a name keeps


@dataclass(frozen=True)
class Axis:
    """A mapping of values to shares of a length.

    Attributes:
        label: what the values are; an axis without one has no ticks.
        low: value at the left or lower end.
        high: value at the right or upper end.
        log: logarithmic.
        whole: no tick between whole numbers.
        shares: values are shares of one, labelled in percent.
        most: number of ticks at most.
        names: names of the values 0, 1, 2, ...
    """

    label: str
    low: float
    high: float
    log: bool = False
    whole: bool = False
    shares: bool = False
    most: int = 6
    names: tuple[str, ...] = ()

    def share(self, value: float) -> float:
        """Return 0 for the low end, 1 for the high end."""
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return values and their labels."""
        if not self.label:
            return []
        if self.names:
            longest = max(LONGEST_NAMES // len(self.names), SHORTEST_NAME)
            return [(place, _shortened(name, longest)) for place, name in enumerate(self.names)]
        if self.log:
            return [(value, number(value)) for value in _powers(self.low, self.high)]
        found = nice_ticks(0 if self.whole else self.low, self.high, most=self.most, whole=self.whole)
        found = [tick for tick in found if tick >= self.low]
        scale, unit = (100, "%") if self.shares else (1, "")
        step = scale * (found[-1] - found[-2]) if len(found) > 1 else 1
        return [(tick, f"{tick_label(scale * tick, step)}{unit}") for tick in found]


def value_axis(
    label: str, values: Iterable[float], *, from_zero: bool = False, shares: bool = False, most: int = 8
) -> Axis:
    """Return a linear axis with room above and below the values; a constant is drawn in the middle."""
    given = list(values)
    low, high = min(given), max(given)
    low = min(low, 0.0) if from_zero else low
    size = max(abs(low), abs(high))
    room = MARGIN * (high - low) if high - low > FLAT * size else size or 1.0
    return Axis(label, low if from_zero else low - room, high + room, shares=shares, most=most)


def count_axis(label: str, last: int) -> Axis:
    """Return an axis of the whole numbers from 1 to `last`, each with a place of its own."""
    return Axis(label, 0.5, max(last, 1) + 0.5, whole=True)


def setting_axis(label: str, values: Iterable[object]) -> tuple[Axis, list[float]]:
    """Return an axis on which all values of a setting lie, and the place of each.

    Args:
        label: what they are.
        values: numbers, which are drawn as logarithms where they are positive and far apart; or anything else, each
            distinct text a place of its own. Few numbers that occur repeatedly are treated as names.
    """
    given = list(values)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in given)
    if not numbers or len({str(value) for value in given}) <= min(MOST_CHOICES, len(given) // 2):
        ordered = sorted(set(given)) if numbers else given  # type: ignore[type-var]
        names = tuple(dict.fromkeys(str(value) for value in ordered))
        return Axis(label, -0.5, len(names) - 0.5, names=names), [float(names.index(str(value))) for value in given]
    places = [float(value) for value in given if isinstance(value, int | float)]
    low, high = min(places), max(places)
    if low > 0 and high / low >= WIDE:
        room = (high / low) ** MARGIN
        return Axis(label, low / room, high * room, log=True), places
    return value_axis(label, places, most=6), places


def _powers(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten from low to high: powers of ten alone where there are three or more."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [10.0**exponent for exponent in exponents if low <= 10.0**exponent <= high]
    if len(tens) > 2:
        return tens
    found = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
    return [value for value in found if low <= value <= high] or [math.sqrt(low * high)]


def _shortened(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}\u2026"
