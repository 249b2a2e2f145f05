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


def boot_id() -> str | None:
    """What names this boot of this machine; None where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def process_started(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot; None if there is none, or only its remains."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None  # proc(5): fields 22 and 3


def process_state(pid: int) -> str | None:
    """One letter: R running, S sleeping, D waiting for a disk, T stopped, ...; None if there is no such process."""
    fields = _stat(pid)
    return fields[0] if fields else None


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on."""
    try:
        # the second, the command's name in brackets, may hold anything
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
