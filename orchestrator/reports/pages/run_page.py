"""The report of one run that trains: a single HTML file without network or script.

    html = render(report_of(side, reports))
    Path("report.html").write_text(html, encoding="utf-8")

The page depends on its arguments alone: the same run gives the same bytes at any time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from orchestrator.jobs.registry import run_kind
from orchestrator.reports.charts.axes import moment, number, percent
from orchestrator.reports.charts.style import STYLE
from orchestrator.reports.pages.page_parts import facts, titled
from orchestrator.reports.pages.plan_tables import commands, plan_table, planned_and_actual
from orchestrator.reports.pages.run_report import RunReport
from orchestrator.runs.status import RunStatus
from orchestrator.support.formatting import duration
from orchestrator.support.html import Markup, card, element

# All text is escaped. In case some is not, this policy keeps the browser from running or loading anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
HEAD = Markup(
    '<meta charset="utf-8">\n'
    f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    f"<style>\n{STYLE}\n</style>\n"
)


def render(run: RunReport, profile: Mapping[str, Any] | None = None) -> str:
    """Return a run as an HTML document.

    Args:
        run: with its reports, of which there may be none yet.
        profile: the job's profile/operations.json, if some of its steps were profiled.
    """
    status = run.status
    body = element(
        "body",
        _header(run),
        element(
            "main",
            *run.results(),
            run.figures(),
            element("h2", "Planned and actual"),
            planned_and_actual(run),
            *(profile_section(profile, status) if profile else []),
            element("h2", "Plan"),
            plan_table(run),
            *([] if status.state.resumable else [element("h2", "Commands"), commands(status)]),
        ),
    )
    return document(f"{status.name} ({status.state})", body)


def document(title: str, body: Markup, style: str = "") -> str:
    """Return a whole page.

    Args:
        title: in the browser's tab.
        body: its element.
        style: added to the style of all reports.
    """
    head = element("head", HEAD, *([element("style", Markup(style))] if style else []), element("title", title))
    return f'<!doctype html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


def _header(run: RunReport) -> Markup:
    status = run.status
    reason = [element("p", text, class_="alert") for text in (status.reason, status.warning) if text]
    resume = [commands(status)] if status.state.resumable else []
    return element("header", titled(status.name, status.state), facts(_facts(run)), *reason, *resume)


def _facts(run: RunReport) -> Iterator[tuple[str, str]]:
    status = run.status
    yield "Handle", element("code", status.handle)
    if status.started is None:
        yield "Submitted", moment(status.created)
    else:
        yield f"Started (attempt {status.attempt})" if status.attempt > 1 else "Started", moment(status.started)
        until = status.ended if status.ended is not None else run.last_report
        if until is not None:
            yield "Duration", duration(until - status.started) + ("" if status.ended is not None else " so far")
    if status.exit_code:
        yield "Exit code", str(status.exit_code)
    if status.tags:
        yield "Tags", ", ".join(f"{label}={value}" for label, value in status.tags.items())
    if best := status.best_checkpoint:
        yield "Best checkpoint", best.text
    if isinstance(model := run.result.get("model"), str):
        yield "Exported model", element("code", model)


SHOWN = 15  # operations; the file has more
FILE = "operations.json"  # in the folder of the trace


def read_profile(trace: str | None) -> dict[str, Any] | None:
    """Return the table of a profile; None if there is no trace, or the table is not complete."""
    with suppress(OSError, ValueError):
        document: dict[str, Any] | None = json.loads(Path(trace).with_name(FILE).read_text()) if trace else None
        return document
    return None


def profile_section(profile: Mapping[str, Any], status: RunStatus) -> list[Markup]:
    """Return the section about a profile.

    Args:
        profile: what train_jobs/engine/reporting/profiler.py wrote.
        status: of the run.
    """
    first, last = profile["steps"]
    on_device = profile["device"] == "cuda"
    text = (
        f"Rank 0, steps {first:,} to {last:,}: {number(profile['step_ms'])} ms a step. Recording slows these"
        " steps down: compare shares, not times."
    )
    columns = ("Operation", "Calls", "CPU ms", *(["Device ms"] if on_device else []), "Share")
    return [
        element("h2", "Profile"),
        element(
            "div",
            element("p", text, class_="soft"),
            _table(("Stage of a step", "ms", "Share"), _stages(profile["stages"])),
            _table(columns, _operations(profile["operations"], on_device=on_device)),
            element("p", "Operations: over all these steps, without the time of those that they call.", class_="soft"),
            element("p", "Trace, for ui.perfetto.dev: ", element("code", status.trace or "")),
            class_="panel profile",
        ),
    ]


def _stages(stages: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [(stage["name"], number(stage["ms"]), percent(stage["share"])) for stage in stages]


def _operations(operations: Sequence[Mapping[str, Any]], *, on_device: bool) -> list[tuple[str, ...]]:
    return [
        (
            row["name"],
            f"{row['calls']:,}",
            number(row["self_cpu_ms"]),
            *([number(row["self_device_ms"])] if on_device else []),
            percent(row["share"]),
        )
        for row in operations[:SHOWN]
    ]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table of names and figures."""
    head = element("tr", *(element("th", label, scope="col") for label in header))
    body = (
        element("tr", element("td", element("code", row[0])), *(element("td", text) for text in row[1:]))
        for row in rows
    )
    return element("table", element("thead", head), element("tbody", *body))


SCOPE = "orchestrator-run"
FRAME = """
& { margin: 4px 0; padding: 14px 18px; max-width: 980px; border: 1px solid var(--line); border-radius: 10px; }
& h1 { font-size: 18px; }
& dl dt, & dl dd { float: none; clear: none; width: auto; margin: 0; padding: 0; font-weight: inherit; }
& .figures .value { font-size: 20px; font-weight: 600; }
& .charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); }
& table, & table tr:nth-child(n) { background: none; font-size: inherit; }
"""  # the last lines undo what notebooks do to lists and tables


def run_html(run: RunReport) -> str:
    """Return the status of a run, with its curves so far, for a notebook."""
    status = run.status
    if not run_kind(status.kind).trains:
        return card(status.name, _card_rows(status), state=status.state, below=_progress(status))
    style = STYLE.replace(":root {", "& {").replace("body {", "& {")
    return element(
        "div",
        element("style", Markup(f".{SCOPE} {{\n{style}\n{FRAME}}}")),  # nested rules apply only inside the class
        *_progress(status),
        _header(run),
        *run.results(),
        run.figures(),
        class_=SCOPE,
    )


class NotebookView(Protocol):
    """An object that a notebook can show."""

    def _repr_html_(self) -> str: ...


def display_of(shown: NotebookView) -> Callable[[], None]:
    """Return a function that redraws an object in its notebook cell; outside a notebook it does nothing."""
    try:
        from IPython import get_ipython
        from IPython.display import HTML, display
    except ImportError:
        return lambda: None
    if getattr(get_ipython(), "kernel", None) is None:  # IPython in a terminal shows no HTML
        return lambda: None
    place = display(HTML(shown._repr_html_()), display_id=True)
    return lambda: place.update(HTML(shown._repr_html_()))


def _progress(status: RunStatus) -> Iterator[Markup]:
    """Yield the progress of a run that has not ended: the browser's own bar, which needs no widgets."""
    if status.steps and not status.state.terminal:
        words = f"{status.counts} {status.step or 0:,} of {status.steps:,}"
        yield element("progress", "", value=status.step or 0, max=status.steps, style="width: 100%", title=words)


def _card_rows(status: RunStatus) -> Iterator[tuple[str, str]]:
    yield "handle", status.handle
    if status.reason:
        yield "reason", status.reason
    if status.step is not None:
        yield status.counts, f"{status.step:,}" + (f" of {status.steps:,}" if status.steps is not None else "")
    for label, place in (("store", status.store), ("folder", status.folder)):
        if place:
            yield label, place
    for name, value in sorted(status.metrics.items()):
        yield name, number(value)
