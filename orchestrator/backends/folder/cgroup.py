"""The control group of a run (cgroup v2), on systems that let this user create one.

A process cannot leave it by clearing its environment, or by starting another session and parent, which is how
other processes are found and ended. `cgroup.kill` ends all members together. Elsewhere (cgroup v1, most containers) no
group is created.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from train_jobs.artifacts.files import write_text
from train_jobs.artifacts.mounts import mount_lines

CGROUP_FILE = "cgroup"  # in the run's folder: the path of its control group
MOUNT_POINT, MOUNT_ROOT = 4, 3  # fields of a mount's line


def make_cgroup(folder: Path) -> Path | None:
    """Create the control group of the run in a folder; None: this user cannot."""
    try:
        group = _own_cgroup() / _name_of(folder)
        group.mkdir(exist_ok=True)
        if not os.access(group / "cgroup.kill", os.W_OK):  # Linux 5.14
            group.rmdir()
            return None
        write_text(folder / CGROUP_FILE, f"{group}\n")
    except (OSError, LookupError):
        return None
    return group


def enter_cgroup(group: Path | None) -> None:
    """Move this process into a control group, which its descendants inherit; without permission, it stays outside.

    It may run between fork and exec: it imports nothing and takes no lock.
    """
    if group is not None:
        with suppress(OSError):
            descriptor = os.open(f"{group}/cgroup.procs", os.O_WRONLY)
            os.write(descriptor, b"0")
            os.close(descriptor)


def members(folder: Path) -> set[int]:
    """Return the process ids in the control group of a run; empty if it has none."""
    try:
        return {int(line) for line in (_group_of(folder) / "cgroup.procs").read_text().split()}
    except OSError:
        return set()


def kill_members(folder: Path) -> None:
    """Kill all processes in the control group of a run."""
    with suppress(OSError):
        (_group_of(folder) / "cgroup.kill").write_text("1")


def remove_cgroup(folder: Path) -> None:
    """Remove the control group of a run; one with a process stays."""
    with suppress(OSError):
        _group_of(folder).rmdir()
        (folder / CGROUP_FILE).unlink()


def _name_of(folder: Path) -> str:
    return f"orchestrator-{hashlib.sha256(bytes(folder.resolve())).hexdigest()[:16]}"


def _group_of(folder: Path) -> Path:
    """Return the control group of the run in a folder; FileNotFoundError: it has none."""
    group = Path((folder / CGROUP_FILE).read_text().strip())
    if group.name != _name_of(folder):
        # a copy of the folder of a running run: the group has the processes of the original
        raise FileNotFoundError(group)
    return group


def _own_cgroup() -> Path:
    """Return the folder of this process's control group; LookupError: cgroup v2 is not mounted."""
    lines = os.fsdecode(Path("/proc/self/cgroup").read_bytes()).split("\n")
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    for line in mount_lines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            mounted = fields.split()
            return Path(mounted[MOUNT_POINT], path.removeprefix(mounted[MOUNT_ROOT]).lstrip("/"))
    raise LookupError("cgroup v2 is not mounted")
