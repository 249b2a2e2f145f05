"""When a checkpoint is due, and which of them are kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from train_jobs.artifacts.commit import Commit
from train_jobs.config import CheckpointConfig

MINUTE = 60.0


class Cadence:
    """When a checkpoint is due.

    Args:
        config: steps, minutes, how many of the best.
        clock: seconds, from any beginning.
    """

    def __init__(self, config: CheckpointConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._multiples = [every for every in (config.every, config.keep_every) if every]
        self._seconds = math.inf if config.every_minutes is None else config.every_minutes * MINUTE
        self.keep_best = config.keep_best
        self._clock = clock
        self._started = clock()

    def restart(self) -> None:
        """The minutes count from now."""
        self._started = self._clock()

    def by_clock(self) -> bool:
        """True once the minutes are over: on this process, whose clock is no other's."""
        return self._clock() - self._started >= self._seconds

    def at_step(self, step: int) -> bool:
        """True at the steps that are saved whatever the clock says."""
        return any(step % every == 0 for every in self._multiples)

    def is_best(self, loss: float, best: Sequence[float]) -> bool:
        """True if a validation's loss is one of the lowest.

        Args:
            loss: of the validation.
            best: the lowest before it, in rising order.
        """
        count = self.keep_best
        return math.isfinite(loss) and count > 0 and (len(best) < count or loss < best[count - 1])


@dataclass(frozen=True)
class Retention:
    """Which checkpoints are kept: all that any of the rules keeps.

    Args:
        last: how many of the newest.
        best: how many of those with the lowest validation loss.
        every: all whose step is a multiple of this.
    """

    last: int
    best: int = 0
    every: int | None = None

    def keeps(self, found: Sequence[Commit]) -> set[int]:
        """Steps of those that are kept. Of equal losses the earlier is the lower."""
        newest = sorted(one.step for one in found)[-self.last :]
        ranked = sorted((one.validation_loss, one.step) for one in found if one.validation_loss is not None)
        for_good = [one.step for one in found if self.every and one.step % self.every == 0]
        return {*newest, *(step for _, step in ranked[: self.best]), *for_good}
