"""Where a run stands, and what is known of the step that it is making."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass
class LoopState:
    """Where training stands; all of it goes into a checkpoint."""

    micro_batch_size: int | None
    """Sequences at once; less than configured once memory has run out. None: to be found."""
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
    """Training time over all attempts, counted where there is a budget of it."""
    out_of_time: bool = False
    """The budget was used up, and the step in hand is the last one."""


@dataclass(frozen=True)
class Agreement:
    """What all processes know of a step before they make it."""

    totals: torch.Tensor
    """The task's counts over the global batch."""
    tokens: float
    """Of the global batch, padding left out."""
    stop: bool
    """Some process is asked to stop."""
    checkpoint_due: bool
    """The main process's clock asks for a checkpoint, which it does not while one is being written."""
    seconds: float
    """Training time on the main process's clock."""


@dataclass(frozen=True)
class Differentiated:
    """What became of a global batch's forward and backward pass; the gradients lie in their buffer."""

    sums: torch.Tensor
    """What the task reports of this process's share."""
    loss: torch.Tensor
    """Of the global batch."""
    norm: torch.Tensor
    """Of the gradients of all processes, before clipping."""
    finite: bool
    """Whether loss and gradients are; else they are of no use."""
