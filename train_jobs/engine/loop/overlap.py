"""Reduction of gradients during the last backward pass of a step, in buckets.

Without it one collective sums the whole buffer once the last micro batch is done, and the device waits for it. Here
each bucket is summed as soon as the backward pass has completed its gradients, as in PyTorch's DistributedDataParallel
(Li et al. 2020, arXiv 2006.15704, section 3.2.3).

Buckets depend only on the parameters, and every process sums them in the same order, so the order of additions is
fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from train_jobs.engine.runtime.distributed import World

BUCKET_BYTES = 25 * 2**20  # the default of DistributedDataParallel


class Bucket(NamedTuple):
    """Consecutive parameters whose gradients are summed together."""

    parameters: tuple[int, ...]
    """Their numbers."""
    flat: torch.Tensor
    """Their gradients, adjacent in memory."""


class BucketReduction:
    """Sums of all gradients over all processes, started during a backward pass.

    Args:
        parameters: the trainable parameters.
        views: the gradient of each, a view of a buffer in which they are adjacent, in order.
        flat: the buffer.
        world: the processes.
        bucket_bytes: least bytes of a bucket; the last one may have fewer.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        views: Sequence[torch.Tensor],
        flat: torch.Tensor,
        world: World,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._parameters, self._views, self._world = parameters, views, world
        self.buckets = make_buckets(views, flat, bucket_bytes)
        self._bucket_of = {number: index for index, bucket in enumerate(self.buckets) for number in bucket.parameters}
        self._missing = [0] * len(self.buckets)
        self._waits: list[Callable[[], None]] = []

    @contextmanager
    def during_backward(self) -> Iterator[None]:
        """Start the sum of each bucket once a backward pass in the body has completed its gradients."""
        self._missing = [len(bucket.parameters) for bucket in self.buckets]
        # Hooks of the nodes that accumulate gradients, not of the parameters: those are not called if a layer has
        # added to `.grad` itself. A node is run once all uses of its parameter have been.
        nodes = [_accumulator(parameter) for parameter in self._parameters]
        hooks = [
            node.register_hook(lambda *_, number=number: self._complete(number)) for number, node in enumerate(nodes)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def finish(self) -> None:
        """Start the sums that have not been started, and wait for all; every process must call it once a step.

        On a GPU only the device waits.
        """
        # Also those of a process that has run out of memory: the others have started them, or will.
        while len(self._waits) < len(self.buckets):
            self._start()
        for wait in self._waits:
            wait()
        self._waits.clear()

    def _complete(self, number: int) -> None:
        self._missing[self._bucket_of[number]] -= 1
        # In order: collectives of different processes are matched by their order, and backward passes may differ.
        while len(self._waits) < len(self.buckets) and self._missing[len(self._waits)] == 0:
            self._start()

    def _start(self) -> None:
        """Start the sum of the next bucket."""
        bucket = self.buckets[len(self._waits)]
        # On a GPU the pass makes new gradients: they are added to the buffer first, see `gradients.accumulate`.
        made = [
            (self._views[number], grad)
            for number in bucket.parameters
            if (grad := self._parameters[number].grad) is not None and grad is not self._views[number]
        ]
        if made:
            torch._foreach_add_([total for total, _ in made], [grad for _, grad in made])
            for number in bucket.parameters:
                self._parameters[number].grad = None
        self._waits.append(self._world.start_sum_(bucket.flat))


def _accumulator(parameter: torch.nn.Parameter) -> Any:
    """Return the node of the graph that accumulates the gradient of a parameter."""
    view = parameter.view_as(parameter)
    assert view.grad_fn is not None, "gradients are enabled"
    return view.grad_fn.next_functions[0][0]


def make_buckets(views: Sequence[torch.Tensor], flat: torch.Tensor, bucket_bytes: int) -> list[Bucket]:
    """Return buckets of consecutive parameters, the last parameters first: backward passes complete these first.

    Args:
        views: the gradient of each parameter.
        flat: the buffer that they are views of, in order.
        bucket_bytes: least bytes of a bucket; the last one may have fewer.
    """
    buckets: list[Bucket] = []
    end = flat.numel()
    numbers: list[int] = []
    size = 0
    for number in reversed(range(len(views))):
        numbers.append(number)
        size += views[number].numel()
        if size * flat.element_size() >= bucket_bytes or number == 0:
            buckets.append(Bucket(tuple(numbers), flat[end - size : end]))
            end, size, numbers = end - size, 0, []
    return buckets
