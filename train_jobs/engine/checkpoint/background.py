"""Writing during training: a copy of tensors in host memory, and a thread of low priority that writes it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

ALIGNMENT = 64  # bytes; a cache line, and a multiple of every element's size


class StagingMemory:
    """Host memory that tensors are copied to, the same at every copy; pinned where they come from a GPU."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._copied: torch.cuda.Event | None = None

    def copy(self, groups: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, dict[str, torch.Tensor]]:
        """Copy named groups of named tensors; valid until the next call, and from a GPU only after `wait`.

        On a GPU the copies are queued on the current stream: work queued after them may change the tensors.

        Raises:
            MemoryError, RuntimeError: there is not enough memory.
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
        """Wait until the copies are complete; any thread may call it."""
        if self._copied is not None:
            self._copied.synchronize()

    def _reserve(self, size: int, *, pinned: bool) -> None:
        if self._memory.numel() < size:
            self._memory = torch.empty(0, dtype=torch.uint8)  # lets go of the smaller one first
            self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)


def _room(tensor: torch.Tensor) -> int:
    """Return the bytes that a tensor occupies in the staging memory, padding included."""
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT


NAME = "checkpoint-writer"
NICE = 19  # the lowest priority there is

T = TypeVar("T")


class Work(Generic[T]):
    """A generator, run to its end by one thread at a time.

    Args:
        steps: does a little between two yields, and returns the result.
    """

    def __init__(self, steps: Generator[None, None, T]) -> None:
        self._steps = steps
        self._outcome: Future[T] = Future()
        self._turn = threading.Lock()
        self._taken_over = threading.Event()

    @property
    def done(self) -> bool:
        """Whether it has finished, with a result or an exception."""
        return self._outcome.done()

    def run(self) -> None:
        """Run it until it ends or another thread takes it over."""
        while not self._taken_over.is_set() and self._step():
            pass

    def finish(self) -> None:
        """Take it over and run it to its end.

        Waiting would happen at the other thread's priority, on a busy machine for ever: the priority of a thread
        cannot be raised again.
        """
        self._taken_over.set()
        while self._step():
            pass

    def result(self) -> T:
        """Return its result.

        Raises:
            BaseException: raised by the generator.
        """
        return self._outcome.result()

    def _step(self) -> bool:
        """Take one step; return False after the last one."""
        with self._turn:
            if self.done:
                return False
            try:
                next(self._steps)
            except StopIteration as end:
                self._outcome.set_result(end.value)
            except BaseException as problem:  # `result` raises it
                self._outcome.set_exception(problem)
        return not self.done


def writer_thread() -> ThreadPoolExecutor:
    """Return the thread that writes; it starts with the first work, and the program waits for the last at its end."""
    return ThreadPoolExecutor(1, thread_name_prefix=NAME, initializer=_lower_priority)


def _lower_priority() -> None:
    """Lower the priority of this thread, where threads have priorities of their own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
