"""A copy of tensors in host memory, from which they can be written while the tensors themselves move on."""

from __future__ import annotations

from collections.abc import Mapping

import torch

ALIGNMENT = 64  # bytes; a cache line, and a multiple of every element's size


class StagingMemory:
    """Host memory that tensors are copied to, the same at every copy; pinned where they come from a GPU."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._copied: torch.cuda.Event | None = None

    def copy(self, groups: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, dict[str, torch.Tensor]]:
        """Copies of named groups of named tensors, valid until the next call; from a GPU, complete only after `wait`.

        On a GPU the copies are queued on the current stream: what is queued behind them may change the tensors.

        Raises:
            MemoryError, RuntimeError: there is no memory for them.
        """
        tensors = [tensor for group in groups.values() for tensor in group.values()]
        on_gpu = any(tensor.is_cuda for tensor in tensors)
        self._reserve(sum(map(_room, tensors)), pinned=on_gpu)
        copies: dict[str, dict[str, torch.Tensor]] = {}
        begin = 0
        for group, held in groups.items():
            copies[group] = {}
            for name, tensor in held.items():
                room = self._memory[begin : begin + tensor.numel() * tensor.element_size()]
                copy = room.view(tensor.dtype).view(tensor.shape)
                copies[group][name] = copy.copy_(tensor.detach(), non_blocking=True)
                begin += _room(tensor)
        if on_gpu:
            self._copied = torch.cuda.Event()
            self._copied.record()
        return copies

    def wait(self) -> None:
        """Waits until the copies are complete; for any thread."""
        if self._copied is not None:
            self._copied.synchronize()

    def _reserve(self, size: int, *, pinned: bool) -> None:
        if self._memory.numel() < size:
            self._memory = torch.empty(0, dtype=torch.uint8)  # lets go of the smaller one first
            self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)


def _room(tensor: torch.Tensor) -> int:
    """Bytes set aside for a tensor."""
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
