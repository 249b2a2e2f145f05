"""The largest micro batch that fits, found by trying before the first step."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from train_jobs.artifacts.host import host_memory
from train_jobs.engine.loop.accumulation import accumulate
from train_jobs.engine.loop.task import Task
from train_jobs.engine.runtime import out_of_memory
from train_jobs.engine.runtime.distributed import World

SPARE = 0.05  # of a GPU's memory: for what allocators lose between tensors, and for NCCL
HOST_SHARE = 0.8  # of what is available on a host, which others use too
LOOK_SECONDS = 0.001
PAGE = resource.getpagesize()


def largest_micro_batch(
    task: Task[Any],
    sizes: Sequence[int],
    *,
    world: World,
    precision: str,
    later_bytes: int,
    available: Callable[[], int] = lambda: host_memory().available,
) -> int:
    """The largest of `sizes` whose forward and backward pass fit on every process; all call it together.

    On a GPU they are tried, the largest first. A host that runs out of memory has a process killed, so on a CPU one is
    tried that is sure to fit, and the others are worked out from it. Gradients are left to be zeroed, and nothing else
    is changed: weights, moments and random numbers are as they were.

    Args:
        task: its model, and batches that need as much memory as any.
        sizes: in sequences, the largest first, the same on every process.
        later_bytes: what this process will need besides: moments that are not there yet, ...
        available: bytes that the host has for all processes on it.

    Raises:
        OutOfMemoryError: on some process not even the smallest fits.
    """

    def attempt(size: int) -> None:
        try_micro_batch(task, size, world=world, precision=precision)

    with no_trace(task, world):
        if world.device.type == "cuda":
            mine = _largest_on_gpu(attempt, sizes, later_bytes, world.device)
        else:
            room = int(HOST_SHARE * available()) // world.local_size - later_bytes
            world.barrier()  # or memory that a faster process has taken already would count twice
            mine = _largest_on_host(attempt, sizes, room)
    out_of_memory.release(world.device)
    found = world.lowest(mine)
    if found == 0:
        raise out_of_memory.no_smaller(1, step=1, device=world.device, can_shard=False)
    return found


def try_micro_batch(task: Task[Any], size: int, *, world: World, precision: str) -> None:
    """Forward and backward pass over a micro batch that needs as much memory, and time, as any of its size."""
    batch = task.largest_batch(size)
    totals = torch.tensor(task.counts(batch), device=world.device)
    accumulate(task, batch, totals, micro_batch_size=size, precision=precision, scale=1.0, world=world, step=1)


@contextmanager
def no_trace(task: Task[Any], world: World) -> Iterator[None]:
    """Random numbers and the model's mode are in the end what they were; gradients are for the caller to zero."""
    was_training = task.model.training
    with torch.random.fork_rng([world.device] if world.device.type == "cuda" else []):
        yield
    task.model.train(was_training)


def _largest_on_gpu(
    attempt: Callable[[int], None], sizes: Sequence[int], later_bytes: int, device: torch.device
) -> int:
    """The first of `sizes` that fits beside what will come later; 0 if none does."""
    taken = later_bytes + int(SPARE * torch.cuda.get_device_properties(device).total_memory)
    for size in sizes:
        fits = _fits_on_gpu(attempt, size, taken, device)
        out_of_memory.release(device)
        if fits:
            torch.cuda.reset_peak_memory_stats(device)
            return size
    return 0


def _fits_on_gpu(attempt: Callable[[int], None], size: int, taken: int, device: torch.device) -> bool:
    try:
        reserved = torch.empty(taken, dtype=torch.uint8, device=device)
        attempt(size)
        del reserved
    except RuntimeError as problem:
        if not out_of_memory.is_exhausted(problem):
            raise
        return False
    return True


def _largest_on_host(attempt: Callable[[int], None], sizes: Sequence[int], room: int) -> int:
    """The largest of `sizes` that takes no more than `room` bytes; 0 if the smallest takes more.

    Memory is a part that every size needs (gradients, weights in 16 bit) and one that grows with it: what a size takes
    is at most as many times what the smallest takes. If that is too careful, a second size shows how it really grows.
    """
    smallest, before = sizes[-1], resident_bytes()
    least = _peak(attempt, smallest) - before
    sure = [size for size in sizes if least * size <= room * smallest]
    if not sure:
        return 0
    if sure[0] in (sizes[0], smallest):
        return sure[0]
    growth = (_peak(attempt, sure[0]) - before - least) / (sure[0] - smallest)
    return next(size for size in sizes if size == sure[0] or least + growth * (size - smallest) <= room)


def _peak(attempt: Callable[[int], None], size: int) -> int:
    with PeakMemory() as memory_taken:
        attempt(size)
    return memory_taken.bytes


class PeakMemory:
    """Watches how much memory this process has; a thread looks a thousand times a second.

    The kernel's own high-water mark never falls, and not every container lets a process reset it.
    """

    def __init__(self) -> None:
        self.bytes = 0
        """The most that was seen."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._done.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        self.bytes = max(self.bytes, resident_bytes())


def resident_bytes() -> int:
    """Memory that this process has now, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
