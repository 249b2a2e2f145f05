"""Axes of a figure: linear, logarithmic or categorical; and numbers as text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

MARGIN = 0.05  # share of the range of values that stays free at each end
FLAT = 1e-6  # of the size of values: a smaller range is rounding error, and no axis could label it
WIDE = 20.0  # ratio of the largest to the smallest positive value from which an axis is logarithmic
MAX_CHOICES = 6
MAX_LABEL_CHARACTERS = 66  # characters of all names below an axis
MIN_LABEL_CHARACTERS = 4  # characters that a name keeps


@dataclass(frozen=True)
class Axis:
    """A mapping from values to positions along an axis, as shares of its length.

    Attributes:
        label: name of the values; an axis without a label has no ticks.
        low: value at the left or lower end.
        high: value at the right or upper end.
        log: logarithmic.
        whole: ticks only at whole numbers.
        shares: values are shares of 1, labelled in percent.
        most: maximum number of ticks.
        names: names of the values 0, 1, 2, ... of a categorical axis.
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
        """Return the position of a value: 0 at the low end, 1 at the high end."""
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the ticks as values and labels."""
        if not self.label:
            return []
        if self.names:
            longest = max(MAX_LABEL_CHARACTERS // len(self.names), MIN_LABEL_CHARACTERS)
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
    """Return an axis of the whole numbers from 1 to `last`."""
    return Axis(label, 0.5, max(last, 1) + 0.5, whole=True)


def setting_axis(label: str, values: Iterable[object], *, log: bool = False) -> tuple[Axis, list[float]]:
    """Return an axis for all values of a setting, and the place of each value on it.

    Args:
        label: label of the axis.
        values: numbers, or anything else. Positive numbers that are far apart get a logarithmic axis. Other values,
            and a few numbers that occur repeatedly, such as batch sizes, get a categorical one.
        log: the logarithm of the setting was searched: positive numbers get a logarithmic axis, however close.
    """
    given = list(values)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in given)
    keys: list[Any] = given if numbers else [str(value) for value in given]  # 1 and 1.0 are one number
    different = list(dict.fromkeys(keys))
    if not numbers or len(different) <= min(MAX_CHOICES, len(given) // 2):
        different = sorted(different) if numbers else different
        names = tuple(str(value) for value in different)
        return Axis(label, -0.5, len(names) - 0.5, names=names), [float(different.index(key)) for key in keys]
    places = [float(value) for value in given if isinstance(value, int | float)]
    low, high = min(places), max(places)
    if low > 0 and (high / low >= WIDE or (log and high > low)):
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


MANTISSAS = (1, 2, 5, 10)
UNITS = ((2e8, 1e9, "G"), (2e5, 1e6, "M"), (5e3, 1e3, "k"))  # smallest step between ticks, size, symbol
SMALLEST_PLAIN = 1e-3  # below this and above the next, an exponent is easier to read
LARGEST_PLAIN = 1e12
ROUNDING = 1e-9  # tolerance, as a share of a step, for rounding errors of floating point


def nice_ticks(low: float, high: float, *, most: int, whole: bool = False) -> list[float]:
    """Return at least two ticks between two values, at multiples of 1, 2 or 5 times a power of ten.

    Source: P. S. Heckbert, "Nice numbers for graph labels", Graphics Gems, 1990.

    Args:
        low, high: finite values, low < high; with `whole`, at least 1 apart.
        most: maximum number of ticks.
        whole: only whole numbers.
    """
    raw = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(mantissa * power for mantissa in MANTISSAS if mantissa * power >= raw * (1 - ROUNDING))
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - ROUNDING), math.floor(high / step + ROUNDING)
    return [index * step for index in range(first, last + 1)]


def tick_label(value: float, step: float) -> str:
    """Return the label of a tick, with the unit and the digits that ticks `step` apart need: `15k`, `0.25`, `2e-4`."""
    if abs(value) < step / 2:
        return "0"
    if not SMALLEST_PLAIN <= step < LARGEST_PLAIN:
        return _scientific(value, digits=max(0, _exponent(abs(value)) - _exponent(step)))
    size, unit = next(((size, unit) for least, size, unit in UNITS if step >= least), (1.0, ""))
    return f"{value / size:,.{max(0, -_exponent(step / size))}f}{unit}"


def number(value: float) -> str:
    """Return a number with four digits: `5.213`, `1,204`, `2.5e-4`."""
    if value == 0:
        return "0"
    if abs(value) < SMALLEST_PLAIN or abs(value) >= LARGEST_PLAIN:
        return _scientific(value, digits=2)
    decimals = 3 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(max(decimals, 0), 4)}f}"


def percent(share: float) -> str:
    """Return a share of 1 as text: `32.1%`."""
    return f"{100 * share:.1f}%"


def moment(seconds: float) -> str:
    """Return a time in seconds since the epoch as text: `2025-11-21 11:39 UTC`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _exponent(value: float) -> int:
    return math.floor(math.log10(value) + ROUNDING)


def _scientific(value: float, *, digits: int) -> str:
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"
