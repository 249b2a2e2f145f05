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

    Args:
        path: a metrics.jsonl, which a job may be writing.
        offset: byte to start from: 0, or an offset that was yielded before.
    """
    for behind, _, report in read_lines(path, offset):
        if report is not None:
            yield behind, report


def read_lines(path: Path, offset: int = 0) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    """Yield each complete line of a metrics file: the byte offset after it, the line, and its report or None.

    A last line without its end is complete if it is a report: no part of a JSON object is one.

    Args:
        path: see `read_reports`.
        offset: see `read_reports`.
    """
    with path.open("rb") as stream:
        stream.seek(offset)
        for line in stream:
            report = parse_report(line, os.fstat(stream.fileno()).st_mtime)
            if report is None and not line.endswith(b"\n"):
                return  # still being written; a later call starts at the same offset
            offset += len(line)
            yield offset, line, report


def is_ignored(line: bytes, report: dict[str, Any] | None) -> bool:
    """Return whether a line is not blank, but has no step, or has values of which none is a number.

    Args:
        line: a complete line of a metrics file.
        report: its report.
    """
    if report is None:
        return bool(line.strip())
    return not report["metrics"] and bool(_values(json.loads(line)))


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
    if not isinstance(report, dict):
        return None
    step, values = report.get("step"), _values(report)
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if type(step) is not int or not isinstance(values, dict):  # a boolean is an int to `isinstance`
        return None
    # a whole number in JSON may have any number of digits
    metrics = {
        key: value
        for key, value in values.items()
        if type(value) is float or (type(value) is int and abs(value) <= LARGEST_NUMBER)
    }
    own = report.get("time")
    when = float(own) if isinstance(own, int | float) and 0 <= own < LAST_TIME else written
    return {"step": step, "time": when, "metrics": metrics}


def _values(report: dict[str, Any]) -> Any:
    """Return the values of a report in the full or the short form."""
    return report.get("metrics", {key: value for key, value in report.items() if key not in {"step", "time"}})
