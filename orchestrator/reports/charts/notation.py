"""Numbers as a person reads them: ticks of an axis, losses, shares, times."""

from __future__ import annotations

import math
from datetime import UTC, datetime

MANTISSAS = (1, 2, 5, 10)
UNITS = ((2e8, 1e9, "G"), (2e5, 1e6, "M"), (5e3, 1e3, "k"))  # from which step between ticks on; size; sign
SMALLEST_PLAIN = 1e-3  # beyond these, an exponent is easier to read
LARGEST_PLAIN = 1e12
ROUNDING = 1e-9  # of a step: what floating point may be off by
MINUTE, HOUR, DAY = 60, 3600, 86_400


def nice_ticks(low: float, high: float, *, most: int, whole: bool = False) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `low` to `high`: at least two of them.

    P. S. Heckbert, "Nice numbers for graph labels", Graphics Gems, 1990.

    Args:
        low, high: finite, low < high; a unit apart at least where `whole`.
        most: ticks at most.
        whole: no fractions of one.
    """
    raw = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(mantissa * power for mantissa in MANTISSAS if mantissa * power >= raw * (1 - ROUNDING))
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - ROUNDING), math.floor(high / step + ROUNDING)
    return [index * step for index in range(first, last + 1)]


def tick_label(value: float, step: float) -> str:
    """The label of a tick, in one unit and with as many digits as ticks `step` apart need: `15k`, `0.25`, `2e-4`."""
    if abs(value) < step / 2:
        return "0"
    if not SMALLEST_PLAIN <= step < LARGEST_PLAIN:
        return _scientific(value, digits=max(0, _exponent(abs(value)) - _exponent(step)))
    size, unit = next(((size, unit) for least, size, unit in UNITS if step >= least), (1.0, ""))
    return f"{value / size:,.{max(0, -_exponent(step / size))}f}{unit}"


def number(value: float) -> str:
    """Four digits: `5.213`, `1,204`, `2.5e-4`."""
    if value == 0:
        return "0"
    if abs(value) < SMALLEST_PLAIN or abs(value) >= LARGEST_PLAIN:
        return _scientific(value, digits=2)
    decimals = 3 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(max(decimals, 0), 4)}f}"


def percent(share: float) -> str:
    """A share of one: `32.1%`."""
    return f"{100 * share:.1f}%"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 file`, `1,204 files`; the plural has an s more where none is given."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def duration(seconds: float) -> str:
    """The two largest units: `2 d 3 h`, `1 h 02 min`, `4 min 05 s`, `12 s`."""
    whole = max(0, round(seconds))
    if whole >= DAY:
        return f"{whole // DAY} d {whole % DAY // HOUR} h"
    if whole >= HOUR:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE:02d} min"
    if whole >= MINUTE:
        return f"{whole // MINUTE} min {whole % MINUTE:02d} s"
    return f"{whole} s"


def moment(seconds: float) -> str:
    """Seconds since the epoch as `2025-11-21 11:39 UTC`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _exponent(value: float) -> int:
    return math.floor(math.log10(value) + ROUNDING)


def _scientific(value: float, *, digits: int) -> str:
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"
