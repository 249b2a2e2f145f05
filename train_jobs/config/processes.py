"""Which process a number stands for. A pid alone may be another's by tomorrow; with boot and start it names one."""

from __future__ import annotations

from pathlib import Path


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
