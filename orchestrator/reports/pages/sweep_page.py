"""The report of a sweep: a single HTML file without network or script.

html = render_sweep(status, importance)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from orchestrator.reports.charts.axes import moment, number
from orchestrator.reports.charts.style import SWEEP_STYLE
from orchestrator.reports.pages.page_parts import NONE_YET, facts, key_figure, key_figures, linked, titled
from orchestrator.reports.pages.run_page import document
from orchestrator.reports.pages.sweep_drawings import (
    kind_of,
    plain_value,
    setting_text,
    settings_that_differ,
    sweep_drawings,
)
from orchestrator.support.formatting import counted, duration
from orchestrator.support.html import Markup, element, grid, join
from orchestrator.sweeps.driver.sweep_status import SweepStatus, TrialRow

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


FEW_TRIALS = 20  # with fewer trials, importance is not reliable
WIDEST = 85  # percent of the cell that the longest bar takes; the rest is for its number


def render_sweep(
    status: SweepStatus,
    importance: Mapping[str, float] | None = None,
    *,
    resume: str | None = None,
    pages: Mapping[str, str] | None = None,
) -> str:
    """Return a sweep as an HTML document; a running one with the results so far.

    Args:
        status: with all trials.
        importance: setting -> share, see `importance_of`. None: too few trials.
        resume: the command that resumes a sweep that did not complete; None: it cannot be resumed.
        pages: name of a trial's run -> address of its page, relative to this one; None: no links.
    """
    body = element(
        "body",
        element("header", *_header(status)),
        element(
            "main",
            _sweep_figures(status),
            *_figures(status, importance),
            element("h2", "Trials"),
            _table(status, pages or {}),
        ),
        element("h2", "Commands"),
        _commands(status, resume),
    )
    return document(f"{status.name} ({status.state})", body, SWEEP_STYLE)


def trials_html(status: SweepStatus) -> str:
    """Return the trials of a sweep as HTML for a notebook, the newest first."""
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
        known.append(("Warm start", "; ".join(earlier.text for earlier in status.earlier)))
    yield facts(known)
    if status.reason:
        yield element("p", status.reason, class_="alert")


def _commands(status: SweepStatus, resume: str | None) -> Markup:
    """Return the commands to type next, ready to paste."""
    end = f"orchestrator cancel {status.name}" if not status.state.terminal else None
    best = f"orchestrator sweep best {status.name} --spec best.yaml" if status.best else None
    lines = [resume, best, f"orchestrator sweep show {status.name}", end]
    return element("pre", element("code", "\n".join(line for line in lines if line)))


def _sweep_figures(status: SweepStatus) -> Markup:
    best = status.best
    stopped = [row for row in status.rows if kind_of(row) == "stopped"]
    took = sum(row.seconds for row in status.rows)
    figures = [
        (
            f"Best {status.metric}",
            number(best.outcome) if best and best.outcome is not None else NONE_YET,
            f"trial {best.trial}" if best else "no trial has finished",
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
    """Return a table of the influence of each setting on the outcome."""
    ranked = sorted(importance.items(), key=lambda one: -one[1])
    rows = [
        element(
            "tr",
            element("th", path),
            element("td", element("span", "", class_="share", style=f"width: {WIDEST * share:.0f}%"), f"{share:.0%}"),
        )
        for path, share in ranked
    ]
    note = f"From only {counted(ended, 'trial')}: not reliable."
    few = [element("p", note, class_="note")] if ended < FEW_TRIALS else []
    return element(
        "figure", element("figcaption", element("h2", "Importance")), element("table", *rows, class_="bars"), *few
    )


def _table(status: SweepStatus, pages: Mapping[str, str]) -> Markup:
    paths = settings_that_differ(status.rows)
    head = element(
        "tr", *(element("th", text) for text in ("trial", "state", *paths, status.metric, "reports", "time"))
    )
    rows = [
        element(
            "tr",
            element("td", *_numbers(row, pages)),
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


def _numbers(row: TrialRow, pages: Mapping[str, str]) -> Iterator[str]:
    """Yield the number of a trial, linked to its run; of several runs, one a seed, each has a link of its own."""
    if len(row.runs) == 1:
        yield linked(str(row.trial), pages.get(row.runs[0]))
        return
    yield str(row.trial)
    for place, name in enumerate(row.runs, 1):
        if name in pages:
            yield join([" ", linked(f"run {place}", pages[name])])


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%} of the finished trials" if whole else "none has finished"


def _mean_time(seconds: float, trials: int) -> str:
    return f"{duration(seconds / trials)} a trial" if trials else "none has started"


MIN_TRIALS = 4  # trials with an outcome from which importance is computed


def importance_of(goal: Literal["minimize", "maximize"], rows: Iterable[TrialRow]) -> dict[str, float]:
    """Return the importance of settings by PED-ANOVA (Watanabe et al. 2023, arXiv 2304.10255): setting -> share.

    Settings that some trials lack, as below an option of a choice, have no importance.

    Args:
        goal: which of two outcomes is better.
        rows: the trials.
    """
    import optuna

    distributions: dict[str, optuna.distributions.BaseDistribution] = {}
    found = [(row.settings, row.outcome) for row in rows if row.outcome is not None]
    if len(found) < MIN_TRIALS or len({outcome for _, outcome in found}) == 1:
        return {}
    for path in found[0][0]:
        values = [settings.get(path) for settings, _ in found]
        if (distribution := _distribution(values)) is not None:
            distributions[path] = distribution
    if len(distributions) < 2:
        return dict.fromkeys(distributions, 1.0)
    # A study of plain values: the sweep's own study has latents, and a sweep that a service drove has no study at all.
    again = optuna.create_study(direction=goal)
    for settings, outcome in found:
        params = {path: plain_value(settings[path]) for path in distributions}
        again.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=outcome))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    shares = optuna.importance.get_param_importances(again, evaluator=evaluator)
    return dict(sorted(shares.items(), key=lambda one: -one[1]))


def _distribution(values: list[object]) -> BaseDistribution | None:
    """Return the distribution of the values; None: they are all equal, or missing in some trials."""
    import optuna

    if None in values or len({plain_value(value) for value in values}) == 1:
        return None
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        places = [float(value) for value in values]  # type: ignore[arg-type]
        low, high = min(places), max(places)
        return optuna.distributions.FloatDistribution(low, high, log=low > 0 and high / low >= 20)
    return optuna.distributions.CategoricalDistribution(sorted({plain_value(value) for value in values}, key=str))
