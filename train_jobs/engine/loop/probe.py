"""Search for the largest micro batch that fits, before the first step."""

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
from train_jobs.engine.loop.gradients import Passes, accumulate
from train_jobs.engine.loop.task import TrainingTask
from train_jobs.engine.runtime.allocator import return_freed_memory
from train_jobs.engine.runtime.devices import is_out_of_memory, micro_batch_error, release_memory
from train_jobs.engine.runtime.distributed import World

SPARE = 0.05  # share of a GPU's memory, for fragmentation of the allocator and for NCCL's buffers
HOST_SHARE = 0.8  # share of the available host memory: other programs allocate too
SAMPLE_SECONDS = 0.001
PAGE = resource.getpagesize()


def largest_micro_batch(
    task: TrainingTask[Any],
    sizes: Sequence[int],
    *,
    world: World,
    precision: str,
    later_bytes: int,
    available: Callable[[], int] = lambda: host_memory().available,
) -> int:
    """Return the largest of `sizes` whose forward and backward pass fit on every process; all must call it.

    On a GPU sizes are tried, the largest first. On a CPU only sizes that fit are tried, and the memory of the others is
    extrapolated. The caller must zero the gradients; weights, moments and random numbers do not change.

    Args:
        task: model, and synthetic batches that need the most memory.
        sizes: in sequences, the largest first, the same on every process.
        later_bytes: bytes that this process will allocate later, such as moments.
        world: the processes.
        precision: bf16, fp16 or fp32.
        available: returns the bytes of the host that are free for all its processes.

    Raises:
        OutOfMemoryError: not even the smallest fits on some process.
    """

    def attempt(size: int) -> None:
        try_micro_batch(task, size, world=world, precision=precision)

    with preserving_state(task, world):
        if world.device.type == "cuda":
            mine = _largest_on_gpu(attempt, sizes, later_bytes, world.device)
        else:
            # Never by trial and error: Linux overcommits memory, so nothing raises; the kernel kills the process
            # instead.
            release_memory(world.device)  # kept memory would count as taken before an attempt, but not by it
            room = int(HOST_SHARE * available()) // world.local_size - later_bytes
            # without it, memory that a faster process has allocated for its attempt would count as taken by others
            world.barrier()
            mine = _largest_on_host(attempt, sizes, room)
    release_memory(world.device)
    found = world.minimum(mine)
    if found == 0:
        raise micro_batch_error(1, step=1, device=world.device, can_shard=False)
    return found


def try_micro_batch(task: TrainingTask[Any], size: int, *, world: World, precision: str) -> None:
    """Run the forward and backward pass over the micro batch that needs the most memory.

    Args:
        task: model and batches.
        size: sequences of the micro batch.
        world: this process.
        precision: bf16, fp16 or fp32.

    Raises:
        RuntimeError, MemoryError: memory ran out.
    """
    batch = task.largest_batch(size)
    totals = torch.tensor(task.counts(batch))
    accumulate(task, batch, totals, Passes(size, precision), world)


@contextmanager
def preserving_state(task: TrainingTask[Any], world: World) -> Iterator[None]:
    """Restore random numbers and the mode of the model after the body; the caller must zero the gradients."""
    # A run that searched its micro batch must be bit-exact with one that was given it.
    was_training = task.model.training
    with torch.random.fork_rng([world.device] if world.device.type == "cuda" else []):
        yield
    task.model.train(was_training)


def _largest_on_gpu(
    attempt: Callable[[int], None], sizes: Sequence[int], later_bytes: int, device: torch.device
) -> int:
    """Return the first of `sizes` that fits in addition to `later_bytes`; 0 if none does."""
    taken = later_bytes + int(SPARE * torch.cuda.get_device_properties(device).total_memory)
    for size in sizes:
        fits = _fits_on_gpu(attempt, size, taken, device)
        release_memory(device)
        if fits:
            torch.cuda.reset_peak_memory_stats(device)  # or reports would show the peak of the search, not of training
            return size
    return 0


def _fits_on_gpu(attempt: Callable[[int], None], size: int, taken: int, device: torch.device) -> bool:
    try:
        # An empty block reserves what is allocated later; without kernels it costs no time.
        reserved = torch.empty(taken, dtype=torch.uint8, device=device)
        attempt(size)
        del reserved
    except RuntimeError as problem:
        if not is_out_of_memory(problem):
            raise
        return False
    return True


def _largest_on_host(attempt: Callable[[int], None], sizes: Sequence[int], room: int) -> int:
    """Return the largest of `sizes` that needs at most `room` bytes; 0 if the smallest needs more.

    Memory has a part that every size needs (gradients, weights in 16 bit) and a part proportional to the size, so N
    times the smallest size needs at most N times its memory. If that bound is too careful, a second size measures the
    real growth.
    """
    smallest, before = sizes[-1], resident_bytes()
    least = _peak(attempt, smallest) - before
    sure = [size for size in sizes if least * size <= room * smallest]
    if not sure:
        return 0
    if sure[0] in (sizes[0], smallest):
        return sure[0]
    # Two measured points give the part that is proportional to the size, without the constant part.
    growth = (_peak(attempt, sure[0]) - before - least) / (sure[0] - smallest)
    return next(size for size in sizes if size == sure[0] or least + growth * (size - smallest) <= room)


def _peak(attempt: Callable[[int], None], size: int) -> int:
    return_freed_memory()
    with PeakMemory() as memory_taken:
        attempt(size)
    return memory_taken.bytes


class PeakMemory:
    """Context manager that measures the peak memory of this process, in a thread, a thousand times per second."""

    # Not VmHWM of /proc/self/status: the kernel's high-water mark never falls, and not every container allows a process
    # to reset it (/proc/self/clear_refs).

    def __init__(self) -> None:
        self.bytes = 0
        """Highest measured value."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        self.bytes = max(self.bytes, resident_bytes())


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * PAGE
