"""The interface between the training loop and a task: batches, losses and metrics; and the prefetching of batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Generic, Protocol, Self, TypeVar

import torch


class TrainingBatch(Protocol):
    """A process's share of one global batch; at least one sequence."""

    def __len__(self) -> int: ...
    def slice(self, start: int, stop: int) -> Self:
        """Return the sequences from start to stop."""

    @property
    def tokens(self) -> int:
        """Number of tokens, without padding."""


BatchT = TypeVar("BatchT", bound=TrainingBatch)


class TrainingTask(Protocol[BatchT]):
    """Model, data and loss of a training run, on batches of one type."""

    @property
    def model(self) -> torch.nn.Module:
        """The model whose weights are trained and saved."""

    def flops(self, sequences: float, tokens: float) -> float:
        """Return the floating-point operations of the forward and backward pass.

        Args:
            sequences: number of sequences.
            tokens: number of all their tokens, without padding.
        """

    def train_batch(self, cursor: dict[str, int]) -> tuple[BatchT, dict[str, int]]:
        """Return this process's share of a global batch, and the cursor of the next one.

        Args:
            cursor: position in the data, JSON-safe, the same on every process; empty at the start. The batch must only
                depend on it, on rank and world size, so that a resumed run sees the same data.
        """

    def accumulating(self) -> AbstractContextManager[None]:
        """Return the context of all forward and backward passes of one step; the model may add to `.grad` in place."""

    def counts(self, batch: BatchT) -> list[float]:
        """Return the denominator of each term of the loss in this share (masked tokens, pairs, micro batches, ...)."""

    def loss(self, batch: BatchT, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a micro batch's part of the loss of the global batch, and sums to report.

        Args:
            batch: the micro batch.
            totals: `counts` summed over the global batch, float32 [terms], on the device; 1 where the sum is 0.

        Returns:
            A 0-dim tensor whose sum over micro batches and processes is the loss, and a float vector of sums.
        """

    def largest_batch(self, sequences: int) -> BatchT:
        """Return made-up sequences that need as much memory as any of the data could."""

    def metrics(self, sums: list[float]) -> dict[str, float]:
        """Return metrics, including `loss`, from sums over any number of global batches."""

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """Return metrics on held-out data, including `loss`, the same on every process.

        Args:
            micro_batch_size: sequences per forward pass.
        """


Cursor = dict[str, int]
MadeT = TypeVar("MadeT")


DEPTH = 3  # a report, a validation or a slow read of one batch then delays no step


class Prefetcher(Generic[MadeT]):
    """Prefetcher of the next batches, in a thread of the host, while the device computes.

    A batch depends only on its cursor, so reading it earlier does not change it. An error is raised when the batch is
    due.

    Args:
        make: function that returns the batch at a cursor and the next cursor; called by one thread at a time.
        depth: most batches that are made before they are due.
    """

    def __init__(self, make: Callable[[Cursor], tuple[MadeT, Cursor]], depth: int = DEPTH) -> None:
        self._make, self._depth = make, depth
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._due: Cursor | None = None
        self._made: deque[Future[tuple[MadeT, Cursor]]] = deque()

    def __call__(self, cursor: Cursor) -> tuple[MadeT, Cursor]:
        """Return the batch at `cursor`, and the cursor after it."""
        if self._due != cursor:
            for waiting in self._made:
                waiting.cancel()
            self._made.clear()
        # Forgotten first: if making the batch raised, a second call must try again and not return the old error.
        self._due = None
        first = self._made.popleft() if self._made else self._thread.submit(self._make, cursor)
        try:
            while len(self._made) < self._depth:
                self._made.append(self._thread.submit(self._after, self._made[-1] if self._made else first))
            batch, following = first.result()
        except BaseException:
            self._made.clear()
            raise
        self._due = following
        return batch, following

    def _after(self, before: Future[tuple[MadeT, Cursor]]) -> tuple[MadeT, Cursor]:
        """Make the batch after another one, which the same thread has made already."""
        return self._make(before.result()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        """Wait for the batch that is being made; all that were made are discarded."""
        self._thread.shutdown(cancel_futures=True)
