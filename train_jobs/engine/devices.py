"""How fast and how full a device is."""

from __future__ import annotations

import re
import resource
import time

import torch

from train_jobs.engine.distributed import World

SIDE, TRIES = 1024, 5

# Dense matrix products, FLOP/s: (16 bit, fp32 without TF32), by words of the name that CUDA gives, the first that fit;
# from NVIDIA's data sheets.
_PEAKS = {
    "H200": (989e12, 67e12),
    "H100 PCIe": (756e12, 51e12),
    "H100 NVL": (835e12, 60e12),
    "H100": (989e12, 67e12),
    "A100": (312e12, 19.5e12),
    "A10": (125e12, 31.2e12),
    "L40S": (362e12, 91.6e12),
    "L4": (121e12, 30.3e12),
    "V100": (125e12, 15.7e12),
    "T4": (65e12, 8.1e12),
}


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


def data_sheet(name: str) -> tuple[float, float] | None:
    """Peaks of a GPU in 16 bit and in fp32, FLOP/s; whole words count: an L40 is no L4, and an A10G no A10."""
    words = set(re.split(r"[\s-]+", name))
    return next((peaks for known, peaks in _PEAKS.items() if words.issuperset(known.split())), None)


def memory_bytes(device: torch.device) -> int:
    """The most that this process has held so far: of a GPU's memory as torch counts it, else resident on the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _seconds(x: torch.Tensor) -> float:
    started = time.perf_counter()
    x @ x
    return time.perf_counter() - started
