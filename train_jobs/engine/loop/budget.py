"""The hours that a run may train."""

from __future__ import annotations

import time
from collections.abc import Callable

HOUR = 3600.0


class TimeBudget:
    """Time spent in training, over all attempts of a run: between two of them no time passes.

    Args:
        hours: the budget. None: there is none, and no time is taken.
        clock: seconds, from any beginning.
    """

    def __init__(self, hours: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = None if hours is None else hours * HOUR
        self._clock = clock
        self._began = clock()

    def start(self, spent: float) -> None:
        """An attempt begins.

        Args:
            spent: seconds that those before it have trained, as far as their checkpoints know.
        """
        self._began = self._clock() - spent

    def spent(self) -> float:
        """Seconds so far: on this process, whose clock is no other's. Without a budget 0."""
        return 0.0 if self._seconds is None else self._clock() - self._began

    def share(self, spent: float) -> float:
        """The share of the budget that `spent` seconds are; past it more than 1, without one 0."""
        return 0.0 if self._seconds is None else spent / self._seconds

    def seconds_left(self, spent: float, wanted: float) -> float:
        """`wanted` seconds, or what the budget leaves of them."""
        return wanted if self._seconds is None else min(wanted, max(self._seconds - spent, 0.0))
