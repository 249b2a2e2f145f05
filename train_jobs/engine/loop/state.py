"""State of a training run, and measurements since its last report.

Both are part of a checkpoint, so a resumed run reports the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from train_jobs.engine.runtime.distributed import World


@dataclass
class LoopState:
    """State of a training loop; all of it is part of a checkpoint."""

    micro_batch_size: int | None
    """Sequences in one pass; less than configured after memory has run out. None: not searched yet."""
    step: int = 0
    cursor: dict[str, int] = field(default_factory=dict)
    loss_scale: float = 1.0
    good_steps: int = 0
    skipped: int = 0
    best: list[float] = field(default_factory=list)
    """Validation losses of the checkpoints that are kept as the best, in rising order."""
    stale: int = 0
    """Validations since one was among the best."""
    seconds: float = 0.0
    """Training time over all attempts, in seconds; 0 without a budget."""
    out_of_time: bool = False
    """The budget is used up, and the current step is the last one."""


@dataclass(frozen=True)
class Agreement:
    """Values that all processes agree on before a step."""

    totals: torch.Tensor
    """The task's counts over the global batch."""
    tokens: float
    """Of the global batch, padding left out."""
    stop: bool
    """Some process received a request to stop."""
    checkpoint_due: bool
    """A checkpoint is due by the main process's clock, and none is being written."""
    seconds: float
    """Training time on the main process's clock."""


@dataclass(frozen=True)
class Differentiated:
    """Result of the forward and backward pass over a global batch; the gradients are in their buffer."""

    sums: torch.Tensor
    """Sums of the task over this process's share."""
    loss: torch.Tensor
    """Of the global batch."""
    norm: torch.Tensor
    """Of the gradients of all processes, before clipping."""
    finite: bool
    """Whether loss and gradients are finite; otherwise they are useless."""


_PLAIN = (
    "steps",
    "seconds",
    "data_seconds",
    "tokens",
    "norms",
)  # fields that are equal on all processes, or reported by rank 0

Flops = Callable[[float, float], float]


@dataclass
class Meter:
    """Sums since the last report, of this process alone."""

    sums: torch.Tensor | None = None
    """float64, on the device."""
    steps: int = 0
    seconds: float = 0.0
    data_seconds: float = 0.0
    """Of these, spent waiting for batches."""
    tokens: float = 0.0
    """Of all processes, padding left out."""
    norms: float = 0.0
    """Gradient norms before clipping."""

    def add(
        self, sums: torch.Tensor | None, seconds: float, *, data_seconds: float, tokens: float, norm: float
    ) -> None:
        """Add one optimizer step; a skipped one took time but has no finite sums (`sums=None`)."""
        self.seconds += seconds
        self.data_seconds += data_seconds
        if sums is not None:
            sums = sums.to(torch.float64)
            self.sums = sums if self.sums is None else self.sums + sums
            self.steps += 1
            self.tokens += tokens
            self.norms += norm

    def rates(self, *, global_batch_size: int, flops: Flops, peak_flops: float | None) -> dict[str, float]:
        """Return speed and gradient norm as metrics.

        Args:
            global_batch_size: sequences of a step.
            flops: sequences, their tokens without padding -> floating-point operations.
            peak_flops: per second, of all devices together. None: unknown, and no utilisation is reported.
        """
        sequences = self.steps * global_batch_size
        found = {
            "gradient_norm": self.norms / self.steps,
            "sequences_per_second": sequences / self.seconds,
            "tokens_per_second": self.tokens / self.seconds,
            "data_wait_share": self.data_seconds / self.seconds,
        }
        return (
            found if peak_flops is None else {**found, "mfu": flops(sequences, self.tokens) / self.seconds / peak_flops}
        )

    def gather(self, world: World) -> dict[str, Any]:
        """Return the meters of all processes, JSON-safe; every process must call it."""
        plain = {field: getattr(self, field) for field in _PLAIN}
        if self.sums is None:  # on all processes: they make every step together
            return {**plain, "sums": []}
        rows = torch.zeros((world.size, self.sums.numel()), dtype=torch.float64, device=self.sums.device)
        rows[world.rank] = self.sums
        return {**plain, "sums": world.sum_(rows).tolist()}

    @classmethod
    def restore(cls, stored: Mapping[str, Any], world: World) -> Meter:
        """Return this process's meter from the result of `gather`: bit-exact with as many processes, else a share."""
        rows = [torch.tensor(row, dtype=torch.float64) for row in stored["sums"][world.rank :: world.size]]
        sums = torch.stack(rows).sum(dim=0).to(world.device) if rows else None
        return cls(sums, **{field: stored[field] for field in _PLAIN})
