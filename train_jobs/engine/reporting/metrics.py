"""metrics.jsonl: the one place that a job writes its metrics to, and the lines that a person reads.

One line a report: {"step": 120, "time": 1763712000.0, "metrics": {"train_loss": 6.81, ...}}. `train_jobs.tools.mirror`
copies the file to MLflow; nothing else does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from train_jobs.artifacts.files import write_text
from train_jobs.artifacts.lineage import METRICS_FILE
from train_jobs.engine.runtime.storage import storage_errors


class MetricsLog:
    """Appends reports to metrics.jsonl.

    Args:
        path: the file; None (any process but the main one) makes every call do nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._stream: TextIO | None = None

    def open(self, *, from_step: int) -> None:
        """Opens the file for appending, cut back to what was reported up to `from_step`.

        Reports past the checkpoint that a run resumes from will be made again.
        """
        if self.path is None:
            return
        with storage_errors(self.path.parent, METRICS_FILE):
            if self.path.exists():
                kept = [report for _, report in read_reports(self.path) if report["step"] <= from_step]
                write_text(self.path, "".join(json.dumps(report) + "\n" for report in kept))
            self._stream = self.path.open("a", encoding="utf-8")

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends one line and hands it to the operating system."""
        if self._stream is None or self.path is None:
            return
        line = json.dumps({"step": step, "time": time.time(), "metrics": dict(metrics)})
        with storage_errors(self.path.parent, METRICS_FILE):
            self._stream.write(line + "\n")
            self._stream.flush()

    def sync(self) -> None:
        """Forces the lines to the disk, so that the file is never behind a checkpoint."""
        if self._stream is not None:
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Syncs and closes."""
        if self._stream is not None:
            self.sync()
            self._stream.close()
            self._stream = None


def read_reports(path: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each whole report of a metrics file from byte `offset` on, with the offset behind it; a torn last line waits."""
    with path.open("rb") as stream:
        stream.seek(offset)
        for line in stream:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            try:
                report = json.loads(line)
            except ValueError:
                continue  # torn by a machine's death and then appended to
            yield offset, report


class Progress:
    """The line that a person watches: rewritten in place on a terminal, one line a report elsewhere."""

    def __init__(self, total_steps: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self._total = total_steps
        self._open = False

    def step(self, step: int, metrics: Mapping[str, float], *, seconds_left: float) -> None:
        """Shows a training report."""
        width = len(str(self._total))
        text = (
            f"step {step:>{width}}/{self._total}  loss {metrics['train_loss']:.4f}"
            f"  lr {metrics['learning_rate']:.2e}  {metrics['sequences_per_second']:.1f} sequences/s"
            f"{f'  MFU {mfu:.0%}' if (mfu := metrics.get('mfu')) is not None else ''}  eta {clock(seconds_left)}"
        )
        if self._live:
            self._stream.write(f"\r\x1b[K{text}")
            self._open = True
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def line(self, text: str) -> None:
        """Shows anything else on a line of its own."""
        self._stream.write(("\n" if self._open else "") + text + "\n")
        self._stream.flush()
        self._open = False


def clock(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
