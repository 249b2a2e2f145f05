"""What a supervisor tells while it watches: to the state, whether the loss runs away; to the webhook, what happened."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import deque
from contextlib import suppress
from statistics import median
from typing import Any

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.folder.supervise.endings import Ending
from orchestrator.runs.status import RunState
from orchestrator.specs.sections import NotifySpec
from orchestrator.support.notify import message, post

WINDOW = 5  # reports; their median is robust to one bad batch
RISE = 0.5  # nats above the best so far: a BERT that recovers from a spike has seldom risen as far for as long

LOSS = "train_loss"
LOOK_SECONDS = 1.0
EVENTS = {RunState.COMPLETED: "completed", RunState.FAILED: "failed", RunState.PREEMPTED: "failed"}


class RunWatch:
    """Reads the reports of a run as they come, and tells whom the spec names.

    Args:
        handle: what messages call the run.
        notify: whom to tell what.
    """

    def __init__(self, run: RunFolder, handle: str, notify: NotifySpec, steps: int | None) -> None:
        self._run, self._handle, self._notify, self._steps = run, handle, notify, steps
        self._looked = 0.0
        self._told = False
        self._posts: list[threading.Thread] = []
        self.begin()

    def begin(self) -> None:
        """A new attempt: reports past its checkpoint will be made again."""
        self._loss = LossWatch()
        self._offset = 0
        self._step: int | None = None

    def look(self) -> str | None:
        """What is wrong with the loss, or None; at most once a second, else it has not looked."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return None
        self._looked = time.monotonic()
        wrong = self._read()
        if wrong and not self._told:
            self._told = True
            self._tell("diverging", wrong)
        return wrong

    def ended(self, ending: Ending) -> None:
        """Tells how the run ended, and waits until everything is told."""
        if event := EVENTS.get(ending.state):
            self._read()
            self._tell(event, ending.reason)
        for thread in self._posts:
            thread.join()

    def _read(self) -> str | None:
        path = self._run.metrics
        wrong = None
        with suppress(FileNotFoundError), path.open("rb") as stream:
            if path.stat().st_size < self._offset:
                self.begin()  # cut back by a job that resumed
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                wrong = self._take(line) or wrong
        return wrong

    def _take(self, line: bytes) -> str | None:
        with suppress(ValueError, KeyError, TypeError):
            report = json.loads(line)
            self._step = int(report["step"])
            if LOSS in report["metrics"]:
                return self._loss.add(self._step, float(report["metrics"][LOSS]))
        return None

    def _tell(self, event: Any, reason: str | None) -> None:
        """Posts in the background: a webhook that hangs must not keep the run from being watched."""
        url = os.environ.get(self._notify.variable)
        if event not in self._notify.on or not url:
            return
        document = message(
            run=self._run.name,
            handle=self._handle,
            event=event,
            reason=reason,
            step=self._step,
            steps=self._steps,
        )
        earlier = self._posts[-1] if self._posts else None
        thread = threading.Thread(target=_post_after, args=(earlier, url, document), name="webhook")
        self._posts.append(thread)
        thread.start()


def _post_after(earlier: threading.Thread | None, url: str, document: dict[str, Any]) -> None:
    """Posts in the order of events."""
    if earlier is not None:
        earlier.join()
    post(url, document)


class LossWatch:
    """Watches one loss, report by report.

    Diverging is a loss that is not finite, or whose median over the last 5 reports lies more than 0.5 nats above the
    lowest such median so far.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._best: tuple[int, float] | None = None

    def add(self, step: int, loss: float) -> str | None:
        """Takes a report; returns what is wrong, in one line, or None."""
        if not math.isfinite(loss):
            return f"the loss of step {step} is {loss}"
        self._recent.append((step, loss))
        if len(self._recent) < WINDOW:
            return None
        now = median(value for _, value in self._recent)
        if self._best is None or now < self._best[1]:
            self._best = (step, now)
        best_step, best = self._best
        if now <= best + RISE:
            return None
        return f"the loss rises: {now:.3f} around step {step}, {best:.3f} around step {best_step}"
