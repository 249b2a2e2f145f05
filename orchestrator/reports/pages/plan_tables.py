"""Tables of a report: the plan of a run, and planned against actual figures; the commands to type next."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from orchestrator.reports.charts.axes import number
from orchestrator.reports.charts.charts import Series
from orchestrator.reports.pages.page_parts import NONE_YET, TIMES, figures_panel
from orchestrator.reports.pages.run_report import GB, MEMORY, RunReport, planned_memory
from orchestrator.runs.status import RunStatus, attempt_seconds
from orchestrator.support.formatting import bytes_text, counted, duration
from orchestrator.support.html import Markup, element

VARIABLES = "environment.variables."  # may contain secrets, and reports are shared
SHOWN_ELSEWHERE = {"recipe", "name"}  # changed values with a row of their own


def plan_table(run: RunReport) -> Markup:
    """Return the plan, one subject a row."""
    rows = (element("tr", element("th", label, scope="row"), element("td", *content)) for label, content in _rows(run))
    return element("div", element("table", element("tbody", *rows)), class_="panel")


def commands(status: RunStatus) -> Markup:
    """Return the commands to type next, ready to paste."""
    handle = shlex.quote(status.handle)
    verbs = ["logs", "status"]
    if status.state.resumable:
        verbs.insert(0, "resume")
    if not status.state.terminal:
        verbs.append("cancel")
    return element("pre", element("code", "\n".join(f"orchestrator {verb} {handle}" for verb in verbs)))


def _rows(run: RunReport) -> Iterator[tuple[str, list[str]]]:
    plan = run.plan
    spec, data, snapshot, change = plan["spec"], plan["data"], plan["snapshot"], plan["changes"].get("recipe")
    yield "Recipe", [spec["recipe"], *([element("span", f" ({change['from']})", class_="soft")] if change else [])]
    yield "Changed", [_changes(plan["changes"])]
    yield from run.plan_rows()
    yield "Compute", [_compute(plan["compute"])]
    yield "Data", [data["name"], _content(data["files"], data["total_bytes"], "sha256", data["sha256"])]
    if parent := plan.get("parent"):
        yield "Starts from", [parent["name"], element("div", "lineage ", element("code", parent["hash"]))]
    yield "Code", [_content(snapshot["files"], snapshot["total_bytes"], "snapshot", snapshot["digest"])]
    yield "Environment", [", ".join(f"{package} {version}" for package, version in plan["environment"].items())]
    yield "Run hash", [element("code", plan["run_hash"])]
    if plan["warnings"]:
        yield "Warnings", [element("div", warning) for warning in plan["warnings"]]


def _changes(changes: Mapping[str, Mapping[str, Any]]) -> Markup:
    """Return key, value and origin of each changed value."""
    rows = [
        element(
            "tr",
            element("th", element("code", key), scope="row"),
            element("td", element("code", _shown(key, change["value"]))),
            element("td", change["from"], class_="soft"),
        )
        for key, change in changes.items()
        if key not in SHOWN_ELSEWHERE
    ]
    return element("table", element("tbody", *rows)) if rows else element("span", "nothing", class_="soft")


def _shown(key: str, value: object) -> str:
    if key.startswith(VARIABLES):
        return "not shown"
    return value if isinstance(value, str) else json.dumps(value)


def _compute(compute: Mapping[str, Any]) -> str:
    return (
        f"{counted(compute['nodes'], 'node')}{TIMES}{counted(compute['processes_per_node'], 'process', 'processes')}, "
        f"{counted(compute['threads_per_process'], 'thread')} each, on {compute['device'].upper()}"
    )


def _content(files: int, size: int, what: str, digest: str) -> Markup:
    return element("div", f"{counted(files, 'file')}, {bytes_text(size)}, {what} ", element("code", digest))


HEADER = ("", "Planned", "Actual", "Actual / planned")


class Comparison(NamedTuple):
    """A quantity that was planned, measured, or both."""

    what: str
    planned: float | None
    actual: float | None
    text: Callable[[float], str]
    most: float | None = None
    """The plan's upper end, if it is a range: then `planned` is the lower one."""

    @property
    def cells(self) -> list[str]:
        """Planned and actual value, and their ratio; a range has no ratio."""
        planned, actual = (self.text(value) if value is not None else NONE_YET for value in (self.planned, self.actual))
        if self.most is not None and (most := self.text(self.most)) != planned:
            return [f"{planned} to {most}", actual, ""]
        ratio = f"{self.actual / self.planned:.0%}" if self.planned and self.actual is not None else ""
        return [planned, actual, ratio]


def planned_and_actual(run: RunReport) -> Markup:
    """Return the table of planned and actual figures; the last column shows how good the estimates were."""
    rows = (row for row in _comparisons(run) if row.planned is not None or row.actual is not None)
    return figures_panel(HEADER, ([row.what, *row.cells] for row in rows))


def _comparisons(run: RunReport) -> Iterator[Comparison]:
    status, estimates = run.status, run.plan["estimates"]
    span: Mapping[str, Any] = estimates.get("span") or {}
    step = status.step if status.step is not None else max((report["step"] for report in run.reports), default=None)
    yield Comparison(f"{status.counts.capitalize()}", status.steps, step, "{:,.0f}".format)
    took = estimates.get("seconds", span.get("seconds_least"))
    yield Comparison("Time of all attempts", took, _seconds(run), duration, span.get("seconds_most"))
    memory = max((value for _, value in run.series.get(MEMORY, Series()).points), default=None)
    yield Comparison("Memory of a process", planned_memory(run.plan), memory, lambda value: bytes_text(value * GB))
    yield Comparison("Arithmetic", None, _flops(run), lambda value: f"{number(value / GB)} GFLOP/s")
    cost = estimates.get("cost", span.get("cost_least"))
    yield Comparison("Cost", cost, status.cost, "${:,.2f}".format, span.get("cost_most"))


def _seconds(run: RunReport) -> float | None:
    """Return the seconds of all attempts.

    A running attempt counts until its last report, so that the same run gives the same page.
    """
    status, last = run.status, run.last_report
    if status.attempts:
        return attempt_seconds(status.attempts, last if last is not None else status.attempts[-1].started)
    until = status.ended if status.ended is not None else last
    return until - status.started if status.started is not None and until is not None else None


def _flops(run: RunReport) -> float | None:
    """Return floating-point operations a second, every sequence taken as full: the median of the reports."""
    each, speeds = run.plan["estimates"].get("flops_per_step"), run.series.get("sequences_per_second", Series()).points
    if each is None or not speeds:
        return None
    batch: int = run.plan["job"]["train"]["global_batch_size"]
    return float(each) / batch * statistics.median(value for _, value in speeds)
