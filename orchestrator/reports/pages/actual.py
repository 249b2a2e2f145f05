"""What was planned beside what came: steps, time, memory, speed of the arithmetic, cost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.reports.charts.notation import duration, number
from orchestrator.reports.pages.key_figures import MEMORY, planned_memory
from orchestrator.reports.pages.parts import NONE_YET, figures_panel
from orchestrator.runs.status import RunStatus, attempt_seconds
from orchestrator.support.formatting import bytes_text
from orchestrator.support.html import Markup

HEADER = ("", "Planned", "Came", "Came / planned")
GIGA = 1e9


class Row(NamedTuple):
    """Something that was planned, that came, or both."""

    what: str
    planned: float | None
    came: float | None
    text: Callable[[float], str]
    most: float | None = None
    """The plan's upper end, where it names two: then `planned` is the lower one."""

    @property
    def cells(self) -> list[str]:
        """Planned, came, and the share; of two ends none."""
        planned, came = (self.text(value) if value is not None else NONE_YET for value in (self.planned, self.came))
        if self.most is not None and (most := self.text(self.most)) != planned:
            return [f"{planned} to {most}", came, ""]
        return [planned, came, f"{self.came / self.planned:.0%}" if self.planned and self.came is not None else ""]


def beside_plan(status: RunStatus, reports: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]) -> Markup:
    """The table. Estimates are formulas and rules of thumb, so the share tells how good they were."""
    rows = (row for row in _rows(status, reports, plan) if row.planned is not None or row.came is not None)
    return figures_panel(HEADER, ([row.what, *row.cells] for row in rows))


def _rows(status: RunStatus, reports: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]) -> Iterator[Row]:
    estimates, seconds = plan["estimates"], _seconds(status, reports)
    yield Row(f"{status.counts.capitalize()}", status.steps, _reached(status, reports), "{:,.0f}".format)
    span: Mapping[str, Any] = estimates.get("span") or {}
    took = estimates.get("seconds", span.get("seconds_least"))
    yield Row("Time of all attempts", took, seconds, duration, span.get("seconds_most"))
    yield Row("Memory of a process", planned_memory(plan), max(_values(reports, MEMORY), default=None), _gigabytes)
    yield Row("Arithmetic", None, _flops(reports, plan), _flops_text)
    cost = estimates.get("cost", span.get("cost_least"))
    yield Row("Cost", cost, status.cost, "${:,.2f}".format, span.get("cost_most"))


def _reached(status: RunStatus, reports: Sequence[Mapping[str, Any]]) -> float | None:
    return status.step if status.step is not None else max((report["step"] for report in reports), default=None)


def _seconds(status: RunStatus, reports: Sequence[Mapping[str, Any]]) -> float | None:
    """Of all attempts; one that goes on has lasted until its last report, so that a page depends on the run alone."""
    heard = max((float(report["time"]) for report in reports), default=None)
    if status.attempts:
        return attempt_seconds(status.attempts, heard if heard is not None else status.attempts[-1].started)
    until = status.ended if status.ended is not None else heard
    return until - status.started if status.started is not None and until is not None else None


def _flops(reports: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]) -> float | None:
    """Floating-point operations a second, every sequence taken as full; the median of the reports."""
    speeds = _values(reports, "sequences_per_second")
    each: float | None = plan["estimates"].get("flops_per_step")
    batch: int = plan["job"]["train"]["global_batch_size"]
    return each / batch * statistics.median(speeds) if each is not None and speeds else None


def _values(reports: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    return [float(report["metrics"][metric]) for report in reports if metric in report["metrics"]]


def _gigabytes(value: float) -> str:
    return bytes_text(value * GIGA)


def _flops_text(value: float) -> str:
    return f"{number(value / GIGA)} GFLOP/s"
