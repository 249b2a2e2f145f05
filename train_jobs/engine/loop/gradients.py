"""Gradients of a step: micro batches accumulate in one flat buffer, which one collective reduces over the processes.

One buffer in fixed order makes the sum reproducible and the number of collectives independent of the model, and
nothing is sent before the last micro batch is done (NVIDIA's MLPerf entries use one bucket as well).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from train_jobs.engine.loop.task import TrainingBatch, TrainingTask
from train_jobs.engine.runtime.devices import autocast
from train_jobs.engine.runtime.distributed import World
from train_jobs.optim.lamb import clip_by_global_norm_


class FlatGradients:
    """One buffer of which every parameter has a view as its `.grad`.

    Args:
        parameters: the trainable parameters, of one type, in an order that is the same on every process.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        assert parameters, "a model without trainable parameters"
        self.parameters = list(parameters)
        size = sum(parameter.numel() for parameter in self.parameters)
        # A flat buffer instead of DDP buckets: their layout depends on the order in which gradients become ready, and
        # with it the order of additions.
        # Two more elements, the loss and whether the attempt failed, travel in the same collective.
        first = self.parameters[0]
        self._buffer = torch.zeros(size + 2, dtype=first.dtype, device=first.device)
        self.flat, self._loss, self._failures = self._buffer[:size], self._buffer[size], self._buffer[size + 1]
        offset = 0
        for parameter in self.parameters:
            parameter.grad = self.flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()

    def zero_(self) -> None:
        """Set all gradients to zero; the views stay."""
        # Never `optimizer.zero_grad()`: it sets `.grad` to None, and autograd would then allocate tensors outside of
        # the buffer, which no collective reduces.
        self.flat.zero_()

    def reduce_(self, world: World, loss: torch.Tensor | None, *, scale: float = 1.0) -> torch.Tensor | None:
        """Sum the gradients over all processes and divide by the loss scale; every process must call it.

        Args:
            world: the processes.
            loss: this process's part of the loss, 0-dim. None: its gradients are incomplete.
            scale: loss scale that the gradients are multiplied with.

        Returns:
            The loss of the global batch, a scalar on the device; None if the gradients of any process are incomplete:
            the sums are then useless.
        """
        # A sum, so that one failed process is enough for all to discard the step together.
        self._failures.fill_(loss is None)
        self._loss.fill_(0.0 if loss is None else loss)
        world.sum_(self._buffer)
        # Before clipping, whose norm must be that of the true gradients. Scales are powers of two: the division is
        # exact.
        if scale != 1.0:
            self.flat.div_(scale)
        return None if self._failures else self._loss

    def clip_(self, max_norm: float | None) -> torch.Tensor:
        """Clip the global L2 norm in place, as step 2 of NVLAMB does.

        Args:
            max_norm: bound of the norm. None: measure it only.

        Returns:
            The norm before clipping, a scalar on the device.
        """
        return clip_by_global_norm_([self.flat], math.inf if max_norm is None else max_norm)


class Passes(NamedTuple):
    """Settings of the forward and backward passes over a share of a global batch."""

    micro_batch_size: int
    """Sequences in one pass; the last micro batch may have fewer."""
    precision: str
    scale: float = 1.0
    """Factor of the loss before the backward pass."""
    step: int = 1
    """Optimizer step that the passes are part of."""


def accumulate(
    task: TrainingTask[Any], batch: TrainingBatch, totals: torch.Tensor, passes: Passes, world: World
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the gradients of a process's share of a global batch to `.grad`, one micro batch after another.

    No collective is called, so a process that runs out of memory here cannot leave others waiting in one.

    Args:
        task: model and loss.
        batch: the share.
        totals: the task's counts over the global batch, float32. Losses are divided by them before the backward pass,
            so the gradients of micro batches and processes just add up.
        passes: micro batch, precision and loss scale.
        world: this process.

    Returns:
        The share's part of the loss, 0-dim, and the sums that the task reports of it, a vector.

    Raises:
        RuntimeError, MemoryError: memory ran out; `.grad` then holds a part of the gradients.
    """
    task.model.train()
    total = torch.zeros((), device=world.device)
    sums: torch.Tensor | None = None
    with task.accumulating():
        for start in range(0, len(batch), passes.micro_batch_size):
            with world.activity.doing("forward", step=passes.step), autocast(passes.precision, world.device):
                micro = batch.slice(start, min(start + passes.micro_batch_size, len(batch)))
                loss, part = task.loss(micro, totals)
            with world.activity.doing("backward", step=passes.step):
                # only the differentiated value is scaled, never the reported one
                torch.autograd.backward(loss if passes.scale == 1.0 else loss * passes.scale)
            # detached: otherwise the sum keeps the graph, and with it the activations, of every micro batch alive
            total = total + loss.detach()
            sums = part.detach() if sums is None else sums + part.detach()
    assert sums is not None, "a global batch has at least one sequence for each process"
    return total, sums
