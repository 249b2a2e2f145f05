"""Reports of a job as series, and series as figures. Colours are CSS classes, which the page's style defines."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

from orchestrator.reports.charts.axes import Axis, count_axis, number, percent, value_axis
from orchestrator.reports.charts.drawing import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Drawing, LegendEntry, write_png
from orchestrator.support.formatting import counted
from orchestrator.support.html import Markup, element

STEP = "step"  # other units are counted from 1, with a tick for each
MAX_DOTS = 60  # lines with more points are drawn without dots
MAX_HOVERS = 120  # strips that show their values on hover; narrower strips are too small to point at


@dataclass(frozen=True)
class Line:
    """One series of a chart.

    Attributes:
        label: its label in the legend.
        kind: CSS class of its colour: training, validation, or one of `KINDS` for several runs.
        series: its values.
        joined: False: draw only dots, since values between two points have no meaning.
        named: False: another line of its kind represents both in the legend.
    """

    label: str
    kind: str
    series: Series
    joined: bool = True
    named: bool = True


@dataclass(frozen=True)
class Reference:
    """A value to compare with, drawn as a dashed horizontal line."""

    label: str
    value: float


@dataclass(frozen=True)
class Corridor:
    """The range of expected values, an area behind the lines.

    Attributes:
        label: its entry in the legend.
        points: (step, low, high), by step, at least two; straight between them.
        source: where the range comes from; shown below the drawing.
    """

    label: str
    points: tuple[tuple[int, float, float], ...]
    source: str = ""

    def until(self, last: int) -> list[tuple[float, float, float]]:
        """Return the points up to `last`, with an interpolated one at `last` if the corridor continues."""
        kept: list[tuple[float, float, float]] = [point for point in self.points if point[0] <= last]
        following = next((point for point in self.points if point[0] > last), None)
        if kept and following:
            before, share = kept[-1], (last - kept[-1][0]) / (following[0] - kept[-1][0])
            low, high = (before[side] + share * (following[side] - before[side]) for side in (1, 2))
            kept.append((last, low, high))
        return kept


@dataclass(frozen=True)
class Chart:
    """The content of a figure over steps.

    Attributes:
        title: its title, including the unit.
        lines: its lines; those without a finite value are not drawn.
        references: levels to compare with.
        corridor: range of expected values.
        from_zero: the axis starts at zero, for values whose absolute size matters.
        shares: values are shares of 1, shown in percent.
        across: unit of the horizontal axis, singular.
        until: right end of its axis; None: that of the other charts of the page.
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
        """Lines that have at least one point."""
        return [line for line in self.lines if line.series.points]

    @property
    def left_out(self) -> int:
        """Number of values that are not finite."""
        return sum(line.series.left_out for line in self.lines)

    def text(self, value: float) -> str:
        """Return a value in the notation of the chart."""
        return percent(value) if self.shares else number(value)


def figure(chart: Chart, *, last_step: int) -> Markup:
    """Return a chart as a `<figure>`; a sentence in place of the drawing where no value can be drawn.

    Args:
        chart: what to show.
        last_step: right end of the step axis; charts of one page share it, unless one has its own.
    """
    if not chart.drawn:
        note = element("p", f"Nothing to draw: {counted(chart.left_out, 'value')} not finite.", class_="note")
        return element("figure", element("h2", chart.title), note)
    return draw(chart, last_step=last_step).html()


def write_charts(charts: Sequence[Chart], folder: Path, *, last_step: int) -> list[Path]:
    """Write a PNG of each chart that has a value to draw, named by its title; return their paths.

    Args:
        charts: of a report.
        folder: destination; created if it is missing.
        last_step: right end of the step axis, for charts that do not set one.

    Raises:
        StorageError: a file cannot be written.
    """
    return [
        write_png(folder / f"{_slug(chart.title)}.png", [draw(chart, last_step=last_step)])
        for chart in charts
        if chart.drawn
    ]


def draw(chart: Chart, *, last_step: int) -> Drawing:
    """Return the drawing of a chart that has a value to draw; see `figure` for the arguments."""
    last = chart.until or last_step
    notes = [chart.corridor.source] if chart.corridor and chart.corridor.source else []
    notes += [f"Left out: {counted(chart.left_out, 'value')} not finite."] if chart.left_out else []
    plain = Drawing(
        title=chart.title,
        x_axis=Axis(STEP, 0.0, max(last, 1), whole=True) if chart.across == STEP else count_axis(chart.across, last),
        y_axis=_value_axis(chart, last),
        words=_summary(chart),
        legend=tuple(_legend(chart)),
        notes=tuple(notes),
    )
    references = (plain.rule(reference.value, "reference") for reference in chart.references)
    lines = (mark for line in chart.drawn for mark in _marks(line, plain))
    return replace(
        plain,
        behind=tuple(_area(chart.corridor, last, plain)),
        layers=(*references, *lines),
        hovers=tuple(_hovers(chart, last, plain)),
    )


def _value_axis(chart: Chart, last: int) -> Axis:
    values = [value for line in chart.drawn for _, value in line.series.thinned]
    values += [reference.value for reference in chart.references]
    if chart.corridor:
        values += [value for _, *both in chart.corridor.until(last) for value in both]
    return value_axis("value", values, from_zero=chart.from_zero, shares=chart.shares)


def _legend(chart: Chart) -> Iterator[LegendEntry]:
    """Yield the entries of the legend, each line with its last value."""
    for line in chart.drawn:
        if line.named:
            _, value = line.series.ends[1]
            yield LegendEntry(line.kind if line.joined else f"{line.kind} dot", line.label, chart.text(value))
    for reference in chart.references:
        yield LegendEntry("reference", reference.label, chart.text(reference.value))
    if chart.corridor:
        yield LegendEntry("corridor", chart.corridor.label)


def _area(corridor: Corridor | None, last: int, plain: Drawing) -> Iterator[Markup]:
    if corridor is not None:
        points = corridor.until(last)
        edge = [(step, high) for step, _, high in points] + [(step, low) for step, low, _ in reversed(points)]
        places = " ".join(f"{plain.x(step):.1f},{plain.y(value):.1f}" for step, value in edge)
        yield element("polygon", class_="corridor", points=places)


def _marks(line: Line, plain: Drawing) -> Iterator[Markup]:
    points = line.series.thinned
    if line.joined:
        yield plain.line(points, line.kind)
    if not line.joined or len(points) == 1 or (line.kind == "validation" and len(points) <= MAX_DOTS):
        radius = 2.5 if line.joined and len(points) > 1 else 4.5
        yield from (plain.dot(step, value, line.kind, radius=radius) for step, value in points)


def _hovers(chart: Chart, last: int, plain: Drawing) -> Iterator[Markup]:
    """Yield strips side by side over the whole plot; the one under the pointer shows its step and the values there."""
    steps = _hover_steps([line.series for line in chart.drawn], last)
    middles = [plain.x((before + after) / 2) for before, after in pairwise(steps)]
    for step, left, right in zip(steps, [LEFT, *middles], [*middles, WIDTH - RIGHT], strict=True):
        found = [(line, value) for line in chart.drawn for _, value in line.series.between(step, step + 1)]
        title = "\n".join([f"{chart.across} {step:,}", *(f"{line.label} {chart.text(value)}" for line, value in found)])
        x = plain.x(step)
        yield element(
            "g",
            element("title", title),
            element("rect", x=left, y=TOP, width=right - left, height=HEIGHT - TOP - BOTTOM),
            element("line", x1=x, y1=TOP, x2=x, y2=HEIGHT - BOTTOM),
            *(plain.dot(step, value, line.kind) for line, value in found),
            class_="hover",
        )


def _hover_steps(lines: Sequence[Series], last: int) -> list[int]:
    """Return at most one step for each strip: the one at which most lines have a value, the latest of those."""
    bounds = [-(-strip * max(last, 1) // (MAX_HOVERS - 1)) for strip in range(MAX_HOVERS + 1)]
    found = []
    for begin, end in pairwise(bounds):
        parts = [part for line in lines if (part := line.between(begin, end))]
        if len(parts) == 1:  # the common case; skips counting, which is slow for the many points of a long run
            found.append(parts[0][-1][0])
        elif parts:
            lines_at = Counter(step for part in parts for step, _ in part)
            found.append(max(lines_at, key=lambda step: (lines_at[step], step)))
    return found


def _summary(chart: Chart) -> str:
    """Return a description of the drawing."""

    def words(line: Line) -> str:
        begin, end = (f"{chart.text(value)} at {chart.across} {step:,}" for step, value in line.series.ends)
        return f"{line.label} from {begin} to {end}"

    parts = [words(line) for line in chart.drawn]
    parts += [f"{reference.label} {chart.text(reference.value)}" for reference in chart.references]
    parts += [f"with the {chart.corridor.label}"] if chart.corridor else []
    return f"{chart.title} over {chart.across}s: {'; '.join(parts)}"


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


Point = tuple[int, float]
MAX_POINTS = 600  # a chart is about as many pixels wide


@dataclass(frozen=True)
class Series:
    """A metric over steps.

    Attributes:
        points: (step, value), by step, every value finite.
        left_out: number of values that were not finite.
    """

    points: tuple[Point, ...] = ()
    left_out: int = 0

    @property
    def last(self) -> Point | None:
        """Point of the last step; None without points."""
        return self.points[-1] if self.points else None

    @property
    def ends(self) -> tuple[Point, Point]:
        """First and last point of a series that has any."""
        return self.points[0], self.points[-1]

    def between(self, first: int, end: int) -> tuple[Point, ...]:
        """Return the points from step `first` to before step `end`."""
        by_step = itemgetter(0)
        return self.points[bisect_left(self.points, first, key=by_step) : bisect_left(self.points, end, key=by_step)]

    @cached_property
    def thinned(self) -> list[Point]:
        """At most `MAX_POINTS` of the points: see `decimate`."""
        return decimate(self.points)


def collect(reports: Iterable[Mapping[str, Any]]) -> dict[str, Series]:
    """Return series by metric name. A step that was reported twice, as by a resumed run, has its later value.

    Args:
        reports: {"step": int, "time": seconds since the epoch, "metrics": {name: value}}, in the order of reporting.
    """
    values: dict[str, dict[int, float]] = {}
    for report in reports:
        for name, value in report["metrics"].items():
            values.setdefault(name, {})[int(report["step"])] = float(value)
    return {name: _series(by_step) for name, by_step in values.items()}


def last_step(series: Mapping[str, Series]) -> int:
    """Return the last step with a report, 0 without any."""
    return max((found.last[0] for found in series.values() if found.last), default=0)


def _series(by_step: Mapping[int, float]) -> Series:
    points = tuple((step, by_step[step]) for step in sorted(by_step) if math.isfinite(by_step[step]))
    return Series(points, left_out=len(by_step) - len(points))


def decimate(points: Sequence[Point], most: int = MAX_POINTS) -> list[Point]:
    """Return a subset of points that looks the same when drawn: both ends, and the extremes of each bucket between.

    A line through them shows every spike of the series; every n-th point would miss most of them.

    Args:
        points: the points, sorted by step.
        most: maximum number of points, at least 4.
    """
    if len(points) <= most:
        return list(points)
    by_value = itemgetter(1)
    inner = points[1:-1]
    buckets = (most - 2) // 2
    kept = [points[0]]
    for index in range(buckets):
        bucket = inner[index * len(inner) // buckets : (index + 1) * len(inner) // buckets]
        extremes = {min(bucket, key=by_value), max(bucket, key=by_value)}
        kept += sorted(extremes)
    return [*kept, points[-1]]
