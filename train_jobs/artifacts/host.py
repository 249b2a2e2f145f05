"""Facts about this machine: memory, processes, boot id, clock; and a switch for the telemetry of libraries."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

METADATA_VARIABLE = "ORCHESTRATOR_MACHINE_METADATA"
"""Environment variable with the address of the cloud's metadata service; unset: no service is queried."""
CLOCK_VARIABLE = "ORCHESTRATOR_CLOCK"
"""Environment variable with the clock of a run."""


class Memory(NamedTuple):
    """Host memory, in bytes."""

    available: int
    """Bytes that can be allocated without swapping and within the limit."""
    limit: int | None
    """Limit of the container; None without one."""
    total: int
    """Memory of the machine, or the limit if that is lower."""


def host_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> Memory:
    """Read the memory of this host from the kernel; cached files count as available.

    Args:
        meminfo: proc(5)'s /proc/meminfo.
        cgroup: mount point of cgroup v2.
    """
    lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="utf-8").splitlines() if ":" in line)
    available = int(lines["MemAvailable"].split()[0]) * 1024
    total = int(lines["MemTotal"].split()[0]) * 1024
    limit = _number(cgroup / "memory.max")
    if limit is not None:
        rows = (line.split() for line in (_text(cgroup / "memory.stat") or "").splitlines())
        # memory.current counts the page cache; inactive file pages are reclaimed before the limit kills a process.
        cached = next((int(row[1]) for row in rows if row[0] == "inactive_file"), 0)
        used = (_number(cgroup / "memory.current") or 0) - cached
        available, total = min(available, limit - used), min(total, limit)
    return Memory(available, limit, total)


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.isdecimal() else None  # "max": no limit


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def boot_id() -> str | None:
    """Return the id of the machine's current boot; None if the kernel does not provide one."""
    return _text(Path("/proc/sys/kernel/random/boot_id"))


class RunClock(NamedTuple):
    """A clock that cannot be set: the wall clock at some moment, continued by the kernel's count since the boot."""

    boot_id: str | None
    """Boot that `since_boot` counts from."""
    since_boot: float
    """Seconds from the boot to that moment, time in which the machine slept included (CLOCK_BOOTTIME)."""
    wall: float
    """The wall clock at that moment, in seconds since the epoch."""

    @classmethod
    def start(cls) -> RunClock:
        """Return a clock that agrees with the wall clock now."""
        return cls(boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time())

    def now(self) -> float:
        """Return seconds since the epoch; after a reboot of the machine, those of the wall clock."""
        if self.boot_id is None or self.boot_id != boot_id():
            return time.time()
        return self.wall + time.clock_gettime(time.CLOCK_BOOTTIME) - self.since_boot

    def continued(self, last: float) -> RunClock:
        """Return this clock; after a reboot of the machine, one that starts now.

        Args:
            last: the last known moment of this clock; a clock that starts now does not start before it.
        """
        if self.boot_id is not None and self.boot_id == boot_id():
            return self
        fresh = self.start()
        return fresh._replace(wall=max(fresh.wall, last))

    @property
    def variables(self) -> dict[str, str]:
        """The environment variable that hands the clock to the processes of a run."""
        return {CLOCK_VARIABLE: json.dumps(self)}

    @classmethod
    def inherited(cls) -> RunClock:
        """Return the clock in the environment; without one, a clock that starts now."""
        with suppress(KeyError, ValueError, TypeError):
            return cls(*json.loads(os.environ[CLOCK_VARIABLE]))
        return cls.start()


def process_started(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None for a zombie or an unknown process."""
    # With the process id it identifies a process: the kernel reuses ids.
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None  # proc(5): fields 22 and 3


def process_state(pid: int) -> str | None:
    """Return the state letter of proc(5) (R running, S sleeping, D disk, T stopped, ...); None without the process."""
    fields = _stat(pid)
    return fields[0] if fields else None


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on."""
    # The second, the command's name in parentheses, may contain spaces and parentheses.
    return (_text(Path(f"/proc/{pid}/stat")) or "").rpartition(")")[2].split()


MLFLOW, ONNX_RUNTIME = "MLFLOW_DISABLE_TELEMETRY", "ORT_DISABLE_TELEMETRY"


def disable_telemetry() -> None:
    """Disable the telemetry of MLflow and onnxruntime in this process and its children.

    Call it before they are imported, since they read the variables then. Variables that the user has set are kept.
    """
    os.environ.setdefault(MLFLOW, "true")
    os.environ.setdefault(ONNX_RUNTIME, "1")
