"""What a job asks its machine: how much memory it still has, and whom to ask whether it is to be taken away."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

METADATA_VARIABLE = "ORCHESTRATOR_MACHINE_METADATA"
"""Environment variable with the address of the machine's metadata service; without it nobody is asked."""


class Memory(NamedTuple):
    """Host memory, in bytes."""

    available: int
    """What can be had without swapping and without the limit being met."""
    limit: int | None
    """Of the container, if it has one."""
    total: int
    """All that there is: the machine's, or the limit."""


def host_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> Memory:
    """What the kernel says. Files that it keeps because nobody needs the memory count as available."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    available = int(lines["MemAvailable"].split()[0]) * 1024
    total = int(lines["MemTotal"].split()[0]) * 1024
    limit = _number(cgroup / "memory.max")
    if limit is not None:
        used = (_number(cgroup / "memory.current") or 0) - _cached_files(cgroup / "memory.stat")
        available, total = min(available, limit - used), min(total, limit)
    return Memory(available, limit, total)


def _cached_files(path: Path) -> int:
    rows = (line.split() for line in (_text(path) or "").splitlines())
    return next((int(row[1]) for row in rows if row[0] == "inactive_file"), 0)


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.isdecimal() else None  # "max": no limit


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
