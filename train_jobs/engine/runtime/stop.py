"""Stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from train_jobs.engine.runtime import eviction

SIGTERM, CTRL_C = "SIGTERM", "Ctrl-C"
STDERR = 2  # the file: what came meanwhile may be in the middle of a print


class Preempted(Exception):  # noqa: N818 - a request, not an error
    """SIGTERM or Ctrl-C came; a checkpoint of the last finished step is committed.

    Args:
        by: which of them.
        kept: what is there instead of a checkpoint, and what to do.
    """

    def __init__(self, by: str = SIGTERM, *, kept: str | None = None) -> None:
        super().__init__(f"stopped by {by}")
        self.by, self.kept = by, kept


@dataclass
class StopRequest:
    """Set by SIGTERM, the first Ctrl-C or an announced eviction; shared with all processes at the next step, so that
    all stop at the same one."""

    asked: bool = False
    interrupted: bool = False
    """By Ctrl-C."""
    _kept: str | None = None
    """What `at_once` says is kept, inside its block."""

    def listen(self) -> None:
        """Makes SIGTERM, Ctrl-C and the machine's word that it is to go a request to stop after the step in hand."""
        signal.signal(signal.SIGTERM, self._note)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as a shell has it for a job in its background
            signal.signal(signal.SIGINT, self._interrupt)
        eviction.listen(self._announced, os.environ)

    def ending(self) -> Preempted:
        """What to raise once all is saved."""
        return Preempted(CTRL_C if self.interrupted else SIGTERM)

    @contextmanager
    def at_once(self, kept: str) -> Iterator[None]:
        """A request breaks the body off where it stands; for work without steps, which leaves what it can go on from.

        Args:
            kept: see `Preempted`.

        Raises:
            Preempted: a request came.
        """
        self._kept = kept
        try:
            self._break_off()
            yield
        finally:
            self._kept = None

    def _break_off(self) -> None:
        if self.asked and self._kept is not None:
            kept, self._kept = self._kept, None  # a second request must not break off the cleaning up
            raise Preempted(self.ending().by, kept=kept)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.asked = True
        self._break_off()

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.asked = self.interrupted = True
        self._break_off()
        os.write(STDERR, b"Ctrl-C: stops after this step; a second Ctrl-C ends it at once\n")

    def _announced(self, event: str) -> None:
        self.asked = True
        print(f"eviction: {event}: stops after this step, with a checkpoint", flush=True)
        if self._kept is not None:
            os.kill(os.getpid(), signal.SIGTERM)  # to the main thread, from this one
