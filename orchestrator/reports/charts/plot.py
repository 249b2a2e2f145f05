"""A drawing with two axes of any kind: numbers, their logarithms, or names side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.reports.charts.charts import BOTTOM, FLAT, HEIGHT, LEFT, MARGIN, RIGHT, TOP, WIDTH
from orchestrator.reports.charts.notation import nice_ticks, number, tick_label
from orchestrator.support.html import Markup, element

WIDE = 20.0  # times between the least and the greatest of values above 0, from which on their logarithms are drawn
MOST_CHOICES = 6
LONGEST_NAMES = 66  # characters below an axis, all of its names together


@dataclass(frozen=True)
class Axis:
    """Values to shares of a length."""

    label: str
    low: float
    high: float
    log: bool = False
    whole: bool = False
    """No tick between whole numbers."""
    names: tuple[str, ...] = ()
    """Of values that are no numbers, each at the place of its index."""

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Places and their labels."""
        if not self.label:
            return []
        if self.names:
            longest = LONGEST_NAMES // len(self.names)
            return [(place, _shortened(name, longest)) for place, name in enumerate(self.names)]
        if self.log:
            return [(value, number(value)) for value in _powers(self.low, self.high)]
        found = nice_ticks(self.low, self.high, most=6, whole=self.whole)
        if len(found) < 2:
            return [(tick, f"{tick:g}") for tick in found]
        return [(tick, tick_label(tick, found[1] - found[0])) for tick in found]


def axis(
    label: str, values: Iterable[object], *, log: bool | None = None, whole: bool = False
) -> tuple[Axis, list[float]]:
    """An axis on which all values lie, and where each does.

    Args:
        label: what they are; empty: without ticks.
        values: numbers, or anything else, which is then told apart by its text; few numbers that come again and again
            are a choice, and stand side by side too.
        log: draw logarithms. None: where values are above 0 and far apart.
        whole: they are counted, so that no tick stands between two of them.
    """
    given = list(values)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in given)
    if log is None and (not numbers or len({str(value) for value in given}) <= min(MOST_CHOICES, len(given) // 2)):
        ordered = sorted(set(given)) if numbers else given  # type: ignore[type-var]
        names = tuple(dict.fromkeys(str(value) for value in ordered))
        return Axis(label, -0.5, len(names) - 0.5, names=names), [float(names.index(str(value))) for value in given]
    places = [float(value) for value in given if isinstance(value, int | float)]
    low, high = min(places), max(places)
    if log if log is not None else low > 0 and high / low >= WIDE:
        room = (high / low) ** MARGIN if high > low else 2.0
        return Axis(label, low / room, high * room, log=True), places
    size = max(abs(low), abs(high))
    room = MARGIN * (high - low) if high - low > FLAT * size else size or 1.0
    return Axis(label, low - room, high + room, whole=whole), places


@dataclass(frozen=True)
class Plot:
    """Two axes, and what is drawn between them in units of the drawing."""

    x_axis: Axis
    y_axis: Axis

    def x(self, value: float) -> float:
        """Units from the left."""
        return LEFT + self.x_axis.share(value) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Units from the top."""
        return HEIGHT - BOTTOM - self.y_axis.share(value) * (HEIGHT - TOP - BOTTOM)

    def figure(
        self, title: str, layers: Iterable[Markup], *, words: str, legend: Sequence[tuple[str, str]] = ()
    ) -> Markup:
        """The drawing with its title.

        Args:
            layers: drawn over the axes, the last on top.
            words: the same for who cannot see it.
            legend: class and label of what is drawn.
        """
        items = [element("li", element("i", class_=kind), label) for kind, label in legend]
        caption = [element("h2", title), *([element("ul", *items, class_="legend")] if items else [])]
        drawing = element(
            "svg",
            *self._axes(),
            *layers,
            viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
            role="img",
            aria_label=words,
        )
        return element("figure", element("figcaption", *caption), drawing)

    def _axes(self) -> Iterator[Markup]:
        for tick, label in self.y_axis.ticks():
            yield element("line", class_="grid", x1=LEFT, y1=self.y(tick), x2=WIDTH - RIGHT, y2=self.y(tick))
            yield element("text", label, class_="value", x=LEFT - 8, y=self.y(tick) + 4)
        bottom = HEIGHT - BOTTOM
        yield element("line", class_="axis", x1=LEFT, y1=bottom, x2=WIDTH - RIGHT, y2=bottom)
        for tick, label in self.x_axis.ticks():
            yield element("line", class_="axis", x1=self.x(tick), y1=bottom, x2=self.x(tick), y2=bottom + 5)
            yield element("text", label, class_="step", x=self.x(tick), y=bottom + 22)
        yield element("text", self.x_axis.label, class_="step", x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 5)


def line(points: Iterable[tuple[float, float]], kind: str, title: str = "") -> Markup:
    """A line through points of the drawing, with words for who points at it."""
    told = [element("title", title)] if title else []
    return element("polyline", *told, class_=kind, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points))


def dot(x: float, y: float, kind: str, title: str, *, radius: float = 4.0) -> Markup:
    """A point of the drawing."""
    return element("circle", element("title", title), class_=kind, cx=x, cy=y, r=radius)


def _powers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from low to high: the tens alone where there are enough of them."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [10.0**exponent for exponent in exponents if low <= 10.0**exponent <= high]
    if len(tens) > 2:
        return tens
    found = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
    return [value for value in found if low <= value <= high] or [math.sqrt(low * high)]


def _shortened(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}\u2026"
