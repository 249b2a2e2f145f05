"""Reader of metrics.jsonl: a line per report, {"step": 120, "time": 1763712000.0, "metrics": {"train_loss": 6.81}}.

A command of the user's own may write the short form {"step": 120, "train_loss": 6.81}.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_reports(path: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each complete report of a metrics file, with the byte offset after it; skip incomplete lines.

    Args:
        path: a metrics.jsonl, which a job may be writing.
        offset: byte to start from: 0, or an offset that was yielded before.
    """
    with path.open("rb") as stream:
        stream.seek(offset)
        for line in stream:
            if not line.endswith(b"\n"):
                return  # still being written; a later call starts at the same offset
            offset += len(line)
            try:
                report = json.loads(line)
            except ValueError:
                continue  # a machine died while writing this line, and the next attempt appended to it
            if (complete := full_report(report, os.fstat(stream.fileno()).st_mtime)) is not None:
                yield offset, complete


def full_report(report: Any, now: float) -> dict[str, Any] | None:
    """Return a report with all its fields; None: it is no report. Commands of users may write the short form.

    Args:
        report: a line of the file.
        now: time of a report without one, seconds since the epoch.
    """
    if not isinstance(report, dict) or not isinstance(report.get("step"), int):
        return None
    if isinstance(report.get("metrics"), dict) and isinstance(report.get("time"), int | float):
        return report
    values = report.get("metrics", {key: value for key, value in report.items() if key not in {"step", "time"}})
    if not isinstance(values, dict):
        return None
    metrics = {key: value for key, value in values.items() if type(value) in {int, float}}
    written = report.get("time")
    when = float(written) if isinstance(written, int | float) else now
    return {"step": report["step"], "time": when, "metrics": metrics}
