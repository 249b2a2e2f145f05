"""The report of one run that trains: a single HTML file without network or script.

    html = render(status, reports, plan, result)
    Path("report.html").write_text(html, encoding="utf-8")

It is a function of its arguments alone: the same run gives the same bytes, whenever it is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from orchestrator.jobs.registry import run_kind
from orchestrator.reports.charts.charts import Chart
from orchestrator.reports.charts.notation import duration, moment
from orchestrator.reports.charts.series import Series, collect
from orchestrator.reports.charts.style import STYLE
from orchestrator.reports.pages.actual import beside_plan
from orchestrator.reports.pages.details import commands, plan_table
from orchestrator.reports.pages.key_figures import charts, figures_of, pretraining_figures
from orchestrator.reports.pages.parts import facts, titled
from orchestrator.reports.pages.profile_table import profile_section
from orchestrator.reports.pages.tuning import score_table, seed_charts, seed_table, tuning_charts, tuning_figures
from orchestrator.runs.status import RunStatus
from orchestrator.support.html import Markup, element

NO_SEEDS: Mapping[int, Iterable[dict[str, Any]]] = MappingProxyType({})
# All text is escaped; should any ever not be, a browser that obeys this still runs and loads nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
HEAD = Markup(
    '<meta charset="utf-8">\n'
    f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    f"<style>\n{STYLE}\n</style>\n"
)


def render(
    status: RunStatus,
    reports: Iterable[dict[str, Any]],
    plan: Mapping[str, Any],
    result: Mapping[str, Any],
    profile: Mapping[str, Any] | None = None,
    *,
    seeds: Mapping[int, Iterable[dict[str, Any]]] = NO_SEEDS,
) -> str:
    """A run as an HTML document.

    Args:
        status: how the run stands.
        reports: {"step": int, "time": seconds since the epoch, "metrics": {name: value}}, in the order they were made;
            none of a run that has reported nothing yet.
        plan: `Plan.as_dict()`.
        result: the job's result.json; empty until the run completes.
        profile: the job's profile/operations.json, where some of its steps were profiled.
        seeds: of a fine-tuning with several: what was reported with each, as `reports`.
    """
    made = list(reports)
    header, *outcome = state_and_outcome(status, made, plan, result, seeds)
    body = element(
        "body",
        header,
        element(
            "main",
            *outcome,
            element("h2", "Plan beside what came"),
            beside_plan(status, made, plan),
            *(profile_section(profile, status) if profile else []),
            element("h2", "Plan"),
            plan_table(plan),
            *([] if status.state.resumable else [element("h2", "Commands"), commands(status)]),
        ),
    )
    return document(f"{status.name} ({status.state})", body)


def document(title: str, body: Markup, style: str = "") -> str:
    """A whole page.

    Args:
        title: in the browser's tab.
        body: its element.
        style: what it has of its own, beside the style of all reports.
    """
    head = element("head", HEAD, *([element("style", Markup(style))] if style else []), element("title", title))
    return f'<!doctype html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


def state_and_outcome(
    status: RunStatus,
    reports: Iterable[dict[str, Any]],
    plan: Mapping[str, Any],
    result: Mapping[str, Any],
    seeds: Mapping[int, Iterable[dict[str, Any]]],
) -> Iterator[Markup]:
    """How it stands, and what it came to until now: arguments as of `render`."""
    made = list(reports)
    last_heard = max((float(report["time"]) for report in made), default=None)
    yield element("header", *_header(status, result, last_heard))
    yield from _outcome(status, collect(made), plan, result, seed_charts(seeds))


def _outcome(
    status: RunStatus,
    series: Mapping[str, Series],
    plan: Mapping[str, Any],
    result: Mapping[str, Any],
    of_seeds: list[Chart],
) -> Iterator[Markup]:
    """Figures and charts, by the kind of job."""
    if not run_kind(status.kind).scored:
        yield pretraining_figures(status, series, plan, result)
    else:
        yield tuning_figures(status, series)
        if status.results is not None:
            yield score_table(status.results)
            yield from seed_table(result)
    yield figures_of([*charts_of(status, series, plan, result), *of_seeds], series, status)


def charts_of(
    status: RunStatus, series: Mapping[str, Series], plan: Mapping[str, Any], result: Mapping[str, Any]
) -> list[Chart]:
    """The charts of a run, by the kind of job."""
    if run_kind(status.kind).scored:
        return tuning_charts(status, series, plan)
    return charts(status, series, plan, result)


def _header(status: RunStatus, result: Mapping[str, Any], last_heard: float | None) -> Iterator[Markup]:
    yield titled(status.name, status.state)
    yield facts(_facts(status, result, last_heard))
    if status.reason:
        yield element("p", status.reason, class_="alert")
    if status.state.resumable:
        yield commands(status)


def _facts(status: RunStatus, result: Mapping[str, Any], last_heard: float | None) -> Iterator[tuple[str, str]]:
    yield "Handle", element("code", status.handle)
    if status.started is None:
        yield "Submitted", moment(status.created)
    else:
        yield f"Started (attempt {status.attempt})" if status.attempt > 1 else "Started", moment(status.started)
        until = status.ended if status.ended is not None else last_heard
        if until is not None:
            yield "Duration", duration(until - status.started) + ("" if status.ended is not None else " so far")
    if status.exit_code:
        yield "Exit code", str(status.exit_code)
    if status.tags:
        yield "Tags", ", ".join(f"{label}={value}" for label, value in status.tags.items())
    if best := status.best_checkpoint:
        yield "Best checkpoint", best.text
    if isinstance(result.get("model"), str):
        yield "Exported model", element("code", result["model"])
