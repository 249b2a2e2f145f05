"""All gradients in one flat buffer: accumulated in place, reduced over the processes by one collective per step.

One buffer in fixed order makes the sum reproducible and the number of collectives independent of the model, and
nothing is sent before the last micro batch is done (NVIDIA's MLPerf entries use one bucket as well).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from train_jobs.engine.runtime.distributed import World
from train_jobs.optim.clip import clip_by_global_norm_


class FlatGradients:
    """Gives every parameter a view of one buffer as its `.grad`.

    Args:
        parameters: the trainable parameters, of one type, in an order that is the same on every process.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        assert parameters, "a model without trainable parameters"
        self.parameters = list(parameters)
        size = sum(parameter.numel() for parameter in self.parameters)
        # two elements more: the loss, and whether the attempt failed, travel along and cost no collective of their own
        first = self.parameters[0]
        self._buffer = torch.zeros(size + 2, dtype=first.dtype, device=first.device)
        self.flat, self._loss, self._failures = self._buffer[:size], self._buffer[size], self._buffer[size + 1]
        offset = 0
        for parameter in self.parameters:
            parameter.grad = self.flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()

    def zero_(self) -> None:
        """Forgets the last step's gradients; the views stay."""
        self.flat.zero_()

    def reduce_(self, world: World, loss: torch.Tensor | None, *, scale: float = 1.0) -> torch.Tensor | None:
        """Sums the gradients over all processes and divides the loss scale out.

        Args:
            loss: this process's part of the loss, a scalar; None: its gradients are not whole.

        Returns:
            The loss of the global batch, a scalar on the device; None if the gradients of any process are not whole:
            then the sums are of no use.
        """
        self._failures.fill_(loss is None)
        self._loss.fill_(0.0 if loss is None else loss)
        world.sum_(self._buffer)
        if scale != 1.0:
            self.flat.div_(scale)
        return None if self._failures else self._loss

    def clip_(self, max_norm: float | None) -> torch.Tensor:
        """Clips the global L2 norm, as NVLAMB's step 2 does; None clips nothing.

        Returns:
            The norm before clipping, a scalar on the device.
        """
        return clip_by_global_norm_([self.flat], math.inf if max_norm is None else max_norm)
