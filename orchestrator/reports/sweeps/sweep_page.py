"""The report of a sweep: a single HTML file without network or script.

    html = render_sweep(status, importance)

Figures 4 and 5 of Azure's article on fine-tuning BERT are the first two: the metric of all trials over their reports,
with those that were stopped marked, and what each setting came to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.reports.charts.notation import counted, duration, moment, number
from orchestrator.reports.charts.plot import Axis, Plot, axis, dot, line
from orchestrator.reports.charts.style import SWEEP_STYLE
from orchestrator.reports.pages.run_page import document
from orchestrator.support.html import Markup, element, grid
from orchestrator.sweeps.driver.sweep_status import SweepStatus, TrialRow

FEW_TRIALS = 20  # below, importance is a guess
LEGEND = (("best", "best"), ("trial", "to its end"), ("stopped", "stopped early"))
WIDEST = 85  # percent of its cell: the figure stands beside the bar
NONE_YET = "\u2014"


def render_sweep(
    status: SweepStatus, importance: Mapping[str, float] | None = None, *, way_on: str | None = None
) -> str:
    """A sweep as an HTML document; of one that goes on, as far as it has come.

    Args:
        status: with all trials.
        importance: setting -> share of what made outcomes differ. None: too few trials to tell.
        way_on: the command that goes on with one that did not complete.
    """
    body = element(
        "body",
        element("header", *_header(status)),
        element("main", _key_figures(status), *_figures(status, importance), element("h2", "Trials"), _table(status)),
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
            *(_text(row.settings.get(path, "")) for path in paths),
            NONE_YET if row.best is None else number(row.best),
            str(row.reports),
            duration(row.seconds),
        ]
        for row in reversed(status.rows)
    ]
    header = ["trial", "state", *paths, f"best {status.metric}", "reports", "time"]
    return grid(f"{status.name}: {status.ended} of {status.trials} trials", header, rows, state=status.state)


def _header(status: SweepStatus) -> Iterator[Markup]:
    badge = element("span", status.state, class_=f"badge {status.state}")
    yield element("div", element("h1", status.name), badge, class_="title")
    facts = [("Objective", f"{status.goal} {status.metric}"), ("Submitted", moment(status.created))]
    if status.earlier:
        facts.append(("Began with", "; ".join(earlier.text for earlier in status.earlier)))
    yield element(
        "dl",
        *(element("div", element("dt", label), element("dd", text)) for label, text in facts),
        class_="facts",
    )
    if status.reason:
        yield element("p", status.reason, class_="alert")


def _commands(status: SweepStatus, way_on: str | None) -> Markup:
    """What to type next, ready to paste."""
    end = f"orchestrator cancel {status.name}" if not status.state.terminal else None
    best = f"orchestrator sweep best {status.name} --spec best.yaml" if status.best else None
    lines = [way_on, best, f"orchestrator sweep show {status.name}", end]
    return element("pre", element("code", "\n".join(line for line in lines if line)))


def _key_figures(status: SweepStatus) -> Markup:
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
    return element(
        "dl",
        *(
            element(
                "div", element("dt", label), element("dd", value, class_="value"), element("dd", more, class_="soft")
            )
            for label, value, more in figures
        ),
        class_="figures",
    )


def _figures(status: SweepStatus, importance: Mapping[str, float] | None) -> Iterator[Markup]:
    if not any(row.values for row in status.rows):
        yield element("p", f"No trial has reported {status.metric} yet.", class_="panel empty")
        return
    drawn = [_histories(status)]
    ended = [row for row in status.rows if row.outcome is not None]
    if ended:
        drawn += [_setting(status, path, ended) for path in settings_that_differ(ended)]
        drawn += [_best_so_far(status, ended), _timeline(status)]
        if len(settings_that_differ(ended)) > 1:
            drawn.append(_parallel(status, ended))
        if importance:
            drawn.append(_importance(importance, len(ended)))
    yield element("div", *drawn, class_="charts")


def _histories(status: SweepStatus) -> Markup:
    """Metric over reports, a line for each trial."""
    rows = sorted((row for row in status.rows if row.values), key=lambda row: kind_of(row) == "best")
    reports, _ = axis("report", [1, max(len(row.values) for row in rows)], log=False, whole=True)
    values, _ = axis(status.metric, [value for row in rows for value in row.values], log=False)
    plot = Plot(reports, values)
    layers: list[Markup] = []
    for row in rows:
        points = [(plot.x(place), plot.y(value)) for place, value in enumerate(row.values, start=1)]
        layers.append(line(points, f"line {kind_of(row)}", _words(row, status.metric)))
        layers.append(dot(*points[-1], kind_of(row), _words(row, status.metric), radius=3.0))
    words = f"{status.metric} of {counted(len(rows), 'trial')} over their reports"
    return plot.figure(f"{status.metric} over reports", layers, words=words, legend=legend(rows))


def _setting(status: SweepStatus, path: str, ended: Sequence[TrialRow]) -> Markup:
    """Outcome by one setting, a dot for each trial that has it."""
    rows = sorted((row for row in ended if path in row.settings), key=lambda row: kind_of(row) == "best")
    across, places = axis(path, [row.settings[path] for row in rows])
    up, outcomes = axis(status.metric, [row.outcome for row in rows], log=False)
    plot = Plot(across, up)
    layers = [
        dot(plot.x(place), plot.y(outcome), kind_of(row), _words(row, status.metric))
        for row, place, outcome in zip(rows, places, outcomes, strict=True)
    ]
    words = f"{status.metric} by {path} of {counted(len(rows), 'trial')}"
    return plot.figure(f"{status.metric} by {path}", layers, words=words, legend=legend(rows))


def _best_so_far(status: SweepStatus, ended: Sequence[TrialRow]) -> Markup:
    """The best outcome until then, over trials in the order in which they ended."""
    better = max if status.goal == "maximize" else min
    rows = sorted(ended, key=lambda row: row.started + row.seconds)
    outcomes = [row.outcome for row in rows if row.outcome is not None]
    best = [better(outcomes[: place + 1]) for place in range(len(outcomes))]
    across, _ = axis("trials ended", [1, max(len(rows), 2)], log=False, whole=True)
    up, _ = axis(status.metric, outcomes, log=False)
    plot = Plot(across, up)
    steps = [
        point
        for place, value in enumerate(best, start=1)
        for point in ((place, best[max(place - 2, 0)]), (place, value))
    ]
    layers = [line([(plot.x(place), plot.y(value)) for place, value in steps], "line best")]
    layers += [
        dot(plot.x(place), plot.y(outcome), kind_of(row), _words(row, status.metric), radius=3.0)
        for place, (row, outcome) in enumerate(zip(rows, outcomes, strict=True), start=1)
    ]
    return plot.figure(
        f"Best {status.metric} so far",
        layers,
        words=f"best {status.metric} from {number(best[0])} to {number(best[-1])}",
    )


def _timeline(status: SweepStatus) -> Markup:
    """When each trial ran."""
    rows = status.rows
    begin = min(row.started for row in rows)
    across, _ = axis("minutes", [0, max((row.started + row.seconds - begin) / 60 for row in rows)], log=False)
    up, _ = axis("trial", [0, max(rows[-1].trial, 1)], log=False, whole=True)
    plot = Plot(across, up)
    layers = [
        line(
            [(plot.x((moment - begin) / 60), plot.y(row.trial)) for moment in (row.started, row.started + row.seconds)],
            f"line bar {kind_of(row)}",
            f"{_words(row, status.metric)}\n{duration(row.seconds)}",
        )
        for row in rows
    ]
    return plot.figure(
        "Timeline of the trials", layers, words=f"{counted(len(rows), 'trial')}, each from its begin to its end"
    )


def _parallel(status: SweepStatus, ended: Sequence[TrialRow]) -> Markup:
    """Every trial as one line through its settings and its outcome."""
    paths = [path for path in settings_that_differ(ended) if all(path in row.settings for row in ended)]
    scales = [axis(path, [row.settings[path] for row in ended]) for path in paths]
    scales.append(axis(status.metric, [row.outcome for row in ended], log=False))
    names = [*(path.rpartition(".")[2] for path in paths), status.metric]
    across, _ = axis("setting", names)
    up, _ = axis("", [0.0, 1.0], log=False)
    plot = Plot(across, up)
    order = sorted(range(len(ended)), key=lambda place: kind_of(ended[place]) == "best")
    layers = list(_uprights(plot, scales))
    layers += [
        line(
            [
                (plot.x(number_of_axis), plot.y(scale.share(places[place])))
                for number_of_axis, (scale, places) in enumerate(scales)
            ],
            f"line {kind_of(ended[place])}",
            _words(ended[place], status.metric),
        )
        for place in order
    ]
    return plot.figure("Parallel coordinates", layers, words="each trial through its settings", legend=legend(ended))


def _uprights(plot: Plot, scales: Sequence[tuple[Axis, list[float]]]) -> Iterator[Markup]:
    """An axis for each setting, with its ends."""
    for place, (scale, values) in enumerate(scales):
        x = plot.x(place)
        yield element("line", class_="axis", x1=x, y1=plot.y(0.0), x2=x, y2=plot.y(1.0))
        for value in {min(values), max(values)}:
            text = scale.names[int(value)] if scale.names else number(value)
            yield element("text", text, class_="end", x=x + 6, y=plot.y(scale.share(value)) + 4)


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
            *(element("td", _text(row.settings.get(path, ""))) for path in paths),
            element("td", NONE_YET if row.outcome is None else number(row.outcome)),
            element("td", str(row.reports)),
            element("td", duration(row.seconds)),
            class_=kind_of(row),
        )
        for row in status.rows
    ]
    return element("div", element("table", head, *rows, class_="trials"), class_="panel wide")


def settings_that_differ(rows: Sequence[TrialRow]) -> list[str]:
    """Settings that differ between trials, in the order of the space."""
    paths = dict.fromkeys(path for row in rows for path in row.settings)
    return [path for path in paths if len({str(row.settings.get(path)) for row in rows}) > 1] or list(paths)


def legend(rows: Iterable[TrialRow]) -> list[tuple[str, str]]:
    """What of the three kinds there is."""
    kinds = {kind_of(row) for row in rows}
    return [(kind, label) for kind, label in LEGEND if kind in kinds]


def kind_of(row: TrialRow) -> str:
    """What it is drawn as: best, stopped, or trial."""
    if row.incumbent:
        return "best"
    return "stopped" if row.state == "stopped" else "trial"


def _words(row: TrialRow, metric: str) -> str:
    settings = "\n".join(f"{path} {_text(value)}" for path, value in row.settings.items())
    came = "" if row.outcome is None else f"\n{metric} {number(row.outcome)}"
    return f"trial {row.trial}, {row.state}\n{settings}{came}"


def _text(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%} of those that ended" if whole else "none has ended"


def _mean_time(seconds: float, trials: int) -> str:
    return f"{duration(seconds / trials)} a trial" if trials else "none has begun"
