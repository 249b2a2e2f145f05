"""Work beside training: done in small steps by a thread that stands back, or by whoever cannot wait for it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

NAME = "checkpoint-writer"
NICE = 19  # the lowest priority there is

T = TypeVar("T")


class Work(Generic[T]):
    """A generator, run to its end by one thread at a time.

    Args:
        steps: does a little between two yields, and returns the result.
    """

    def __init__(self, steps: Generator[None, None, T]) -> None:
        self._steps = steps
        self._outcome: Future[T] = Future()
        self._turn = threading.Lock()
        self._taken_over = threading.Event()

    @property
    def done(self) -> bool:
        """True once it has ended, well or badly."""
        return self._outcome.done()

    def run(self) -> None:
        """Runs it until it ends or somebody takes it over."""
        while not self._taken_over.is_set() and self._step():
            pass

    def finish(self) -> None:
        """Takes over and runs it to its end.

        Just to wait would be to wait at the other thread's priority, on a busy machine for ever: nobody may raise a
        thread's priority again.
        """
        self._taken_over.set()
        while self._step():
            pass

    def result(self) -> T:
        """What it returned.

        Raises:
            BaseException: what it raised.
        """
        return self._outcome.result()

    def _step(self) -> bool:
        """One step; False if that was the last."""
        with self._turn:
            if self.done:
                return False
            try:
                next(self._steps)
            except StopIteration as end:
                self._outcome.set_result(end.value)
            except BaseException as problem:  # whoever asks for the result is to have it
                self._outcome.set_exception(problem)
        return not self.done


class Writer:
    """The thread; it starts with the first work, and a program that ends waits for the last."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=NAME, initializer=_stand_back)

    def start(self, work: Work[T]) -> None:
        """Begins `work`, after all that was begun before."""
        self._thread.submit(work.run)


def _stand_back() -> None:
    """Lowers this thread's priority, where a thread has one of its own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
