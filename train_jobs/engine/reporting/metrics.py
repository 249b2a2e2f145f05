"""metrics.jsonl, the only file that a job writes its metrics to; copies of it in other stores; and the progress line.

One line per report: {"step": 120, "time": 1763712000.0, "metrics": {"train_loss": 6.81, ...}}. The module
`train_jobs.tools.mirror` copies the file to MLflow in a thread; its failures never stop the job.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, Protocol, TextIO, TypeVar

from train_jobs.artifacts.files import write_text
from train_jobs.artifacts.host import RunClock
from train_jobs.artifacts.lineage import METRICS_FILE
from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.engine.runtime.storage import storage_errors


class MetricsMirror(Protocol):
    """Copies metrics to a tracking service while a job trains."""

    def start(self) -> None:
        """Start copying."""
        ...

    def close(self, *, completed: bool) -> None:
        """Copy the rest and stop; end the run at the service if the job completed."""
        ...


class MetricsLog:
    """Writer of metrics.jsonl.

    Args:
        path: the file. None, on all processes but the main one: every call does nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._clock = RunClock.inherited()
        self._stream: TextIO | None = None

    def open(self, *, from_step: int) -> None:
        """Open the file for appending, and drop reports after `from_step`.

        Args:
            from_step: step of the checkpoint that the run resumes from.

        Raises:
            StorageError: the file cannot be written.
        """
        if self.path is None:
            return
        with storage_errors(self.path.parent, METRICS_FILE):
            # The resumed run repeats the steps after its checkpoint: without this their reports would be in the file
            # twice. The file is replaced atomically, so a kill here loses no report.
            if self.path.exists():
                kept = [report for _, report in read_reports(self.path) if report["step"] <= from_step]
                write_text(self.path, "".join(json.dumps(report) + "\n" for report in kept))
            self._stream = self.path.open("a", encoding="utf-8")

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line and flush it to the operating system.

        Args:
            step: optimizer step.
            metrics: name -> value.

        Raises:
            StorageError: the file cannot be written.
        """
        if self._stream is None or self.path is None:
            return
        line = json.dumps({"step": step, "time": self._clock.now(), "metrics": dict(metrics)})
        with storage_errors(self.path.parent, METRICS_FILE):
            self._stream.write(line + "\n")
            self._stream.flush()

    def report_once(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line unless an earlier report of the step has all of these values.

        Args:
            step: optimizer step.
            metrics: name -> value.

        Raises:
            StorageError: the file cannot be written.
        """
        if self._stream is None or self.path is None:
            return
        wanted = json.dumps(dict(metrics), sort_keys=True)  # as text: NaN differs from itself
        for _, report in read_reports(self.path):
            known = {name: report["metrics"][name] for name in metrics if name in report["metrics"]}
            if report["step"] == step and json.dumps(known, sort_keys=True) == wanted:
                return
        self.report(step, metrics)

    def sync(self) -> None:
        """Sync the file to the disk, so that it contains every report before the next checkpoint."""
        if self._stream is not None:
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Sync and close the file."""
        if self._stream is not None:
            self.sync()
            self._stream.close()
            self._stream = None

    @contextmanager
    def mirrored(self, mirror: MetricsMirror | None, *, from_step: int) -> Iterator[None]:
        """Keep the file open and mirrored during the body; if it raises nothing, the job has completed.

        Args:
            mirror: copies the file to a tracking service. None: no mirror.
            from_step: see `open`.
        """
        self.open(from_step=from_step)
        if mirror:
            mirror.start()
        completed = False
        try:
            yield
            completed = True
        finally:
            self.close()
            if mirror:
                mirror.close(completed=completed)


class ProgressLine:
    """Progress output: one line, rewritten in place, on a terminal; one line per report elsewhere.

    Args:
        total_steps: optimizer steps of the run.
        stream: text stream to write to. None: stdout.
    """

    def __init__(self, total_steps: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self._total = total_steps
        self._open = False

    def step(self, step: int, metrics: Mapping[str, float], *, seconds_left: float) -> None:
        """Print a training report.

        Args:
            step: optimizer step.
            metrics: report with train_loss, learning_rate, sequences_per_second and optionally mfu.
            seconds_left: estimated seconds until the end of training.
        """
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
        """Print another text on a separate line."""
        self._stream.write(("\n" if self._open else "") + text + "\n")
        self._stream.flush()
        self._open = False


def clock(seconds: float) -> str:
    """Return a duration as `1:02:03` or `2:03`."""
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Sink(Protocol):
    """Store that metrics are copied to."""

    def catch_up(self) -> int:
        """Copy all values that the store does not have yet; return their number."""


POLL_SECONDS = 0.05  # between two looks at a thread that ends
SinkT = TypeVar("SinkT", bound=Sink)


class SinkThread(Generic[SinkT]):
    """Daemon thread that keeps a sink up to date.

    Args:
        name: name of the thread.
        connect: creates the sink, again after each failure; returns None if that is not possible yet.
        failure: beginning of the warning when the sink fails.
        every_seconds: interval of copying.
    """

    def __init__(
        self, name: str, connect: Callable[[], SinkT | None], *, failure: str, every_seconds: float = 5.0
    ) -> None:
        self._connect, self._failure, self._every = connect, failure, every_seconds
        self._sink: SinkT | None = None
        self._finish: Callable[[SinkT], None] | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(
        self,
        timeout: float = 60.0,
        *,
        finish: Callable[[SinkT], None] | None = None,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Copy a last time and end the thread, if it was started.

        Args:
            timeout: maximum seconds to wait; then the daemon thread is abandoned, so a dead service cannot block a job.
            finish: called with the sink after the last copy.
            busy: whether the thread does something that always ends; that time does not count.
        """
        self._finish = finish
        self._done.set()
        until = time.monotonic() + timeout
        while self._thread.is_alive() and time.monotonic() < until:
            self._thread.join(min(timeout, POLL_SECONDS))
            if busy():
                until = time.monotonic() + timeout

    def _work(self) -> None:
        warned = last = False
        while not last:
            last = self._done.wait(self._every)
            try:
                self._catch_up(last=last)
                warned = False
            except Exception as problem:  # no failure of a disk, a store or a network may stop training
                self._sink = None  # the new sink reads which values the store already has
                if not warned:
                    print(f"warning: {self._failure}: {problem}", file=sys.stderr)
                warned = True

    def _catch_up(self, *, last: bool) -> None:
        self._sink = self._sink or self._connect()
        if self._sink is None:
            return
        self._sink.catch_up()
        if last and self._finish is not None:
            self._finish(self._sink)
