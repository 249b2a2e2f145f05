"""Monitor the reports of a run, and post events to the user's webhook.

It warns of a diverging loss, of a slow rank, and of lines that are no reports.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.run_progress import PaceWatch
from orchestrator.runs.status import RunState
from orchestrator.specs.notification import NotifySpec
from orchestrator.support.notify import message, post
from train_jobs.artifacts.lineage import METRICS_FILE
from train_jobs.artifacts.metrics_file import is_ignored, read_lines
from train_jobs.artifacts.redaction import protect

WINDOW = 5  # reports; their median is robust to one bad batch
RISE = 0.5  # nats above the best so far: a BERT that recovers from a spike has seldom risen that much for so long
LOSS = "train_loss"
EXAMPLE = '{"step": 1, "loss": 2.5}'  # of a report, in its short form
EVENTS = {RunState.COMPLETED: "completed", RunState.FAILED: "failed", RunState.PREEMPTED: "failed"}


class RunWatch:
    """Monitor of one run: reads its reports as they are written, and posts messages.

    Args:
        run: its folder.
        handle: name of the run in messages.
        notify: events to post.
        steps: optimizer steps of the whole run.
        pace_seconds: least time between two reads.
    """

    def __init__(
        self, run: RunFolder, handle: str, notify: NotifySpec, steps: int | None, pace_seconds: float = 1.0
    ) -> None:
        self._run, self._handle, self._notify, self._steps = run, handle, notify, steps
        # in memory alone, because the address suffices to post; a job in this process gets an environment without it
        self._address = os.environ.get(notify.variable)
        if self._address:
            protect([self._address])
        self._pace_seconds = pace_seconds
        self._polled = 0.0
        self._warned = False
        # one worker: messages arrive in the order of events; a thread: a slow server must not delay the supervisor
        self._webhook = ThreadPoolExecutor(max_workers=1, thread_name_prefix="webhook")
        self._posts: list[Future[bool]] = []
        self.begin()

    def begin(self, started: float = 0.0) -> None:
        """Start over, for a new attempt: it repeats the reports past its checkpoint.

        Args:
            started: its start in seconds; earlier reports do not count for the pace of its ranks.
        """
        self._started = started
        self._loss, self._pace = LossWatch(), PaceWatch()
        self._offset = 0
        self._step: int | None = None
        self._lines = IgnoredLines()

    def poll(self, *, final: bool = False) -> str | None:
        """Return the present problems after reading new reports: of the loss, a slow rank, and lines; None without any.

        Args:
            final: read in any case; without it, at most once in `pace_seconds`.
        """
        if final or time.monotonic() - self._polled >= self._pace_seconds:
            self._polled = time.monotonic()
            warning = self._read()
            if warning and not self._warned:
                self._warned = True
                self._post("diverging", warning)
        return "; ".join(filter(None, (self._loss.warning, self._pace.warning, self._lines.warning))) or None

    def ended(self, state: RunState, reason: str | None) -> None:
        """Begin to post how the run ended; `close` waits for it."""
        if event := EVENTS.get(state):
            self._read()
            self._post(event, reason)

    def close(self) -> None:
        """Wait until all messages are sent; a server that hangs is given up after half a minute."""
        wait(self._posts)  # the supervisor ends after this call, and its threads with it

    def _read(self) -> str | None:
        """Read new reports; return the last problem of the loss among them."""
        path = self._run.metrics
        warning = None
        with suppress(FileNotFoundError):
            if path.stat().st_size < self._offset:
                self.begin(self._started)  # truncated to its checkpoint by a job that resumed
            for behind, line, report in read_lines(path, self._offset):
                self._offset = behind
                self._lines.add(line, report)
                if report is None:
                    continue
                self._step, metrics = report["step"], report["metrics"]
                if report["time"] >= self._started:
                    self._pace.add(report["time"], metrics)
                if LOSS in metrics:
                    warning = self._loss.add(report["step"], float(metrics[LOSS])) or warning
        return warning

    def _post(self, event: Any, reason: str | None) -> None:
        """Post a message in the background: a webhook that hangs must not stop the supervisor."""
        if event not in self._notify.on or not self._address:
            return
        document = message(
            run=self._run.name,
            handle=self._handle,
            event=event,
            reason=reason,
            step=self._step,
            steps=self._steps,
        )
        anywhere = self._notify.allow_private
        self._posts.append(self._webhook.submit(post, self._address, document, allow_private=anywhere))


class IgnoredLines:
    """Count of the lines that are no reports, which a command of a user may write without noticing."""

    def __init__(self) -> None:
        self._lines = self._ignored = self._first = 0

    def add(self, line: bytes, report: dict[str, Any] | None) -> None:
        """Add a complete line of the metrics file and its report."""
        if is_ignored(line, report):
            self._ignored += 1
            self._first = self._first or self._lines + 1
        self._lines += line.endswith(b"\n")

    @property
    def warning(self) -> str | None:
        """The warning, without the text of the lines, which may be private; None without such lines."""
        if not self._ignored:
            return None
        count = "1 line is not a report" if self._ignored == 1 else f"{self._ignored} lines are not reports"
        return f"{METRICS_FILE}: {count} such as {EXAMPLE}; the first one is line {self._first}"


class LossWatch:
    """Divergence check of one loss, report by report.

    The loss diverges if it is not finite, or if its median over the last 5 reports is more than 0.5 nats above the
    lowest such median so far.
    """

    def __init__(self) -> None:
        self.warning: str | None = None
        """The problem in one line; None: the loss does not diverge."""
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._best = (0, math.inf)

    def add(self, step: int, loss: float) -> str | None:
        """Add a report.

        Args:
            step: optimizer step of the report.
            loss: in nats.

        Returns:
            The warning.
        """
        self.warning = self._problem(step, loss)
        return self.warning

    def _problem(self, step: int, loss: float) -> str | None:
        if not math.isfinite(loss):
            return f"the loss of step {step} is {loss}"
        self._recent.append(loss)
        if len(self._recent) < WINDOW:
            return None
        now = sorted(self._recent)[WINDOW // 2]
        best_step, best = self._best = min(self._best, (step, now), key=lambda pair: pair[1])
        if now <= best + RISE:
            return None
        return f"the loss rises: {now:.3f} around step {step}, {best:.3f} around step {best_step}"
