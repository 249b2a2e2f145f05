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
        # One block for all tensors: pinning memory takes long, so it is done once and reused by every checkpoint.
        self._reserve(sum(map(_aligned_bytes, tensors)), pinned=on_gpu)
        copies: dict[str, dict[str, torch.Tensor]] = {}
        begin = 0
        for group, held in groups.items():
            copies[group] = {}
            for name, tensor in held.items():
                room = self._memory[begin : begin + tensor.numel() * tensor.element_size()]
                copy = room.view(tensor.dtype).view(tensor.shape)
                # From a GPU the copy is only queued. Later work on the same stream waits for it, so training may
                # overwrite the weights as soon as this returns; the writer thread has to call `wait` first.
                copies[group][name] = copy.copy_(tensor.detach(), non_blocking=True)
                begin += _aligned_bytes(tensor)
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
            # Holding both blocks would double the host memory that the plan shows for a checkpoint.
            self._memory = torch.empty(0, dtype=torch.uint8)
            self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)


def _aligned_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes that a tensor occupies in the staging memory, padding included."""
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT


NAME = "checkpoint-writer"
NICE = 19  # the lowest priority there is

T = TypeVar("T")


class Work(Generic[T]):
    """A unit of work in small steps, executed by one thread at a time and taken over by another on demand.

    Args:
        steps: generator that does a small part of the work between two yields and returns the result.
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
        """Execute steps until the work is done or another thread takes it over."""
        while not self._taken_over.is_set() and self._step():
            pass

    def finish(self) -> None:
        """Take the work over from the writer thread and execute the remaining steps in the calling thread."""
        # Waiting for the writer could take forever on a busy machine: it runs at the lowest priority, and Linux does
        # not let an unprivileged thread raise its priority again.
        self._taken_over.set()
        while self._step():
            pass

    def result(self) -> T:
        """Return the result of the generator; call this when the work is done.

        Raises:
            BaseException: the exception that the generator raised.
        """
        return self._outcome.result()

    def _step(self) -> bool:
        """Take one step; return False after the last one."""
        # The lock makes steps of two threads take turns: `finish` may start while the writer is inside a step.
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
    """Return the writer thread: it starts with the first work, and the interpreter waits for it at exit."""
    return ThreadPoolExecutor(1, thread_name_prefix=NAME, initializer=_lower_priority)


def _lower_priority() -> None:
    """Lower the priority of this thread, if the system has priorities per thread."""
    # On Linux a nice value belongs to a thread; elsewhere setpriority would slow down the whole process.
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
