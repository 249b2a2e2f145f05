"""Progress of a run: the last reports in its metrics.jsonl, read from the end of the file, a slow rank, its target."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.runs.status import Counts
from train_jobs.artifacts.metrics_file import full_report, parse_report

# A status needs only the newest value of each metric. A report is a few hundred bytes, so the tail holds a hundred or
# more, and `list` takes as long for a run of weeks as for one of minutes.
TAIL_BYTES = 64 * 1024
SLOW_RATIO = 3.0  # work of the slowest rank, over the median of the others
SLOW_SECONDS = 60.0  # a rank is slow if it was for so long: a checkpoint or a neighbour may slow it for a moment


def tail_reports(tail: bytes, written: float, *, cut: bool) -> list[dict[str, Any]]:
    """Return the reports in a metrics file's tail; lines that are no reports are left out.

    Args:
        tail: the tail.
        written: time of a report without one, seconds since the epoch.
        cut: whether the file begins before the tail, so that its first line is incomplete.
    """
    lines = [line for line in tail.split(b"\n")[int(cut) :] if line]
    with suppress(ValueError, RecursionError):  # one call for all lines is four times as fast as one for each
        whole = json.loads(b"[" + b",".join(lines) + b"]")
        return [report for line in whole if (report := full_report(line, written)) is not None]
    return [report for line in lines if (report := parse_report(line, written)) is not None]


def newest(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last step, its time, and the newest value of each metric if it is finite; empty without reports."""
    if not reports:
        return {}
    metrics = {key: value for report in reports for key, value in report["metrics"].items()}
    # a status is printed as JSON, which has no NaN and no infinity
    finite = {key: value for key, value in metrics.items() if math.isfinite(value)}
    return {"step": reports[-1]["step"], "time": reports[-1]["time"], "metrics": finite}


def last_report(path: Path) -> dict[str, Any]:
    """Return the last step of a metrics file and the newest value of each metric, read from its tail."""
    if not path.exists():
        return {}
    with path.open("rb") as stream:
        start = max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES)
        stream.seek(start)
        # the time of the file, not the present one: a lost attempt ends with its last report
        written = os.fstat(stream.fileno()).st_mtime
        return newest(tail_reports(stream.read(), written, cut=start > 0))


def metric_values(reports: Iterable[Mapping[str, Any]], metric: str) -> list[float]:
    """Return the values of one metric, in the order of the reports that have it."""
    return [float(report["metrics"][metric]) for report in reports if metric in report["metrics"]]


class PaceWatch:
    """Search for a slow rank: for a minute, its work took 3 times as long as that of the others (median)."""

    def __init__(self) -> None:
        self.warning: str | None = None
        """The problem in one line; None: no rank is slow."""
        self._slow: tuple[float, float] | None = None

    def add(self, moment: float, metrics: Mapping[str, float]) -> None:
        """Add a report.

        Args:
            moment: time of the report in seconds.
            metrics: of the report; without those of the slowest rank, as with one process, it is ignored.
        """
        rank, ratio = metrics.get("slowest_rank"), metrics.get("slowest_rank_ratio")
        if rank is None or ratio is None:
            return
        if ratio < SLOW_RATIO:
            self.warning = self._slow = None
            return
        if self._slow is None or self._slow[0] != rank:
            self._slow = rank, moment
        if moment - self._slow[1] >= SLOW_SECONDS:
            self.warning = f"rank {rank:.0f} is slow: its work takes {ratio:.1f} times as long as that of the others"


@dataclass(frozen=True)
class Target:
    """The target of a run, by its plan."""

    steps: int | None
    """Number of units; None: unknown."""
    counts: Counts
    """The unit."""
    sequences: int | None
    """Sequences in each unit; None: unknown."""

    @classmethod
    def from_plan(cls, plan: Mapping[str, Any]) -> Target:
        """Return the target of a plan in the form of `Plan.as_dict`."""
        train = plan["job"].get("train") or {}
        counts: Counts = plan.get("counts", "steps")
        steps = plan.get("steps", train.get("steps"))  # old plans, and those of job files, have them in the job
        sequences = {"steps": train.get("global_batch_size"), "rows": 1}.get(counts)
        return cls(steps, counts, sequences)

    def eta(self, last: Mapping[str, Any]) -> float | None:
        """Return the expected time of the last step, without validations, checkpoints and changes of speed.

        Args:
            last: see `last_report`.
        """
        speed = last.get("metrics", {}).get("rows_per_second" if self.counts == "rows" else "sequences_per_second")
        if not speed or self.sequences is None or self.steps is None or last["step"] >= self.steps:
            return None
        return float(last["time"] + (self.steps - last["step"]) * self.sequences / speed)
