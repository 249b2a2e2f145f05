"""Facts of the machine: free memory, processes, the address of its metadata service; and no telemetry."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

METADATA_VARIABLE = "ORCHESTRATOR_MACHINE_METADATA"
"""Environment variable with the address of the machine's metadata service; without it none is asked."""


class Memory(NamedTuple):
    """Host memory, in bytes."""

    available: int
    """Bytes that can be allocated without swapping and below the limit."""
    limit: int | None
    """Limit of the container, if it has one."""
    total: int
    """Memory of the machine, or the limit."""


def host_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> Memory:
    """Read the memory of this host from the kernel; cached files count as available."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    available = int(lines["MemAvailable"].split()[0]) * 1024
    total = int(lines["MemTotal"].split()[0]) * 1024
    limit = _number(cgroup / "memory.max")
    if limit is not None:
        rows = (line.split() for line in (_text(cgroup / "memory.stat") or "").splitlines())
        cached = next((int(row[1]) for row in rows if row[0] == "inactive_file"), 0)
        used = (_number(cgroup / "memory.current") or 0) - cached
        available, total = min(available, limit - used), min(total, limit)
    return Memory(available, limit, total)


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.isdecimal() else None  # "max": no limit


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def boot_id() -> str | None:
    """Return the id of this boot of the machine; None if the kernel has none."""
    return _text(Path("/proc/sys/kernel/random/boot_id"))


def process_started(pid: int) -> int | None:
    """Return the start of a process in clock ticks since the boot; None for no such process, or a zombie."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None  # proc(5): fields 22 and 3


def process_state(pid: int) -> str | None:
    """Return one letter: R running, S sleeping, D waiting for a disk, T stopped, ...; None without such a process."""
    fields = _stat(pid)
    return fields[0] if fields else None


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third."""
    # the second, the command's name in brackets, may hold anything
    return (_text(Path(f"/proc/{pid}/stat")) or "").rpartition(")")[2].split()


MLFLOW, ONNX_RUNTIME = "MLFLOW_DISABLE_TELEMETRY", "ORT_DISABLE_TELEMETRY"


def no_telemetry() -> None:
    """Disable the telemetry of MLflow and onnxruntime in this process and its children.

    They read the variables when they are imported, so call this first. A variable that the user has set stays.
    """
    os.environ.setdefault(MLFLOW, "true")
    os.environ.setdefault(ONNX_RUNTIME, "1")
