"""What has happened since the last report: part of a checkpoint, so that a resumed run reports the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from train_jobs.engine.runtime.distributed import World

_PLAIN = ("steps", "seconds", "data_seconds", "tokens", "norms")  # fields that are the same on all, or rank 0's to tell

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
        """Adds one optimizer step, or None for a skipped one: it took time, and its sums may not be finite."""
        self.seconds += seconds
        self.data_seconds += data_seconds
        if sums is not None:
            sums = sums.to(torch.float64)
            self.sums = sums if self.sums is None else self.sums + sums
            self.steps += 1
            self.tokens += tokens
            self.norms += norm

    def rates(self, *, global_batch_size: int, flops: Flops, peak_flops: float | None) -> dict[str, float]:
        """How fast it went, and how steep: metrics.

        Args:
            global_batch_size: sequences of a step.
            flops: floating-point operations of so many sequences with so many tokens, padding left out.
            peak_flops: a second, of all processes' devices together; None: not known, and no utilisation.
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
        """The meters of all processes, JSON-safe; every process must call it."""
        plain = {field: getattr(self, field) for field in _PLAIN}
        if self.sums is None:  # on one as on all: they take every step together
            return {**plain, "sums": []}
        rows = torch.zeros((world.size, self.sums.numel()), dtype=torch.float64, device=self.sums.device)
        rows[world.rank] = self.sums
        return {**plain, "sums": world.sum_(rows).tolist()}

    @classmethod
    def restore(cls, stored: Mapping[str, Any], world: World) -> Meter:
        """This process's meter out of what `gather` gave: to the bit with as many processes, else a share of it."""
        rows = [torch.tensor(row, dtype=torch.float64) for row in stored["sums"][world.rank :: world.size]]
        sums = torch.stack(rows).sum(dim=0).to(world.device) if rows else None
        return cls(sums, **{field: stored[field] for field in _PLAIN})
