"""State of a training run, and measurements since its last report.

Both are part of a checkpoint, so a resumed run reports the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import torch

from train_jobs.engine.loop.gradients import StepFigures
from train_jobs.engine.loop.staging import StagedArrays
from train_jobs.engine.loop.task import Cursor, TrainingBatch
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
    best_steps: list[int] = field(default_factory=list)
    """Steps of these checkpoints; empty in a checkpoint of an earlier version."""
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
    """The task's counts over the global batch, on the host."""
    sequences: float
    """Of the global batch; the last one of an epoch may have fewer."""
    tokens: float
    """Of the global batch, padding left out."""
    stop: bool
    """Some process received a request to stop."""
    checkpoint_due: bool
    """A checkpoint is due by the main process's clock, and none is being written."""
    seconds: float
    """Training time on the main process's clock."""


@dataclass(frozen=True)
class Share:
    """This process's share of a global batch."""

    batch: TrainingBatch
    counts: list[float]
    """The task's counts of it."""
    micro_batch_size: int
    """Sequences in one pass when the share was made."""
    staged: StagedArrays | None
    """On a GPU, its arrays in pinned memory, for micro batches of this size."""


class Agreed(NamedTuple):
    """A step that all processes agree on."""

    share: Share
    following: Cursor
    """Cursor of the next batch."""
    agreement: Agreement
    waited: float
    """Seconds in which the loop waited for the batch."""


@dataclass(frozen=True)
class BackwardResult:
    """Result of the forward and backward pass over a global batch; the gradients are in their buffer."""

    sums: torch.Tensor
    """Sums of the task over this process's share."""
    figures: StepFigures
    """Loss and norm; the gradients are useless if they are not finite."""


# Fields that are equal on all processes, or that only rank 0 reports: no collective is needed to store them.
SHORTEST_SECONDS = 1e-6  # of work, so that a ratio is finite
_PLAIN = ("steps", "seconds", "data_seconds", "sequences", "tokens", "norms")

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
    sequences: float = 0.0
    """Of all processes."""
    tokens: float = 0.0
    """Of all processes, padding left out."""
    norms: float = 0.0
    """Gradient norms before clipping."""
    busy: float = 0.0
    """Seconds in which this process did not wait for the others."""

    def add(
        self,
        sums: torch.Tensor | None,
        seconds: float,
        *,
        data_seconds: float,
        sequences: float,
        tokens: float,
        norm: float,
        busy: float = 0.0,
    ) -> None:
        """Add one optimizer step.

        Args:
            sums: the task's sums over this process's share, on the device; None for a skipped step, whose sums are not
                finite but whose time counts.
            seconds: duration of the step.
            data_seconds: part of it spent waiting for the batch.
            sequences: sequences of the global batch.
            tokens: tokens of the global batch, without padding.
            norm: gradient norm before clipping.
            busy: part of the duration in which this process did not wait for the others.
        """
        self.seconds += seconds
        self.busy += busy
        self.data_seconds += data_seconds
        if sums is not None:
            # fp64 on the device: no synchronisation per step, and counts stay exact over thousands of steps
            sums = sums.to(torch.float64)
            self.sums = sums if self.sums is None else self.sums + sums
            self.steps += 1
            self.sequences += sequences
            self.tokens += tokens
            self.norms += norm

    def add_wait(self, seconds: float, *, waited: float = 0.0) -> None:
        """Add the time in which the host waited for work that the steps had queued on the device.

        Args:
            seconds: duration.
            waited: part of it in which this process waited for the others.
        """
        self.seconds += seconds
        self.busy += seconds - waited

    def rates(self, *, flops: Flops, peak_flops: float | None) -> dict[str, float]:
        """Return speed and gradient norm as metrics.

        Args:
            flops: function (sequences, tokens without padding) -> floating-point operations, forward and backward.
            peak_flops: operations per second of all devices together. None: unknown, so no utilisation is reported.

        Returns:
            gradient_norm, sequences_per_second, tokens_per_second, data_wait_share (0 to 1) and, with `peak_flops`, mfu
            (model FLOPs utilisation, 0 to 1).
        """
        found = {
            "gradient_norm": self.norms / self.steps,
            "sequences_per_second": self.sequences / self.seconds,
            "tokens_per_second": self.tokens / self.seconds,
            "data_wait_share": self.data_seconds / self.seconds,
        }
        return (
            found
            if peak_flops is None
            else {**found, "mfu": flops(self.sequences, self.tokens) / self.seconds / peak_flops}
        )

    def slowest(self, world: World) -> dict[str, float]:
        """Return the slowest process as metrics; every process must call it.

        Every process makes every step in the same time, because all wait for the slowest one: what differs is the time
        in which a process works.

        Returns:
            slowest_rank, and slowest_rank_ratio: its working time over the median of the others; empty for one process.
        """
        if world.size == 1:
            return {}
        busy = torch.zeros(world.size, dtype=torch.float64)  # on the host: the device has no part in it
        busy[world.rank] = self.busy
        found = world.sum_(busy).tolist()
        rank = found.index(max(found))
        others = median([*found[:rank], *found[rank + 1 :]])
        return {"slowest_rank": float(rank), "slowest_rank_ratio": found[rank] / max(others, SHORTEST_SECONDS)}

    def gather(self, world: World) -> dict[str, Any]:
        """Return the meters of all processes, JSON-safe; every process must call it."""
        # A row per process, not their total: floating-point sums depend on their order, so metrics.jsonl would differ
        # in the last digits if a resumed run added the same numbers in another order.
        plain = {field: getattr(self, field) for field in _PLAIN}
        if self.sums is None:  # on all processes: they make every step together
            return {**plain, "sums": []}
        rows = torch.zeros((world.size, self.sums.numel()), dtype=torch.float64, device=self.sums.device)
        rows[world.rank] = self.sums
        return {**plain, "sums": world.sum_(rows).tolist()}

    @classmethod
    def restore(cls, stored: Mapping[str, Any], world: World) -> Meter:
        """Return this process's meter from the result of `gather`.

        Args:
            stored: result of `gather`, one row of sums per process that wrote it.
            world: the current processes. With the same number the sums are bit-exact; otherwise each takes a share of
                the rows, so that only their total is the same.
        """
        rows = [torch.tensor(row, dtype=torch.float64) for row in stored["sums"][world.rank :: world.size]]
        sums = torch.stack(rows).sum(dim=0).to(world.device) if rows else None
        plain = {field: stored[field] for field in _PLAIN if field in stored}  # earlier versions stored no sequences
        return cls(sums, **plain)


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return a well-spread 63-bit seed for (seed, step, rank): the finaliser of splitmix64 (Steele et al. 2014)."""
    # A sum such as seed + step + rank would give (step 1, rank 0) and (step 0, rank 1) the same dropout.
    mask = (1 << 64) - 1
    value = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB + 1) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return (value ^ (value >> 31)) >> 1
