"""What the engine knows of what is trained: a batch, and a task that turns batches into losses."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, Self, TypeVar

import torch


class Batch(Protocol):
    """What a process takes of one global batch; at least one sequence."""

    def __len__(self) -> int: ...
    def slice(self, start: int, stop: int) -> Self:
        """Sequences start to stop."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens in it, padding left out."""
        ...


BatchT = TypeVar("BatchT", bound=Batch)


class Task(Protocol[BatchT]):
    """What is trained, on batches of one type."""

    @property
    def model(self) -> torch.nn.Module:
        """Its weights are trained and saved."""
        ...

    def flops(self, sequences: float, tokens: float) -> float:
        """Floating-point operations of forward and backward pass over sequences with so many tokens together."""
        ...

    def train_batch(self, cursor: dict[str, int]) -> tuple[BatchT, dict[str, int]]:
        """This process's share of the next global batch, and the cursor after it."""
        ...

    def accumulating(self) -> AbstractContextManager[None]:
        """Return the context of all forward and backward passes of one step; the model may add to `.grad` in place."""
        ...

    def counts(self, batch: BatchT) -> list[float]:
        """What each term of the loss is averaged over, in this share (masked tokens, pairs, micro batches, ...)."""
        ...

    def loss(self, batch: BatchT, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """This micro batch's part of the global batch's loss, and sums to report.

        Args:
            totals: `counts` summed over the global batch.

        Returns:
            The scalar whose sum over micro batches and processes is the loss, and a float vector of sums.
        """
        ...

    def largest_batch(self, sequences: int) -> BatchT:
        """So many made-up sequences, which need as much memory as any of the data could."""
        ...

    def metrics(self, sums: list[float]) -> dict[str, float]:
        """Turns sums over any number of global batches into metrics, `loss` among them."""
        ...

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """Metrics on held-out data, `loss` among them, the same on every process.

        Args:
            micro_batch_size: sequences at once.
        """
        ...
