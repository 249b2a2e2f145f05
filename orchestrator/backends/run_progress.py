"""What a job reported last: its metrics.jsonl, read from the end, wherever that lies."""

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

TAIL_BYTES = 64 * 1024


def whole_lines(tail: bytes, *, cut: bool) -> list[bytes]:
    """Lines of a file's end; what follows the last line end is torn, and the first is too if the file was cut."""
    return tail.split(b"\n")[int(cut) : -1]


def parse_reports(lines: list[bytes]) -> list[dict[str, Any]]:
    """Reports of whole lines, in one go, which is four times as fast as one by one; damaged lines are left out."""
    with suppress(ValueError):
        reports: list[dict[str, Any]] = json.loads(b"[" + b",".join(lines) + b"]")
        return reports
    found = []
    for line in lines:
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def newest(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The last step and its time, and the newest value of each metric, if that is a number; of no reports nothing."""
    if not reports:
        return {}
    metrics: dict[str, float] = {}
    for report in reports:
        metrics.update(report["metrics"])
    finite = {key: value for key, value in metrics.items() if math.isfinite(value)}
    return {"step": reports[-1]["step"], "time": reports[-1]["time"], "metrics": finite}


def last_report(path: Path) -> dict[str, Any]:
    """The last step of a metrics file and the newest value of each metric, read from its tail."""
    if not path.exists():
        return {}
    with path.open("rb") as stream:
        start = max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES)
        stream.seek(start)
        return newest(parse_reports(whole_lines(stream.read(), cut=start > 0)))


def metric_values(reports: Iterable[Mapping[str, Any]], metric: str) -> list[float]:
    """Return the values of one metric, in the order of the reports that have it."""
    return [float(report["metrics"][metric]) for report in reports if metric in report["metrics"]]


@dataclass(frozen=True)
class Target:
    """The target of a run, by its plan.

    Attributes:
        steps: how many of what it counts; None: nobody can tell.
        counts: what that is.
        sequences: in each; None: nobody can tell.
    """

    steps: int | None
    counts: Counts
    sequences: int | None

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Target:
        """That of `Plan.as_dict`; in plans of old, and in those of job files, the job alone has the steps."""
        train = plan["job"].get("train") or {}
        counts: Counts = plan.get("counts", "steps")
        steps = plan.get("steps", train.get("steps"))
        sequences = {"steps": train.get("global_batch_size"), "rows": 1}.get(counts)
        return cls(steps, counts, sequences)

    def eta(self, last: Mapping[str, Any]) -> float | None:
        """When the last step is expected: validations, checkpoints and a change of speed are not in it.

        Args:
            last: see `last_report`.
        """
        speed = last.get("metrics", {}).get("rows_per_second" if self.counts == "rows" else "sequences_per_second")
        if not speed or self.sequences is None or self.steps is None or last["step"] >= self.steps:
            return None
        return float(last["time"] + (self.steps - last["step"]) * self.sequences / speed)
