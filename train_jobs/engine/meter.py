"""What has happened since the last report: part of a checkpoint, so that a resumed run reports the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from train_jobs.engine.distributed import World


@dataclass
class Meter:
    """Sums since the last report, of this process alone."""

    sums: torch.Tensor | None = None
    """float64, on the device."""
    steps: int = 0
    seconds: float = 0.0

    def add(self, sums: torch.Tensor | None, seconds: float) -> None:
        """Adds one optimizer step, or None for a skipped one: it took time, and its sums may not be finite."""
        self.seconds += seconds
        if sums is not None:
            sums = sums.to(torch.float64)
            self.sums = sums if self.sums is None else self.sums + sums
            self.steps += 1

    def gather(self, world: World) -> dict[str, Any]:
        """The meters of all processes, JSON-safe; every process must call it."""
        if self.sums is None:  # on one as on all: they take every step together
            return {"steps": self.steps, "seconds": self.seconds, "sums": []}
        rows = torch.zeros((world.size, self.sums.numel()), dtype=torch.float64, device=self.sums.device)
        rows[world.rank] = self.sums
        return {"steps": self.steps, "seconds": self.seconds, "sums": world.sum_(rows).tolist()}

    @classmethod
    def restore(cls, stored: Mapping[str, Any], world: World) -> Meter:
        """This process's meter out of what `gather` gave: to the bit with as many processes, else a share of it."""
        rows = [torch.tensor(row, dtype=torch.float64) for row in stored["sums"][world.rank :: world.size]]
        sums = torch.stack(rows).sum(dim=0).to(world.device) if rows else None
        return cls(sums, stored["steps"], stored["seconds"])
