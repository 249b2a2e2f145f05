"""Charts as PNGs, for papers and slides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.reports.charts.charts import Chart, Line
from orchestrator.reports.charts.palette import LIGHT
from orchestrator.support.errors import SpecError, StorageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES = (8.0, 4.5)
DOTS = 150


def draw_charts(charts: Sequence[Chart], folder: Path, *, last_step: int) -> list[Path]:
    """Writes a PNG of each chart, named by its title; what has nothing that can be drawn is left out.

    Args:
        charts: of a report.
        folder: made if it is not there.
        last_step: right end of the step axis, of charts that have none of their own.

    Raises:
        SpecError: matplotlib is not installed.
        StorageError: a file cannot be written.
    """
    return [_picture(chart, folder / f"{_slug(chart.title)}.png", last_step) for chart in charts if chart.drawn]


def new_figure(inches: tuple[float, float] = INCHES) -> Figure:
    """An empty one.

    Raises:
        SpecError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # takes a second to import
    except ImportError:
        raise SpecError("drawing needs matplotlib", fix="pip install matplotlib, or leave --png out") from None
    return Figure(figsize=inches, layout="constrained")


def save(figure: Figure, path: Path, *, fix: str = "--png FOLDER") -> Path:
    """Writes a PNG; returns its path.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png", dpi=DOTS)
    except OSError as problem:
        raise StorageError(f"cannot write {path}: {problem.strerror}", fix=fix) from problem
    return path


def _picture(chart: Chart, path: Path, last_step: int) -> Path:
    figure, last_step = new_figure(), chart.until or last_step
    axes = figure.subplots()
    if chart.corridor:
        steps, low, high = zip(*chart.corridor.until(last_step), strict=True)
        axes.fill_between(steps, low, high, color=LIGHT["corridor"], label=chart.corridor.label)
    for reference in chart.references:
        label = f"{reference.label} {chart.text(reference.value)}"
        axes.axhline(reference.value, color=LIGHT["reference"], linestyle="--", linewidth=1, label=label)
    for line in chart.drawn:
        _draw(axes, line)
    axes.set_title(chart.title)
    axes.set_xlabel(chart.across)
    axes.set_xlim(0, max(last_step, 1))
    if chart.from_zero:
        axes.set_ylim(bottom=0)
    if chart.shares:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    return save(figure, path)


def _draw(axes: Any, line: Line) -> None:
    steps, values = zip(*line.series.points, strict=True)
    marked = not line.joined or len(steps) == 1
    axes.plot(
        steps,
        values,
        color=LIGHT[line.kind],
        linestyle="-" if line.joined else "none",
        marker="o" if marked else None,
        label=line.label if line.named else None,
    )


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
