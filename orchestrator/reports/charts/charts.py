"""Series as a figure: a title, a legend and an SVG. Colours are classes, so that the page's style decides on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from orchestrator.reports.charts.notation import counted, nice_ticks, number, percent, tick_label
from orchestrator.reports.charts.series import Series, decimate
from orchestrator.support.html import Markup, element

WIDTH, HEIGHT = 560.0, 270.0  # of the drawing, in its own units; the page scales it
LEFT, RIGHT, TOP, BOTTOM = 62.0, 26.0, 12.0, 48.0  # room for labels of 17 units, the size they have on a phone
STEP = "step"  # anything else is counted from 1 on, and each has a place of its own
MARGIN = 0.05  # of the range of values, free above and below
FLAT = 1e-6  # of the size of values: a smaller range is rounding, and no axis could be labelled with it
MOST_DOTS = 60  # a line of more points shows them well enough without a dot on each
KINDS = tuple(f"run-{number}" for number in range(1, 9))  # colours of several runs
MOST_HOVERS = 120  # strips that tell their values; narrower ones could not be pointed at


@dataclass(frozen=True)
class Line:
    """One series of a chart.

    Attributes:
        label: what it is.
        kind: the class that its colour hangs on: training, validation, or one of `KINDS` of several runs.
        series: its values.
        joined: False where what lies between two points means nothing: they are dots.
        named: False of what another line of its kind stands for in the legend.
    """

    label: str
    kind: str
    series: Series
    joined: bool = True
    named: bool = True


@dataclass(frozen=True)
class Reference:
    """A value to compare with, drawn as a dashed line from side to side."""

    label: str
    value: float


@dataclass(frozen=True)
class Corridor:
    """Where values are expected to lie, as an area behind the lines.

    Attributes:
        label: what it is that of.
        points: (step, low, high), by step, at least two; between them both are straight.
        source: who says so; told below the drawing.
    """

    label: str
    points: tuple[tuple[int, float, float], ...]
    source: str = ""

    def until(self, last: int) -> list[tuple[float, float, float]]:
        """The points as far as `last`, with one at that very step where the corridor goes on."""
        kept: list[tuple[float, float, float]] = [point for point in self.points if point[0] <= last]
        following = next((point for point in self.points if point[0] > last), None)
        if kept and following:
            before, share = kept[-1], (last - kept[-1][0]) / (following[0] - kept[-1][0])
            low, high = (before[side] + share * (following[side] - before[side]) for side in (1, 2))
            kept.append((last, low, high))
        return kept


@dataclass(frozen=True)
class Chart:
    """What a figure shows.

    Attributes:
        title: with the unit in it.
        lines: those without a value that can be drawn are left out.
        references: levels to compare with.
        corridor: where the values are expected.
        from_zero: the axis starts at zero, because the size itself is what counts.
        shares: values are shares of one, written as percent.
        across: what the values are numbered by.
        until: right end of its axis. None: that of the page's other charts.
    """

    title: str
    lines: tuple[Line, ...]
    references: tuple[Reference, ...] = ()
    corridor: Corridor | None = None
    from_zero: bool = False
    shares: bool = False
    across: str = STEP
    until: int | None = None

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

    first: float
    last: float
    low: float
    high: float

    def x(self, step: float) -> float:
        """Units from the left; `first` is at the axis."""
        return LEFT + (step - self.first) / (self.last - self.first) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Units from the top; `low` is at the step axis, `high` at the upper edge."""
        return HEIGHT - BOTTOM - (value - self.low) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)


def figure(chart: Chart, *, last_step: int) -> Markup:
    """A chart as a `<figure>`; a sentence in place of the drawing where no value can be drawn.

    Args:
        chart: what to show.
        last_step: right end of the step axis; charts of one page share it, unless one has its own.
    """
    left_out = f"{counted(chart.left_out, 'value')} not finite"
    title = element("h2", chart.title)
    if not chart.drawn:
        return element("figure", title, element("p", f"Nothing to draw: {left_out}.", class_="note"))
    caption = element("figcaption", title, _legend(chart))
    parts = [caption, _svg(chart, _scale(chart, chart.until or last_step))]
    if chart.corridor and chart.corridor.source:
        parts.append(element("p", chart.corridor.source, class_="note"))
    if chart.left_out:
        parts.append(element("p", f"Left out: {left_out}.", class_="note"))
    return element("figure", *parts)


def _scale(chart: Chart, last_step: int) -> Scale:
    values = [value for line in chart.drawn for _, value in line.series.points]
    values += [reference.value for reference in chart.references]
    if chart.corridor:
        values += [value for _, *both in chart.corridor.until(last_step) for value in both]
    low, high = min(values), max(values)
    low = min(low, 0.0) if chart.from_zero else low
    size = max(abs(low), abs(high))
    room = MARGIN * (high - low) if high - low > FLAT * size else size or 1.0  # a constant is drawn in the middle
    first, last = (0.0, float(max(last_step, 1))) if chart.across == STEP else (0.5, last_step + 0.5)
    return Scale(first, last, low if chart.from_zero else low - room, high + room)


def _legend(chart: Chart) -> Markup:
    """Each line with its last value: what a reader looks for first."""
    named = [line for line in chart.drawn if line.named]
    items = [
        (line.kind if line.joined else f"{line.kind} dot", line.label, chart.text(line.series.points[-1][1]))
        for line in named
    ]
    items += [("reference", reference.label, chart.text(reference.value)) for reference in chart.references]
    if chart.corridor:
        items.append(("corridor", chart.corridor.label, ""))
    return element(
        "ul",
        *(
            element("li", element("i", class_=kind), f"{label} ", *([element("b", value)] if value else []))
            for kind, label, value in items
        ),
        class_="legend",
    )


def _svg(chart: Chart, scale: Scale) -> Markup:
    layers = [
        *_area(chart.corridor, scale),
        *_value_axis(chart, scale),
        *_step_axis(scale, chart.across),
        *(_rule("reference", LEFT, scale.y(reference.value), WIDTH - RIGHT) for reference in chart.references),
    ]
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


def _area(corridor: Corridor | None, scale: Scale) -> Iterator[Markup]:
    if corridor is not None:
        points = corridor.until(int(scale.last))
        edge = [(step, high) for step, _, high in points] + [(step, low) for step, low, _ in reversed(points)]
        drawn = " ".join(f"{scale.x(step):.1f},{scale.y(value):.1f}" for step, value in edge)
        yield element("polygon", class_="corridor", points=drawn)


def _step_axis(scale: Scale, across: str) -> Iterator[Markup]:
    bottom = HEIGHT - BOTTOM
    yield _rule("axis", LEFT, bottom, WIDTH - RIGHT)
    ticks = [tick for tick in nice_ticks(0, scale.last, most=6, whole=True) if tick >= scale.first]
    for tick in ticks:
        x = scale.x(tick)
        yield element("line", class_="axis", x1=x, y1=bottom, x2=x, y2=bottom + 5)
        yield element(
            "text", tick_label(tick, ticks[-1] - ticks[-2] if len(ticks) > 1 else 1), class_="step", x=x, y=bottom + 22
        )
    yield element("text", across, class_="step", x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 5)


def _drawn(line: Line, scale: Scale) -> Iterator[Markup]:
    points = [(scale.x(step), scale.y(value)) for step, value in decimate(line.series.points)]
    if line.joined:
        yield element("polyline", class_=line.kind, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points))
    if not line.joined or len(points) == 1 or (line.kind == "validation" and len(points) <= MOST_DOTS):
        radius = 2.5 if line.joined and len(points) > 1 else 4.5
        yield from (element("circle", class_=line.kind, cx=x, cy=y, r=radius) for x, y in points)


def _hovers(chart: Chart, scale: Scale) -> Iterator[Markup]:
    """Strips side by side over the whole plot; the one under the pointer shows its step and the values there."""
    by_line = [(line, dict(line.series.points)) for line in chart.drawn]
    steps = _hover_steps([values for _, values in by_line], int(scale.last))
    middles = [scale.x((before + after) / 2) for before, after in pairwise(steps)]
    for step, left, right in zip(steps, [LEFT, *middles], [*middles, WIDTH - RIGHT], strict=True):
        found = [(line, values[step]) for line, values in by_line if step in values]
        title = "\n".join([f"{chart.across} {step:,}", *(f"{line.label} {chart.text(value)}" for line, value in found)])
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
        begin, end = (f"{chart.text(value)} at {chart.across} {step:,}" for step, value in line.series.ends)
        return f"{line.label} from {begin} to {end}"

    parts = [words(line) for line in chart.drawn]
    parts += [f"{reference.label} {chart.text(reference.value)}" for reference in chart.references]
    parts += [f"with the {chart.corridor.label}"] if chart.corridor else []
    return f"{chart.title} over {chart.across}s: {'; '.join(parts)}"
