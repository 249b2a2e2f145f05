"""Forward and backward over a process's share of a global batch, one micro batch after another. No collective in it."""

from __future__ import annotations

from typing import Any

import torch

from train_jobs.engine.loop.task import Batch, Task
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.precision import autocast


def accumulate(
    task: Task[Any],
    batch: Batch,
    totals: torch.Tensor,
    *,
    micro_batch_size: int,
    precision: str,
    scale: float,
    world: World,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds the gradients of the share to those that are there.

    Args:
        batch: the share.
        totals: the task's counts over the global batch.
        micro_batch_size: sequences at once; the last micro batch may have fewer.
        scale: the loss is multiplied by it before the backward pass.
        step: the optimizer step that this is for.

    Returns:
        The share's part of the loss, and the sums that the task reports of it.
    """
    task.model.train()
    whole = torch.zeros((), device=world.device)
    sums: torch.Tensor | None = None
    with task.accumulating():
        for start in range(0, len(batch), micro_batch_size):
            with world.activity.doing("forward", step=step), autocast(precision, world.device):
                micro = batch.slice(start, min(start + micro_batch_size, len(batch)))
                loss, part = task.loss(micro, totals)
            with world.activity.doing("backward", step=step):
                torch.autograd.backward(loss if scale == 1.0 else loss * scale)
            whole = whole + loss.detach()
            sums = part.detach() if sums is None else sums + part.detach()
    assert sums is not None, "a global batch has at least one sequence for each process"
    return whole, sums
