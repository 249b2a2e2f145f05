"""What this machine has: cores, memory, GPUs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import NamedTuple

from train_jobs.artifacts.host import host_memory

SMI_SECONDS = 20  # a driver that wakes up its GPUs takes seconds, a broken one for ever
SMI_QUERY = ("--query-gpu=name,memory.total", "--format=csv,noheader")  # `NVIDIA A100-SXM4-80GB, 81920 MiB`
MEBIBYTE = 1 << 20
NONE_LISTED = {"", "-1", "NoDevFiles"}


class Gpu(NamedTuple):
    """What is known of a GPU."""

    name: str
    """Its maker's name, or the short one of the table of sizes."""
    memory_bytes: int | None
    """None: the driver does not say, as where it is the machine's own."""


def usable_cores() -> int:
    """CPU cores that this process may use: its affinity mask where the system has one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_memory() -> int | None:
    """Bytes that the machine has, or the container may take; None where the system does not say."""
    try:
        return host_memory().total
    except OSError:  # no /proc
        return None


def visible_gpus(environ: Mapping[str, str]) -> int:
    """GPUs that a process started here would see.

    CUDA_VISIBLE_DEVICES decides where it is set (CUDA's own rule: ids after a -1 do not count); else `nvidia-smi` is
    asked where it is on the PATH; a machine without it has none.
    """
    listed = listed_gpus(environ)
    return len(_asked(environ)) if listed is None else len(listed)


def gpus_of_machine(environ: Mapping[str, str]) -> tuple[int, Gpu | None]:
    """As many as `visible_gpus`, and what they are, by `nvidia-smi`.

    Of GPUs that differ it is the one with the least memory; None: there are none, or nobody says.
    """
    listed = listed_gpus(environ)
    if listed == []:
        return 0, None
    there = seen = _asked(environ)
    if listed is not None and all(device.isdecimal() and int(device) < len(there) for device in listed):
        seen = [there[int(device)] for device in listed]
    count = len(there) if listed is None else len(listed)
    return count, min(seen, key=lambda gpu: gpu.memory_bytes or 0, default=None)


def listed_gpus(environ: Mapping[str, str]) -> list[str] | None:
    """Ids in CUDA_VISIBLE_DEVICES that count; None where it is not set."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return None
    ids = [part.strip() for part in listed.split(",")]
    return ids[: min((index for index, device in enumerate(ids) if device in NONE_LISTED), default=len(ids))]


def _asked(environ: Mapping[str, str]) -> list[Gpu]:
    """GPUs that `nvidia-smi` lists; none where there is no such command, or it does not answer."""
    import subprocess  # costs 10 ms that a machine without NVIDIA's tools need not pay

    if (program := shutil.which("nvidia-smi", path=environ.get("PATH"))) is None:
        return []
    try:
        answer = subprocess.run([program, *SMI_QUERY], capture_output=True, text=True, timeout=SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []  # a driver that does not answer has no GPU to offer
    if answer.returncode:
        return []
    rows = [line.rsplit(",", 1) for line in answer.stdout.splitlines() if "," in line]
    return [Gpu(name.strip(), _mebibytes(memory)) for name, memory in rows]


def _mebibytes(text: str) -> int | None:
    """`81920 MiB` in bytes; None for `[N/A]`."""
    number = text.split()[0] if text.strip() else ""
    return int(number) * MEBIBYTE if number.isdecimal() else None
