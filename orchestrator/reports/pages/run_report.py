"""The data of a run's report: its plan, its metrics, and the figures that its kind of job adds.

    run = report_of(side, reports)

All pages of runs use this object. A kind of job that trains sets its own class of report.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from orchestrator.jobs.registry import run_kind
from orchestrator.reports.charts.axes import number, percent
from orchestrator.reports.charts.charts import Chart, Line, Reference, Series, collect, figure, last_step
from orchestrator.reports.pages.page_parts import NONE_YET, key_figure
from orchestrator.runs.differences import Side
from orchestrator.runs.status import RunState
from orchestrator.support.html import Markup, element

MEMORY = "peak_memory_gb"
SINGLES = (  # measured only in training: metric, title, label, whether it is a share
    ("learning_rate", "Learning rate", "learning rate", False),
    ("gradient_norm", "Gradient norm before clipping", "gradient norm", False),
    ("sequences_per_second", "Throughput (sequences per second)", "sequences/s", False),
    ("mfu", "Model FLOPs utilisation (MFU)", "of the peak of all devices", True),
    (MEMORY, "Peak memory of rank 0 (GB)", "peak", False),
    ("data_wait_share", "Waiting for data (share of the time)", "waiting", True),
)
PARTS = ("state_bytes", "activation_bytes", "library_bytes")  # of the estimate of a process's memory
GB = 1e9
ENDED = {RunState.CANCELLED: "was cancelled", RunState.PREEMPTED: "was preempted"}


@dataclass(frozen=True)
class RunReport(Side):
    """A run and its reports.

    Attributes:
        reports: {"step": int, "time": seconds since the epoch, "metrics": {name: value}}, in the order of reporting.
        seeds: reports of each seed, in a fine-tuning with several seeds.
    """

    reports: Sequence[dict[str, Any]] = ()
    seeds: Mapping[int, Sequence[dict[str, Any]]] = field(default_factory=dict)

    @cached_property
    def series(self) -> dict[str, Series]:
        """Its metrics."""
        return collect(self.reports)

    @property
    def last_report(self) -> float | None:
        """Time of the last report, in seconds since the epoch; None without reports."""
        return max((float(report["time"]) for report in self.reports), default=None)

    def results(self) -> Iterator[Markup]:
        """Yield key figures and tables of results."""
        return iter(())

    def charts(self) -> list[Chart]:
        """Return a chart of each metric that was reported, without those of single seeds."""
        return []

    def seed_charts(self) -> list[Chart]:
        """Return a chart of each metric with a line for each seed."""
        return []

    def plan_rows(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the rows of the plan that only this kind has."""
        return iter(())

    def training_charts(self) -> Iterator[Chart]:
        """Yield the charts of metrics that only training reports; memory also shows the planned value."""
        for metric, title, label, shares in SINGLES:
            line = Line(label, "training", self.series.get(metric, Series()))
            references = (Reference("planned", planned_memory(self.plan)),) if metric == MEMORY else ()
            yield Chart(title, (line,), references=references, from_zero=True, shares=shares)

    def throughput(self) -> Markup:
        """Return the key figure of speed."""
        speeds = [value for _, value in self.series.get("sequences_per_second", Series()).points]
        utilised = [value for _, value in self.series.get("mfu", Series()).points]
        lines = ["median of the run", *([f"MFU {percent(statistics.median(utilised))}"] if utilised else [])]
        return key_figure("Sequences/s", number(statistics.median(speeds)) if speeds else NONE_YET, *lines)

    def figures(self) -> Markup:
        """Return all charts as figures; a sentence if the run has not reported any metric."""
        drawn = [*self.charts(), *self.seed_charts()]
        if drawn:
            last = last_step(self.series)
            return element("div", *(figure(chart, last_step=last) for chart in drawn), class_="charts")
        state = self.status.state
        if self.status.results is not None:
            return element("div")  # the table of results has them
        if state.terminal:
            text = f"No metrics: the run {ENDED.get(state, state.value)} before its first report."
        else:
            text = f"No metrics yet: the run is {state}. A report written after its first metrics has charts."
        return element("p", text, class_="panel empty")


def planned_memory(plan: Mapping[str, Any]) -> float:
    """Return the estimate of the memory of a process, in GB."""
    estimates = plan["estimates"]  # a prediction has one figure for all parts
    if "process_bytes" in estimates:
        return float(estimates["process_bytes"]) / GB
    return float(sum(estimates[part] for part in PARTS)) / GB


def report_of(
    side: Side,
    reports: Iterable[dict[str, Any]] = (),
    seeds: Mapping[int, Iterable[dict[str, Any]]] | None = None,
) -> RunReport:
    """Return the report of a run, of the class that its kind of job names.

    Args:
        side: the run.
        reports: see `RunReport`.
        seeds: see `RunReport`.
    """
    made: type[RunReport] = run_kind(side.status.kind).report
    by_seed = {seed: list(own) for seed, own in (seeds or {}).items()}
    return made(side.status, side.plan, side.result, side.code, side.scored, list(reports), by_seed)


def reported(charts: Iterable[Chart]) -> list[Chart]:
    """Return the charts that have values, or values that could not be drawn."""
    return [chart for chart in charts if chart.drawn or chart.left_out]
