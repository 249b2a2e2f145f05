"""Gradients of a step: micro batches accumulate in one flat buffer, which one collective reduces over the processes.

One buffer in fixed order makes the sum reproducible and the number of collectives independent of the model, and
nothing is sent before the last micro batch is done (NVIDIA's MLPerf entries use one bucket as well). With
`train.overlap_all_reduce` buckets of it are reduced during the backward pass of the last micro batch, see `overlap`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from train_jobs.engine.loop.overlap import BucketReduction
from train_jobs.engine.loop.staging import StagedArrays, StagesBatches, queue_copy
from train_jobs.engine.loop.task import TrainingBatch, TrainingTask
from train_jobs.engine.runtime.devices import autocast, without_autocast
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
        self._views: list[torch.Tensor] = []
        self.overlap: BucketReduction | None = None
        offset = 0
        for parameter in self.parameters:
            parameter.grad = self.flat[offset : offset + parameter.numel()].view_as(parameter)
            self._views.append(parameter.grad)
            offset += parameter.numel()

    def overlap_reduction(self, world: World, **options: int) -> None:
        """Sum the gradients in buckets from now on, during the last backward pass of a step; see `BucketReduction`."""
        self.overlap = BucketReduction(self.parameters, self._views, self.flat, world, **options)

    def zero_(self) -> None:
        """Set all gradients to zero; the views stay."""
        # Never `optimizer.zero_grad()`: it sets `.grad` to None, and autograd would then allocate tensors outside of
        # the buffer, which no collective reduces.
        self.flat.zero_()

    def reduce_(self, world: World, loss: torch.Tensor | None, *, scale: float = 1.0) -> None:
        """Sum the gradients over all processes and divide by the loss scale; every process must call it.

        On a GPU the work is queued only: `read_figures` waits for it.

        Args:
            world: the processes.
            loss: this process's part of the loss, 0-dim. None: its gradients are incomplete.
            scale: loss scale that the gradients are multiplied with.
        """
        # A sum, so that one failed process is enough for all to discard the step together.
        self._failures.fill_(loss is None)
        self._loss.fill_(0.0 if loss is None else loss)
        if self.overlap is not None:
            self.overlap.finish()
            world.queue_sum_(self._buffer[len(self.flat) :])
        else:
            world.queue_sum_(self._buffer)
        # Before clipping, whose norm must be that of the true gradients. Scales are powers of two: the division is
        # exact.
        if scale != 1.0:
            self.flat.div_(scale)

    def clip_(self, max_norm: float | None) -> torch.Tensor:
        """Clip the global L2 norm in place, as step 2 of NVLAMB does.

        Args:
            max_norm: bound of the norm. None: measure it only.

        Returns:
            The norm before clipping, a scalar on the device.
        """
        return clip_by_global_norm_([self.flat], math.inf if max_norm is None else max_norm)

    def read_figures(self, world: World, norm: torch.Tensor) -> StepFigures | None:
        """Wait for the device and return the figures of a step, after `reduce_` and `clip_`.

        Args:
            world: the processes; a process that does not arrive makes the others wait here.
            norm: result of `clip_`.

        Returns:
            None if the gradients of any process are incomplete: the sums are then useless.
        """
        # One read for all numbers: each read makes the host wait until the device has done everything before it.
        failures, loss, length = world.read(torch.stack([self._failures, self._loss, norm]))
        return None if failures else StepFigures(loss, length)


class StepFigures(NamedTuple):
    """Figures of a step, on the host."""

    loss: float
    """Of the global batch."""
    norm: float
    """Of the gradients of all processes, before clipping."""

    @property
    def finite(self) -> bool:
        """Whether both are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class Passes(NamedTuple):
    """Settings of the forward and backward passes over a share of a global batch."""

    micro_batch_size: int
    """Sequences in one pass; the last micro batch may have fewer."""
    precision: str
    scale: float = 1.0
    """Factor of the loss before the backward pass."""
    step: int = 1
    """Optimizer step that the passes are part of."""
    staged: StagedArrays | None = None
    """Arrays of the share that are in pinned memory already, for micro batches of this size."""
    overlap: BucketReduction | None = None
    """Starts sums over all processes in the backward pass of the last micro batch. None: no collective is called."""


@contextmanager
def _adding_together(held: Sequence[tuple[torch.nn.Parameter, torch.Tensor]]) -> Iterator[None]:
    """Let the body make new gradients, then add all of them to the existing ones by multi-tensor operations.

    autograd itself launches a kernel for each parameter and micro batch: 206 for BERT-base. The sums are the same.

    Args:
        held: parameters with their existing gradients.
    """
    for parameter, _ in held:
        parameter.grad = None
    try:
        yield
        made = [(total, parameter.grad) for parameter, total in held if parameter.grad is not None]
        if made:
            torch._foreach_add_([total for total, _ in made], [grad for _, grad in made])
    finally:  # also if memory ran out: the views of the buffer are what the next attempt adds to
        for parameter, total in held:
            parameter.grad = total


def stage(task: TrainingTask[Any], batch: TrainingBatch, micro_batch_size: int) -> StagedArrays | None:
    """Return the arrays of a share in pinned memory; None if the task copies its micro batches itself.

    Args:
        task: the task.
        batch: this process's share of a global batch.
        micro_batch_size: sequences in one pass.
    """
    if not isinstance(task, StagesBatches):
        return None
    return StagedArrays.copied([task.arrays(micro) for micro in split(batch, micro_batch_size)], pinned=True)


def split(batch: TrainingBatch, micro_batch_size: int) -> Iterator[TrainingBatch]:
    """Yield the micro batches of a share; the last one may be smaller."""
    for start in range(0, len(batch), micro_batch_size):
        yield batch.slice(start, min(start + micro_batch_size, len(batch)))


def losses(
    task: TrainingTask[Any], batch: TrainingBatch, totals: torch.Tensor, passes: Passes, world: World
) -> Iterator[Callable[[], tuple[torch.Tensor, torch.Tensor]]]:
    """Yield a function for each micro batch that returns its loss and its sums; a GPU gets all arrays in one copy."""
    micros = split(batch, passes.micro_batch_size)
    staged = None
    if world.device.type == "cuda":
        staged = passes.staged or stage(task, batch, passes.micro_batch_size)
    if staged is None:
        for micro in micros:
            yield functools.partial(task.loss, micro, totals)
        return
    assert isinstance(task, StagesBatches), "only such a task has staged arrays"
    for micro, tensors in zip(micros, staged.on_device(world.device), strict=True):
        yield functools.partial(task.staged_loss, micro, tensors, totals)


def accumulate(
    task: TrainingTask[Any], batch: TrainingBatch, totals: torch.Tensor, passes: Passes, world: World
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the gradients of a process's share of a global batch to `.grad`, one micro batch after another.

    No collective is waited for, so a process that runs out of memory here cannot leave others waiting in one:
    `FlatGradients.reduce_` calls those that it has missed.

    Args:
        task: model and loss.
        batch: the share.
        totals: the task's counts over the global batch, float32, on the host. Losses are divided by them before the
            backward pass, so the gradients of micro batches and processes just add up.
        passes: micro batch, precision and loss scale.
        world: this process.

    Returns:
        The share's part of the loss, 0-dim, and the sums that the task reports of it, a vector.

    Raises:
        RuntimeError, MemoryError: memory ran out; `.grad` then holds a part of the gradients.
    """
    if not task.model.training:  # setting the mode of each module takes a millisecond
        task.model.train()
    held = [(parameter, parameter.grad) for parameter in task.model.parameters() if parameter.grad is not None]
    total = torch.zeros((), device=world.device)
    sums: torch.Tensor | None = None
    gpu = world.device.type == "cuda"
    # On a GPU one context spans the step: the 16-bit copies of the weights that autocast makes then serve all of its
    # micro batches. It is off in backward passes, whose types follow from the forward pass.
    step = autocast(passes.precision, world.device) if gpu else nullcontext()
    last = -(-len(batch) // passes.micro_batch_size)
    with task.accumulating(), step:
        micros = losses(task, batch, queue_copy(totals, world.device), passes, world)
        for number, compute in enumerate(micros, start=1):
            with world.activity.doing("forward", step=passes.step), autocast(passes.precision, world.device):
                loss, part = compute()
            with world.activity.doing("backward", step=passes.step):
                # only the differentiated value is scaled, never the reported one
                scaled = loss if passes.scale == 1.0 else loss * passes.scale
                overlapping = passes.overlap.during_backward() if passes.overlap and number == last else nullcontext()
                if gpu:
                    with without_autocast(world.device), _adding_together(held), overlapping:
                        torch.autograd.backward(scaled)
                else:
                    with overlapping:
                        torch.autograd.backward(scaled)
            # detached: otherwise the sum keeps the graph, and with it the activations, of every micro batch alive
            total = total + loss.detach()
            sums = part.detach() if sums is None else sums + part.detach()
    assert sums is not None, "a global batch has at least one sequence for each process"
    return total, sums
