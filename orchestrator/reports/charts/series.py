"""Reports of a job as one series for each metric, and series short enough to draw."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

Point = tuple[int, float]
MOST_POINTS = 600  # a chart is about as many pixels wide


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
        """At most `MOST_POINTS` of the points: see `decimate`."""
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


def decimate(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Return at most `most` points: both ends, and the least and the greatest of each run of neighbours between them.

    A line through them shows every spike that a line through all points would; every n-th point would not.

    Args:
        points: by step.
        most: at least 4.
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
