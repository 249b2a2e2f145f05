"""A run as a notebook shows it: the report's own figures, in a style that touches nothing else on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from orchestrator.jobs.registry import run_kind
from orchestrator.reports.charts.notation import number
from orchestrator.reports.charts.style import STYLE
from orchestrator.reports.pages.run_page import NO_SEEDS, state_and_outcome
from orchestrator.runs.status import RunStatus
from orchestrator.support.html import Markup, card, element

SCOPE = "orchestrator-run"
FRAME = """
& { margin: 4px 0; padding: 14px 18px; max-width: 980px; border: 1px solid var(--line); border-radius: 10px; }
& h1 { font-size: 18px; }
& dl dt, & dl dd { float: none; clear: none; width: auto; margin: 0; padding: 0; font-weight: inherit; }
& .figures .value { font-size: 20px; font-weight: 600; }
& .charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); }
& table, & table tr:nth-child(n) { background: none; font-size: inherit; }
"""  # the last lines take back what notebooks do to lists and tables


def run_html(
    status: RunStatus,
    reports: Iterable[dict[str, Any]],
    plan: Mapping[str, Any],
    result: Mapping[str, Any],
    *,
    seeds: Mapping[int, Iterable[dict[str, Any]]] = NO_SEEDS,
) -> str:
    """How a run stands, with its curves until now: arguments as of `run.render`."""
    if not run_kind(status.kind).trains:
        return card(status.name, _facts(status), state=status.state, below=_progress(status))
    style = STYLE.replace(":root {", "& {").replace("body {", "& {")
    return element(
        "div",
        element("style", Markup(f".{SCOPE} {{\n{style}\n{FRAME}}}")),  # nested rules hold below the class alone
        *_progress(status),
        *state_and_outcome(status, reports, plan, result, seeds),
        class_=SCOPE,
    )


class NotebookView(Protocol):
    """What a notebook can show."""

    def _repr_html_(self) -> str: ...


def display_of(shown: NotebookView) -> Callable[[], None]:
    """What draws it anew at the same place of a notebook's cell; where there is no notebook, nothing is drawn."""
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
    """How far a run is that goes on: the browser's own bar, which needs no widgets."""
    if status.steps and not status.state.terminal:
        words = f"{status.counts} {status.step or 0:,} of {status.steps:,}"
        yield element("progress", "", value=status.step or 0, max=status.steps, style="width: 100%", title=words)


def _facts(status: RunStatus) -> Iterator[tuple[str, str]]:
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
