"""Load of the NVIDIA GPUs of this machine, read from the driver's library NVML, which nvidia-smi reads too.

NVML is called through ctypes: a call takes a millisecond, and the packages that wrap it are no dependency.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

LIBRARY = "libnvidia-ml.so.1"
MEGABYTE = 1e6
VISIBLE = "CUDA_VISIBLE_DEVICES"


class _Memory(ctypes.Structure):
    """NVML's nvmlMemory_t, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    """NVML's nvmlUtilization_t, in percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def gpu_reader() -> Callable[[], dict[str, float]] | None:
    """Return a function that samples all GPUs that the job may use; None without NVIDIA's driver."""
    try:
        nvml = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return None
    handles = {}
    for number in range(count.value):
        handle = ctypes.c_void_p()
        if not nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)):
            handles[number] = handle
    named = os.environ.get(VISIBLE, "").split(",")
    used = {int(name) for name in named if name.isdigit()} & handles.keys()  # UUIDs: all GPUs
    chosen = {number: handle for number, handle in handles.items() if number in used or not used}
    return lambda: {name: value for number, handle in chosen.items() for name, value in _sample(nvml, number, handle)}


def _sample(nvml: ctypes.CDLL, number: int, handle: ctypes.c_void_p) -> list[tuple[str, float]]:
    """Return the metrics of one GPU; those that it does not support are left out (nonzero code of the call)."""
    found = []
    memory, load = _Memory(), _Utilization()
    power, limit = ctypes.c_uint(), ctypes.c_uint()
    if not nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) and memory.total:
        found += [
            ("memory_usage_megabytes", memory.used / MEGABYTE),
            ("memory_usage_percentage", 100 * memory.used / memory.total),
        ]
    if not nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(load)):
        found.append(("utilization_percentage", float(load.gpu)))
    if not nvml.nvmlDeviceGetPowerUsage(handle, ctypes.byref(power)):
        found.append(("power_usage_watts", power.value / 1000))
        if not nvml.nvmlDeviceGetEnforcedPowerLimit(handle, ctypes.byref(limit)) and limit.value:
            found.append(("power_usage_percentage", 100 * power.value / limit.value))
    return [(f"gpu_{number}_{name}", value) for name, value in found]
