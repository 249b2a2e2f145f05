"""Reports as files: the page of one run or of several, and the figures of it as PNGs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.jobs.registry import run_kind
from orchestrator.reports.charts.charts import write_charts
from orchestrator.reports.charts.series import last_step
from orchestrator.reports.pages.comparison import Subject, all_charts, render_comparison, require_comparable
from orchestrator.reports.pages.profile_table import read_profile
from orchestrator.reports.pages.run_page import render
from orchestrator.support.errors import StorageError, UsageError

PAGE, COMPARISON = "report.html", "comparison.html"


def write_report(subjects: Sequence[Subject], to: Path | None = None) -> Path:
    """Write the page of a run, or of a comparison; return its path.

    Args:
        subjects: the runs.
        to: the file; None: report.html in the run's folder, or comparison.html here.

    Raises:
        UsageError: a run has no curves, or they have no figures in common.
        StorageError: it cannot be written there.
    """
    _require(subjects)
    if len(subjects) > 1:
        return write_page(render_comparison(subjects), to or Path.cwd() / COMPARISON)
    side, reports, seeds = subjects[0].side, subjects[0].reports, subjects[0].seeds
    page = render(side.status, reports, side.plan, side.result, read_profile(side.status.trace), seeds=seeds)
    return write_page(page, to or Path(side.status.folder or Path.cwd()) / PAGE)


def write_pictures(subjects: Sequence[Subject], folder: Path) -> list[Path]:
    """Write the figures of that page as PNGs; return their paths, none for runs without reports.

    Args:
        subjects: the runs.
        folder: made if it does not exist.

    Raises:
        UsageError: see `write_report`.
        StorageError: a file cannot be written.
    """
    _require(subjects)
    last = max(last_step(subject.series) for subject in subjects)
    return write_charts(all_charts(subjects), folder, last_step=last)


def write_page(text: str, path: Path) -> Path:
    """Write a page; return its path.

    Raises:
        StorageError: it cannot be written there.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise StorageError(
            f"cannot write the report: {problem.strerror}", facts={"where": path}, fix="--to FILE"
        ) from problem
    return path


def _require(subjects: Sequence[Subject]) -> None:
    if len(subjects) > 1:
        require_comparable(subjects)
        return
    status = subjects[0].side.status
    if not run_kind(status.kind).trains:
        raise UsageError(
            f"run {status.name} trains nothing: there are no curves to report",
            fix=f"orchestrator data show {status.store}" if status.store else f"orchestrator status {status.name}",
        )
