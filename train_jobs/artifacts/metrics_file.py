"""Metrics files of a run, with a line per report: {"step": 120, "time": 1763712000.0, "metrics": {"train_loss": 6.81}}.

Next to metrics.jsonl are system/node-0.jsonl with the load of each machine and, of a fine-tuning with several seeds or
tasks, a metrics.jsonl for each of them.

A command of the user's own may write the short form {"step": 120, "train_loss": 6.81}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SYSTEM_FOLDER = "system"
"""Folder of the metrics files of the machines, below that of metrics.jsonl."""
SYSTEM_FILE = "node-{}.jsonl"
"""Name of the metrics file of a machine, by its number."""
LARGEST_NUMBER = sys.float_info.max
LAST_TIME = 253402300800  # start of the year 10000, which no date of Python reaches


def metric_files(metrics: Path) -> dict[Path, str]:
    """Return all metrics files of a run that exist, each with the prefix of its names in a tracking service.

    Args:
        metrics: metrics.jsonl of the run.
    """
    folder = metrics.parent
    found = {metrics: ""} if metrics.exists() else {}
    found |= dict.fromkeys(sorted(folder.glob(f"{SYSTEM_FOLDER}/{SYSTEM_FILE.format('*')}")), "")
    parts = sorted([*folder.glob(f"*/{metrics.name}"), *folder.glob(f"*/*/{metrics.name}")])
    return found | {path: f"{path.parent.relative_to(folder).as_posix()}/" for path in parts}


def read_reports(path: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each report of a metrics file, with the byte offset after it; skip what is no report.

    A last line without its end counts if it is complete: no part of a JSON object is one.

    Args:
        path: a metrics.jsonl, which a job may be writing.
        offset: byte to start from: 0, or an offset that was yielded before.
    """
    with path.open("rb") as stream:
        stream.seek(offset)
        for line in stream:
            report = parse_report(line, os.fstat(stream.fileno()).st_mtime)
            offset += len(line)
            if report is not None:
                yield offset, report


def parse_report(line: bytes, written: float) -> dict[str, Any] | None:
    """Return the report in a line of a metrics file with all its fields; None: the line is no report.

    Such a line is still being written, or was when its machine died, or comes from a command of a user.

    Args:
        line: the line.
        written: time of a report without one, seconds since the epoch.
    """
    try:
        return full_report(json.loads(line), written)
    except (ValueError, RecursionError):
        return None


def full_report(report: Any, written: float) -> dict[str, Any] | None:
    """Return a report with all its fields; None: it is no report. Commands of users may write the short form.

    Args:
        report: a line of the file.
        written: time of a report without a possible one, seconds since the epoch.
    """
    if not isinstance(report, dict) or not isinstance(report.get("step"), int):
        return None
    values = report.get("metrics", {key: value for key, value in report.items() if key not in {"step", "time"}})
    if not isinstance(values, dict):
        return None
    # a whole number in JSON may have any number of digits
    metrics = {
        key: value
        for key, value in values.items()
        if type(value) is float or (type(value) is int and abs(value) <= LARGEST_NUMBER)
    }
    own = report.get("time")
    when = float(own) if isinstance(own, int | float) and 0 <= own < LAST_TIME else written
    return {"step": report["step"], "time": when, "metrics": metrics}
