"""The figures of a sweep: trials, settings and outcomes.

The first two correspond to figures 4 and 5 of Azure's article on fine-tuning BERT: the metric of all trials over their
reports, with stopped trials marked, and the outcome by each setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from orchestrator.reports.charts.axes import Axis, count_axis, number, setting_axis, value_axis
from orchestrator.reports.charts.drawing import Drawing, LegendEntry, write_png
from orchestrator.runs.status import RunState
from orchestrator.support.formatting import counted, duration
from orchestrator.support.html import Markup, element
from orchestrator.sweeps.driver.sweep_status import SweepStatus, TrialRow
from orchestrator.sweeps.policy.termination import rank

LEGEND = (LegendEntry("best", "best"), LegendEntry("trial", "to its end"), LegendEntry("stopped", "stopped early"))


def sweep_drawings(status: SweepStatus) -> dict[str, Drawing]:
    """Return the figures by name: `reports`, each setting that differs between trials, `best`, `timeline`, `parallel`.

    Args:
        status: with all trials; at least one must have reported the metric.
    """
    drawn = {"reports": _histories(status)}
    ended = [row for row in status.rows if row.outcome is not None]
    if not ended:
        return drawn
    paths = settings_that_differ(ended)
    drawn |= {path: _setting(status, path, ended) for path in paths}
    drawn |= {"best": _best_so_far(status, ended), "timeline": _timeline(status)}
    return drawn | ({"parallel": _parallel(status, ended)} if len(paths) > 1 else {})


def write_pictures(status: SweepStatus, folder: Path) -> list[Path]:
    """Write reports.png, and SETTING.png for each setting that differs between trials; return their paths.

    Args:
        status: with all trials.
        folder: destination; created if it is missing.

    Raises:
        StorageError: a file cannot be written.
    """
    if not any(row.values for row in status.rows):
        return []
    paths = settings_that_differ([row for row in status.rows if row.outcome is not None])
    drawn = sweep_drawings(status)
    return [write_png(folder / f"{name}.png", [drawn[name]]) for name in ("reports", *paths)]


def _histories(status: SweepStatus) -> Drawing:
    """Draw the metric over reports, a line for each trial."""
    rows = _best_last(row for row in status.rows if row.values)
    plain = Drawing(
        title=f"{status.metric} over reports",
        x_axis=count_axis("report", max(len(row.values) for row in rows)),
        y_axis=value_axis(status.metric, [value for row in rows for value in row.values]),
        words=f"{status.metric} of {counted(len(rows), 'trial')} over their reports",
        legend=_legend(rows),
    )
    layers: list[Markup] = []
    for row in rows:
        points, words = list(enumerate(row.values, start=1)), _words(row, status.metric)
        layers.append(plain.line(points, f"line {kind_of(row)}", words))
        layers.append(plain.dot(*points[-1], kind_of(row), words, radius=3.0))
    return plain.with_layers(*layers)


def _setting(status: SweepStatus, path: str, ended: Sequence[TrialRow]) -> Drawing:
    """Draw the outcome by one setting, a dot for each trial that has it."""
    rows = _best_last(row for row in ended if path in row.settings)
    across, places = setting_axis(path, [row.settings[path] for row in rows], log=path in status.log_settings)
    plain = Drawing(
        title=f"{status.metric} by {path}",
        x_axis=across,
        y_axis=value_axis(status.metric, _outcomes(rows)),
        words=f"{status.metric} by {path} of {counted(len(rows), 'trial')}",
        legend=_legend(rows),
    )
    return plain.with_layers(
        *(
            plain.dot(place, outcome, kind_of(row), _words(row, status.metric))
            for row, place, outcome in zip(rows, places, _outcomes(rows), strict=True)
        )
    )


def _best_so_far(status: SweepStatus, ended: Sequence[TrialRow]) -> Drawing:
    """Draw the outcome of the best trial so far, over trials in the order in which they finished.

    It becomes worse once the first trial completes, if one that was stopped had a better outcome.
    """
    rows = sorted(ended, key=lambda row: row.until)
    outcomes = _outcomes(rows)
    maximize = status.goal == "maximize"
    ranks = (
        (rank(outcome, row.state == RunState.COMPLETED, maximize=maximize), outcome)
        for row, outcome in zip(rows, outcomes, strict=True)
    )
    best = [outcome for _, outcome in accumulate(ranks, min)]
    plain = Drawing(
        title=f"Best {status.metric} so far",
        x_axis=count_axis("trials ended", len(rows)),
        y_axis=value_axis(status.metric, outcomes),
        words=f"best {status.metric} from {number(best[0])} to {number(best[-1])}",
    )
    steps = [
        point
        for place, value in enumerate(best, start=1)
        for point in ((place, best[max(place - 2, 0)]), (place, value))
    ]
    dots = (
        plain.dot(place, outcome, kind_of(row), _words(row, status.metric), radius=3.0)
        for place, (row, outcome) in enumerate(zip(rows, outcomes, strict=True), start=1)
    )
    return plain.with_layers(plain.line(steps, "line best"), *dots)


def _timeline(status: SweepStatus) -> Drawing:
    """Draw when each trial ran."""
    begin = min(row.started for row in status.rows)
    spans = [((row.started - begin) / 60, (row.until - begin) / 60) for row in status.rows]
    plain = Drawing(
        title="Timeline of the trials",
        x_axis=value_axis("minutes", [0.0, *(end for _, end in spans)], most=6),
        y_axis=Axis("trial", -0.5, max(status.rows[-1].trial, 1) + 0.5, whole=True),
        words=f"{counted(len(status.rows), 'trial')}, each from its start to its end",
    )
    return plain.with_layers(
        *(
            plain.line(
                [(moment, row.trial) for moment in span],
                f"line bar {kind_of(row)}",
                f"{_words(row, status.metric)}\n{duration(row.seconds)}",
            )
            for row, span in zip(status.rows, spans, strict=True)
        )
    )


def _parallel(status: SweepStatus, ended: Sequence[TrialRow]) -> Drawing:
    """Draw every trial as one line through its settings and its outcome."""
    paths = [path for path in settings_that_differ(ended) if all(path in row.settings for row in ended)]
    logs = status.log_settings
    scales = [setting_axis(path, [row.settings[path] for row in ended], log=path in logs) for path in paths]
    scales.append((value_axis(status.metric, _outcomes(ended)), _outcomes(ended)))
    names = (*(path.rpartition(".")[2] for path in paths), status.metric)
    plain = Drawing(
        title="Parallel coordinates",
        x_axis=Axis("setting", -0.5, len(names) - 0.5, names=names),
        y_axis=Axis("", 0.0, 1.0),
        words="each trial through its settings",
        legend=_legend(ended),
    )
    lines = (
        plain.line(
            [(number_of_axis, scale.share(places[place])) for number_of_axis, (scale, places) in enumerate(scales)],
            f"line {kind_of(ended[place])}",
            _words(ended[place], status.metric),
        )
        for place in sorted(range(len(ended)), key=lambda place: kind_of(ended[place]) == "best")
    )
    return plain.with_layers(*_uprights(plain, scales), *lines)


def _uprights(plain: Drawing, scales: Sequence[tuple[Axis, list[float]]]) -> Iterator[Markup]:
    """Yield an axis for each setting, with its ends."""
    for place, (scale, values) in enumerate(scales):
        x = plain.x(place)
        yield element("line", class_="axis", x1=x, y1=plain.y(0.0), x2=x, y2=plain.y(1.0))
        for value in sorted({min(values), max(values)}):
            text = scale.names[int(value)] if scale.names else number(value)
            yield element("text", text, class_="end", x=x + 6, y=plain.y(scale.share(value)) + 4)


def settings_that_differ(rows: Sequence[TrialRow]) -> list[str]:
    """Return the settings that differ between trials, in the order of the space."""
    paths = dict.fromkeys(path for row in rows for path in row.settings)
    return [path for path in paths if len({plain_value(row.settings.get(path)) for row in rows}) > 1] or list(paths)


def plain_value(value: object) -> float | str:
    """Return a value that equals that of the same setting: a number, whether int or float, or text."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def kind_of(row: TrialRow) -> str:
    """Return the class that a trial is drawn as: best, stopped, or trial."""
    if row.incumbent:
        return "best"
    return "stopped" if row.state == "stopped" else "trial"


def setting_text(value: Any) -> str:
    """Return a value of a setting as text."""
    return number(value) if isinstance(value, float) else str(value)


def _best_last(rows: Iterable[TrialRow]) -> list[TrialRow]:
    """Return trials in the order of drawing: the best one on top."""
    return sorted(rows, key=lambda row: kind_of(row) == "best")


def _outcomes(rows: Iterable[TrialRow]) -> list[float]:
    return [row.outcome for row in rows if row.outcome is not None]


def _legend(rows: Iterable[TrialRow]) -> tuple[LegendEntry, ...]:
    kinds = {kind_of(row) for row in rows}
    return tuple(key for key in LEGEND if key.kind in kinds)


def _words(row: TrialRow, metric: str) -> str:
    settings = "\n".join(f"{path} {setting_text(value)}" for path, value in row.settings.items())
    outcome = "" if row.outcome is None else f"\n{metric} {number(row.outcome)}"
    return f"trial {row.trial}, {row.state}\n{settings}{outcome}"
