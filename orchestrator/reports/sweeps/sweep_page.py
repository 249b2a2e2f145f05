"""The report of a sweep: a single HTML file without network or script.

html = render_sweep(status, importance)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.reports.charts.notation import counted, duration, moment, number
from orchestrator.reports.charts.style import SWEEP_STYLE
from orchestrator.reports.pages.parts import NONE_YET, facts, key_figure, key_figures, titled
from orchestrator.reports.pages.run_page import document
from orchestrator.reports.sweeps.sweep_drawings import kind_of, setting_text, settings_that_differ, sweep_drawings
from orchestrator.support.html import Markup, element, grid
from orchestrator.sweeps.driver.sweep_status import SweepStatus

FEW_TRIALS = 20  # below, importance is a guess
WIDEST = 85  # percent of its cell: the figure stands beside the bar


def render_sweep(
    status: SweepStatus, importance: Mapping[str, float] | None = None, *, way_on: str | None = None
) -> str:
    """A sweep as an HTML document; of one that goes on, as far as it has come.

    Args:
        status: with all trials.
        importance: setting -> share of what made outcomes differ. None: too few trials to tell.
        way_on: the command that resumes a sweep that did not complete.
    """
    body = element(
        "body",
        element("header", *_header(status)),
        element("main", _sweep_figures(status), *_figures(status, importance), element("h2", "Trials"), _table(status)),
        element("h2", "Commands"),
        _commands(status, way_on),
    )
    return document(f"{status.name} ({status.state})", body, SWEEP_STYLE)


def trials_html(status: SweepStatus) -> str:
    """Its trials as a notebook shows them, the newest first."""
    paths = settings_that_differ(status.rows)
    rows = [
        [
            f"{row.trial}{' best' if row.incumbent else ''}",
            row.state,
            *(setting_text(row.settings.get(path, "")) for path in paths),
            NONE_YET if row.best is None else number(row.best),
            str(row.reports),
            duration(row.seconds),
        ]
        for row in reversed(status.rows)
    ]
    header = ["trial", "state", *paths, f"best {status.metric}", "reports", "time"]
    return grid(f"{status.name}: {status.ended} of {status.trials} trials", header, rows, state=status.state)


def _header(status: SweepStatus) -> Iterator[Markup]:
    yield titled(status.name, status.state)
    known = [("Objective", f"{status.goal} {status.metric}"), ("Submitted", moment(status.created))]
    if status.earlier:
        known.append(("Began with", "; ".join(earlier.text for earlier in status.earlier)))
    yield facts(known)
    if status.reason:
        yield element("p", status.reason, class_="alert")


def _commands(status: SweepStatus, way_on: str | None) -> Markup:
    """What to type next, ready to paste."""
    end = f"orchestrator cancel {status.name}" if not status.state.terminal else None
    best = f"orchestrator sweep best {status.name} --spec best.yaml" if status.best else None
    lines = [way_on, best, f"orchestrator sweep show {status.name}", end]
    return element("pre", element("code", "\n".join(line for line in lines if line)))


def _sweep_figures(status: SweepStatus) -> Markup:
    best = status.best
    stopped = [row for row in status.rows if kind_of(row) == "stopped"]
    took = sum(row.seconds for row in status.rows)
    figures = [
        (
            f"Best {status.metric}",
            number(best.outcome) if best and best.outcome is not None else NONE_YET,
            f"trial {best.trial}" if best else "no trial has ended",
        ),
        ("Trials ended", f"{status.ended}", f"of {status.trials}"),
        ("Stopped early", f"{len(stopped)}", _share(len(stopped), status.ended)),
        ("Time of all trials", duration(took), _mean_time(took, len(status.rows))),
    ]
    cost = sum(row.cost for row in status.rows)
    if cost:
        figures.append(("Cost", f"${cost:,.2f}", "of all trials"))
    return key_figures(key_figure(*figure) for figure in figures)


def _figures(status: SweepStatus, importance: Mapping[str, float] | None) -> Iterator[Markup]:
    if not any(row.values for row in status.rows):
        yield element("p", f"No trial has reported {status.metric} yet.", class_="panel empty")
        return
    drawn = [drawing.html() for drawing in sweep_drawings(status).values()]
    if importance:
        drawn.append(_importance(importance, sum(row.outcome is not None for row in status.rows)))
    yield element("div", *drawn, class_="charts")


def _importance(importance: Mapping[str, float], ended: int) -> Markup:
    """How much each setting had to do with the outcome."""
    ranked = sorted(importance.items(), key=lambda one: -one[1])
    rows = [
        element(
            "tr",
            element("th", path),
            element("td", element("span", "", class_="share", style=f"width: {WIDEST * share:.0f}%"), f"{share:.0%}"),
        )
        for path, share in ranked
    ]
    few = [element("p", f"Of {counted(ended, 'trial')}: a guess.", class_="note")] if ended < FEW_TRIALS else []
    return element(
        "figure", element("figcaption", element("h2", "Importance")), element("table", *rows, class_="bars"), *few
    )


def _table(status: SweepStatus) -> Markup:
    paths = settings_that_differ(status.rows)
    head = element(
        "tr", *(element("th", text) for text in ("trial", "state", *paths, status.metric, "reports", "time"))
    )
    rows = [
        element(
            "tr",
            element("td", str(row.trial)),
            element("td", row.state, *([element("div", row.why, class_="soft")] if row.why else [])),
            *(element("td", setting_text(row.settings.get(path, ""))) for path in paths),
            element("td", NONE_YET if row.outcome is None else number(row.outcome)),
            element("td", str(row.reports)),
            element("td", duration(row.seconds)),
            class_=kind_of(row),
        )
        for row in status.rows
    ]
    return element("div", element("table", head, *rows, class_="trials"), class_="panel wide")


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%} of those that ended" if whole else "none has ended"


def _mean_time(seconds: float, trials: int) -> str:
    return f"{duration(seconds / trials)} a trial" if trials else "none has begun"
