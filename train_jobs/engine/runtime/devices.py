"""How fast and how full a device is."""

from __future__ import annotations

import resource
import time

import torch

from train_jobs.config.arithmetic import data_sheet
from train_jobs.engine.runtime.distributed import World

SIDE, TRIES = 1024, 5


def peak_flops(world: World, precision: str) -> float | None:
    """Floating-point operations a second of all processes' devices, for utilisation; None for an unknown GPU.

    A GPU's is its data sheet's. A CPU's is that of a matrix product of 1024 x 1024 x 1024, measured here: the best of
    five, since others may be at work. All devices are taken to be as fast as this one.
    """
    if world.device.type == "cuda":
        peaks = data_sheet(world.device_name)
        return None if peaks is None else peaks[precision == "fp32"] * world.size
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    x = torch.ones(SIDE, SIDE, dtype=dtype)
    return 2 * SIDE**3 / min(_seconds(x) for _ in range(TRIES)) * world.size


def memory_bytes(device: torch.device) -> int:
    """The most that this process has held so far: of a GPU's memory as torch counts it, else resident on the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _seconds(x: torch.Tensor) -> float:
    started = time.perf_counter()
    x @ x
    return time.perf_counter() - started
