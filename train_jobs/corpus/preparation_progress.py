"""How far the preparation of a text is: a line now and then, and the figures of the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Report = Callable[[str], None]
Figures = Callable[[int, Mapping[str, float]], None]
SECONDS_BETWEEN_LINES = 10.0
LEAST_SECONDS = 1e-3
MB = 1e6


class Progress:
    """Told bytes and documents, it tells people.

    Args:
        say: gets lines of text.
        figures: gets `parts` and metrics, whenever a part is done; None: nobody wants them.
        every: seconds between two lines.
    """

    def __init__(self, say: Report, figures: Figures | None = None, *, every: float = SECONDS_BETWEEN_LINES) -> None:
        self.say = say
        self._figures, self._every = figures, every
        self.parts = 0
        """Parts done in all steps, now and before."""
        self.begin("", total=0, done=0)

    def begin(self, step: str, *, total: int, done: int) -> None:
        """A step.

        Args:
            step: its name.
            total: bytes that are left to do.
            done: parts of it that were done before.
        """
        self._step, self._total = step, total
        self.parts += done
        self._bytes = self._documents = 0
        self._started = self._told = time.monotonic()

    def advance(self, count: int, documents: int) -> None:
        """So many bytes and documents more."""
        self._bytes += count
        self._documents += documents
        if time.monotonic() - self._told > self._every:
            self._tell()

    def part_done(self) -> None:
        """A part is done: its figures."""
        self.parts += 1
        if self._figures is not None:
            self._figures(
                self.parts,
                {
                    f"{self._step}_documents": self._documents,
                    f"{self._step}_bytes": self._bytes,
                    f"{self._step}_mb_per_second": self._speed() / MB,
                },
            )

    def end(self) -> None:
        """The step is done: a line, if it took longer than one."""
        if time.monotonic() - self._started > self._every:
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        speed = self._speed()
        left = max(self._total - self._bytes, 0) / speed if speed else 0
        self.say(
            f"{self._step}: {_megabytes(self._bytes)} of {_megabytes(self._total)} MB, {self._documents:,} documents,"
            f" {speed / MB:.1f} MB/s, eta {_clock(left)}"
        )

    def _speed(self) -> float:
        return self._bytes / max(time.monotonic() - self._started, LEAST_SECONDS)


def _megabytes(count: int) -> str:
    return f"{count / MB:,.1f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
