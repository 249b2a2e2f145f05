"""Whatever metrics.jsonl is copied to, by a thread of its own; what goes wrong there never stops the job."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Sink(Protocol):
    """A place that metrics are copied to."""

    def catch_up(self) -> int:
        """Copies what it does not hold yet; returns how many values that were."""
        ...


SinkT = TypeVar("SinkT", bound=Sink)


class SinkThread(Generic[SinkT]):
    """Keeps a sink up to date in the background.

    Args:
        name: of the thread.
        connect: makes the sink, and makes it anew after a failure; None as long as there is none to be had.
        trouble: how a warning begins when the sink fails.
        every_seconds: how often it catches up.
    """

    def __init__(
        self, name: str, connect: Callable[[], SinkT | None], *, trouble: str, every_seconds: float = 5.0
    ) -> None:
        self._connect, self._trouble, self._every = connect, trouble, every_seconds
        self._sink: SinkT | None = None
        self._finish: Callable[[SinkT], None] | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Starts."""
        self._thread.start()

    def stop(self, timeout: float = 60.0, *, finish: Callable[[SinkT], None] | None = None) -> None:
        """Catches up for the last time and ends, if it was started.

        Args:
            timeout: seconds that it may take.
            finish: called with the sink once it holds everything.
        """
        self._finish = finish
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _work(self) -> None:
        warned = last = False
        while not last:
            last = self._done.wait(self._every)
            try:
                self._catch_up(last=last)
                warned = False
            except Exception as problem:  # whatever a disk, a store or a network does, training goes on
                self._sink = None  # what it holds is found out again
                if not warned:
                    print(f"warning: {self._trouble}: {problem}", file=sys.stderr)
                warned = True

    def _catch_up(self, *, last: bool) -> None:
        self._sink = self._sink or self._connect()
        if self._sink is None:
            return
        self._sink.catch_up()
        if last and self._finish is not None:
            self._finish(self._sink)
