"""Batches one step ahead: while a device computes, a thread of the host makes what it will want next."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from train_jobs.engine.loop.task import Batch

Cursor = dict[str, int]
Made = tuple[Batch, Cursor]


class Ahead:
    """`make`, called for the next cursor before that is asked for.

    A batch is a function of its cursor, so who makes it when changes nothing. An error comes when its batch is due.

    Args:
        make: cursor -> batch and the cursor after it; called by one thread at a time.
    """

    def __init__(self, make: Callable[[Cursor], Made]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next: tuple[Cursor, Future[Made]] | None = None

    def __call__(self, cursor: Cursor) -> Made:
        """The batch at `cursor`, and the cursor after it."""
        expected, self._next = self._next, None
        if expected is None or expected[0] != cursor:
            expected = cursor, self._thread.submit(self._make, cursor)
        batch, following = expected[1].result()
        self._next = following, self._thread.submit(self._make, following)
        return batch, following

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *problem: object) -> None:
        """Waits for the batch in hand, which nobody will want."""
        self._thread.shutdown(cancel_futures=True)
