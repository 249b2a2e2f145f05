"""The first figures of a sweep's report as PNGs, for papers and slides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.reports.charts.palette import LIGHT
from orchestrator.reports.charts.pictures import new_figure, save
from orchestrator.reports.charts.plot import axis
from orchestrator.reports.sweeps.sweep_page import kind_of, settings_that_differ
from orchestrator.sweeps.driver.sweep_status import SweepStatus

COLOURS = {"best": LIGHT["validation"], "trial": LIGHT["training"], "stopped": LIGHT["reference"]}


def write_pictures(status: SweepStatus, folder: Path) -> list[Path]:
    """reports.png, and SETTING.png for each setting that differs between trials.

    Args:
        status: with all trials.
        folder: made if it is not there.

    Raises:
        SpecError: matplotlib is not installed.
        StorageError: a file cannot be written.
    """
    ended = [row for row in status.rows if row.outcome is not None]
    drawings: dict[str, Callable[[Any], None]] = {"reports": partial(_histories, status=status)}
    for path in settings_that_differ(ended):
        drawings[path] = partial(_setting, status=status, path=path)
    return [_written(draw, folder / f"{name}.png") for name, draw in drawings.items()]


def _written(draw: Callable[[Any], None], path: Path) -> Path:
    figure = new_figure()
    axes = figure.subplots()
    draw(axes)
    axes.grid(alpha=0.3)
    return save(figure, path)


def _histories(axes: Any, status: SweepStatus) -> None:
    for row in sorted(status.rows, key=lambda row: kind_of(row) == "best"):
        kind = kind_of(row)
        style = {
            "color": COLOURS[kind],
            "alpha": 1.0 if kind == "best" else 0.6,
            "marker": "x" if kind == "stopped" else "o",
        }
        axes.plot(range(1, len(row.values) + 1), row.values, markevery=[-1] if row.values else [], **style)
    axes.set_xlabel("report")
    axes.set_ylabel(status.metric)
    axes.set_title(f"{status.name}: x was stopped early")


def _setting(axes: Any, status: SweepStatus, path: str) -> None:
    rows = [row for row in status.rows if row.outcome is not None and path in row.settings]
    across, places = axis(path, [row.settings[path] for row in rows])
    for row, place in zip(rows, places, strict=True):
        axes.scatter([place], [row.outcome], color=COLOURS[kind_of(row)], zorder=3)
    if across.log:
        axes.set_xscale("log")
    if across.names:
        axes.set_xticks(range(len(across.names)), across.names)
    axes.set_xlabel(path)
    axes.set_ylabel(status.metric)
