"""Tells from a run's reports that its training loss is running away."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

WINDOW = 5  # reports; the median of so many does not mind one bad batch
RISE = 0.5  # nats above the best so far: a BERT that recovers from a spike has seldom risen as far for as long


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
