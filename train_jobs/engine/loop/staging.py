"""Transfer of a step's arrays to a GPU: all micro batches in one pinned buffer, one copy, views on the device.

A micro batch of pretraining has nine arrays. Copied one by one from pageable memory, each copy makes the host wait for
it; one copy from pinned memory is queued like a kernel. Making the buffer needs no GPU stream, so a thread can do it
while the device computes an earlier step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT = 256  # bytes; what CUDA's own allocations have, so that views are as aligned as tensors of their own

Arrays = Mapping[str, npt.NDArray[Any]]


@runtime_checkable
class StagesBatches(Protocol):
    """A task whose loss takes tensors that are on the device already; on GPUs the loop then copies once a step."""

    def arrays(self, batch: Any) -> Arrays:
        """Return all arrays that the loss of a micro batch needs on the device, by name."""

    def staged_loss(
        self, batch: Any, tensors: Mapping[str, torch.Tensor], totals: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same as `TrainingTask.loss`.

        Args:
            batch: the micro batch on the host.
            tensors: its `arrays`, on the device.
            totals: see `TrainingTask.loss`.
        """


class Place(NamedTuple):
    """Position of an array in the buffer; all values are JSON."""

    start: int
    """In bytes."""
    dtype: str
    shape: Sequence[int]

    @property
    def bytes(self) -> int:
        """Size of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class StagedArrays:
    """Arrays of all micro batches of a step, in one buffer on the host.

    Args:
        places: places of the arrays of each micro batch, by name.
        buffer: uint8 [bytes].
    """

    def __init__(self, places: Sequence[Mapping[str, Place]], buffer: torch.Tensor) -> None:
        self.places, self.buffer = places, buffer

    @classmethod
    def copied(cls, micros: Sequence[Arrays], *, pinned: bool) -> StagedArrays:
        """Copy arrays to a new buffer.

        Args:
            micros: the arrays of each micro batch.
            pinned: whether to use page-locked memory, from which copies do not make the host wait.
        """
        end = 0
        found: list[dict[str, Place]] = []
        for arrays in micros:
            places = {}
            for name, array in arrays.items():
                places[name] = Place(end, str(array.dtype), array.shape)
                end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
            found.append(places)
        staged = cls(found, torch.empty(end, dtype=torch.uint8, pin_memory=pinned))
        for views, arrays in zip(staged.on_host(), micros, strict=True):
            for name, array in arrays.items():
                views[name].copy_(torch.from_numpy(np.ascontiguousarray(array)))
        return staged

    def on_host(self) -> list[dict[str, torch.Tensor]]:
        """Return the arrays of each micro batch: views of the buffer."""
        return self._views(self.buffer)

    def on_device(self, device: torch.device) -> list[dict[str, torch.Tensor]]:
        """Queue the copy to a device, and return the tensors of each micro batch: views of one buffer there."""
        # The caching allocator of pinned memory reuses the host's buffer only once this copy is done.
        return self._views(self.buffer.to(device, non_blocking=True))

    def _views(self, buffer: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        return [{name: _view(buffer, place) for name, place in places.items()} for places in self.places]


def _view(buffer: torch.Tensor, place: Place) -> torch.Tensor:
    dtype = torch.from_numpy(np.empty(0, place.dtype)).dtype
    return buffer[place.start : place.start + place.bytes].view(dtype).view(*place.shape)


def to_device(arrays: Arrays, device: torch.device) -> dict[str, torch.Tensor]:
    """Return arrays as tensors on a device: on a CPU without a copy, on a GPU by one queued copy."""
    if device.type == "cuda":
        return StagedArrays.copied([arrays], pinned=True).on_device(device)[0]
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def queue_copy(values: Sequence[float] | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return host numbers as an fp32 vector on a device, without waiting for the device."""
    numbers = torch.as_tensor(values, dtype=torch.float32)
    if device.type != "cuda":
        return numbers.to(device)
    return torch.empty(len(numbers), pin_memory=True).copy_(numbers).to(device, non_blocking=True)
