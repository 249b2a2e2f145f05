"""Series as a figure: a title, a legend and an SVG. Colours are classes, so that the page's style decides on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from orchestrator.markup import Markup, element
from orchestrator.reports.notation import counted, nice_ticks, number, percent, tick_label
from orchestrator.reports.series import Series, decimate

WIDTH, HEIGHT = 560.0, 270.0  # of the drawing, in its own units; the page scales it
LEFT, RIGHT, TOP, BOTTOM = 62.0, 26.0, 12.0, 48.0  # room for labels of 17 units, the size they have on a phone
MARGIN = 0.05  # of the range of values, free above and below
FLAT = 1e-6  # of the size of values: a smaller range is rounding, and no axis could be labelled with it
MOST_DOTS = 60  # a line of more points shows them well enough without a dot on each
MOST_HOVERS = 120  # strips that tell their values; narrower ones could not be pointed at


@dataclass(frozen=True)
class Line:
    """One series of a chart. `kind` is the class that its colour hangs on."""

    label: str
    kind: Literal["training", "validation"]
    series: Series


@dataclass(frozen=True)
class Reference:
    """A value to compare with, drawn as a dashed line from side to side."""

    label: str
    value: float


@dataclass(frozen=True)
class Chart:
    """What a figure shows.

    Attributes:
        title: with the unit in it.
        lines: those without a value that can be drawn are left out.
        reference: a level to compare with.
        from_zero: the axis starts at zero, because the size itself is what counts.
        shares: values are shares of one, written as percent.
    """

    title: str
    lines: tuple[Line, ...]
    reference: Reference | None = None
    from_zero: bool = False
    shares: bool = False

    @property
    def drawn(self) -> list[Line]:
        """The lines that have at least one point."""
        return [line for line in self.lines if line.series.points]

    @property
    def left_out(self) -> int:
        """Values that are not finite."""
        return sum(line.series.left_out for line in self.lines)

    def text(self, value: float) -> str:
        """A value in the chart's own writing."""
        return percent(value) if self.shares else number(value)


@dataclass(frozen=True)
class Scale:
    """Data to drawing: the same for everything in a chart."""

    last_step: int
    low: float
    high: float

    def x(self, step: float) -> float:
        """Units from the left; step 0 is at the axis."""
        return LEFT + step / max(self.last_step, 1) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Units from the top; `low` is at the step axis, `high` at the upper edge."""
        return HEIGHT - BOTTOM - (value - self.low) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)


def figure(chart: Chart, *, last_step: int) -> Markup:
    """A chart as a `<figure>`; a sentence in place of the drawing where no value can be drawn.

    Args:
        chart: what to show.
        last_step: right end of the step axis; charts of one page share it.
    """
    left_out = f"{counted(chart.left_out, 'value')} not finite"
    title = element("h2", chart.title)
    if not chart.drawn:
        return element("figure", title, element("p", f"Nothing to draw: {left_out}.", class_="note"))
    caption = element("figcaption", title, _legend(chart))
    parts = [caption, _svg(chart, _scale(chart, last_step))]
    if chart.left_out:
        parts.append(element("p", f"Left out: {left_out}.", class_="note"))
    return element("figure", *parts)


def _scale(chart: Chart, last_step: int) -> Scale:
    values = [value for line in chart.drawn for _, value in line.series.points]
    values += [chart.reference.value] if chart.reference else []
    low, high = min(values), max(values)
    low = min(low, 0.0) if chart.from_zero else low
    size = max(abs(low), abs(high))
    room = MARGIN * (high - low) if high - low > FLAT * size else size or 1.0  # a constant is drawn in the middle
    return Scale(last_step, low if chart.from_zero else low - room, high + room)


def _legend(chart: Chart) -> Markup:
    """Each line with its last value: what a reader looks for first."""
    items: list[tuple[str, str, float]] = [(line.kind, line.label, line.series.points[-1][1]) for line in chart.drawn]
    if chart.reference:
        items.append(("reference", chart.reference.label, chart.reference.value))
    return element(
        "ul",
        *(
            element("li", element("i", class_=kind), f"{label} ", element("b", chart.text(value)))
            for kind, label, value in items
        ),
        class_="legend",
    )


def _svg(chart: Chart, scale: Scale) -> Markup:
    layers = [*_value_axis(chart, scale), *_step_axis(scale)]
    if chart.reference:
        layers.append(_rule("reference", LEFT, scale.y(chart.reference.value), WIDTH - RIGHT))
    for line in chart.drawn:
        layers += _drawn(line, scale)
    return element(
        "svg",
        *layers,
        *_hovers(chart, scale),
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=_summary(chart),
    )


def _value_axis(chart: Chart, scale: Scale) -> Iterator[Markup]:
    ticks = nice_ticks(scale.low, scale.high, most=8)
    step = ticks[1] - ticks[0]
    for tick in ticks:
        label = f"{tick_label(100 * tick, 100 * step)}%" if chart.shares else tick_label(tick, step)
        yield _rule("grid", LEFT, scale.y(tick), WIDTH - RIGHT)
        yield element("text", label, class_="value", x=LEFT - 8, y=scale.y(tick) + 4)


def _step_axis(scale: Scale) -> Iterator[Markup]:
    bottom = HEIGHT - BOTTOM
    yield _rule("axis", LEFT, bottom, WIDTH - RIGHT)
    ticks = nice_ticks(0, max(scale.last_step, 1), most=6, whole=True)
    for tick in ticks:
        x = scale.x(tick)
        yield element("line", class_="axis", x1=x, y1=bottom, x2=x, y2=bottom + 5)
        yield element("text", tick_label(tick, ticks[1]), class_="step", x=x, y=bottom + 22)
    yield element("text", "step", class_="step", x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 5)


def _drawn(line: Line, scale: Scale) -> Iterator[Markup]:
    points = [(scale.x(step), scale.y(value)) for step, value in decimate(line.series.points)]
    yield element("polyline", class_=line.kind, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points))
    if len(points) == 1 or (line.kind == "validation" and len(points) <= MOST_DOTS):
        yield from (element("circle", class_=line.kind, cx=x, cy=y, r=2.5) for x, y in points)


def _hovers(chart: Chart, scale: Scale) -> Iterator[Markup]:
    """Strips side by side over the whole plot; the one under the pointer shows its step and the values there."""
    by_line = [(line, dict(line.series.points)) for line in chart.drawn]
    steps = _hover_steps([values for _, values in by_line], scale.last_step)
    middles = [scale.x((before + after) / 2) for before, after in pairwise(steps)]
    for step, left, right in zip(steps, [LEFT, *middles], [*middles, WIDTH - RIGHT], strict=True):
        found = [(line, values[step]) for line, values in by_line if step in values]
        title = "\n".join([f"step {step:,}", *(f"{line.label} {chart.text(value)}" for line, value in found)])
        x = scale.x(step)
        yield element(
            "g",
            element("title", title),
            element("rect", x=left, y=TOP, width=right - left, height=HEIGHT - TOP - BOTTOM),
            element("line", x1=x, y1=TOP, x2=x, y2=HEIGHT - BOTTOM),
            *(element("circle", class_=line.kind, cx=x, cy=scale.y(value), r=4) for line, value in found),
            class_="hover",
        )


def _hover_steps(lines: Sequence[dict[int, float]], last_step: int) -> list[int]:
    """At most one step for each of the strips: the one at which most lines have a value, the latest of those."""
    lines_at = Counter(step for values in lines for step in values)
    best: dict[int, int] = {}
    for step in sorted(lines_at):
        strip = step * (MOST_HOVERS - 1) // max(last_step, 1)
        if strip not in best or lines_at[step] >= lines_at[best[strip]]:
            best[strip] = step
    return list(best.values())


def _rule(kind: str, left: float, y: float, right: float) -> Markup:
    return element("line", class_=kind, x1=left, y1=y, x2=right, y2=y)


def _summary(chart: Chart) -> str:
    """The drawing in words."""

    def words(line: Line) -> str:
        (first_step, first), (last_step, last) = line.series.points[0], line.series.points[-1]
        return (
            f"{line.label} from {chart.text(first)} at step {first_step:,} to {chart.text(last)} at step {last_step:,}"
        )

    parts = [words(line) for line in chart.drawn]
    if chart.reference:
        parts.append(f"{chart.reference.label} {chart.text(chart.reference.value)}")
    return f"{chart.title} over steps: {'; '.join(parts)}"
