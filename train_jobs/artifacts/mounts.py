"""Mounted file systems: where a folder is mounted, whether it is read-only, and the error that reports this."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from train_jobs.artifacts.process_limits import more_files, open_files_limit
from train_jobs.config.errors import StorageError, in_shell

READ_ONLY = "read-only file system"
FULL = {errno.ENOSPC, errno.EDQUOT}
DISK_ERRORS = FULL | {errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG, errno.EMFILE, errno.ENFILE}


class Mount(NamedTuple):
    """A mounted file system."""

    point: Path
    """Folder that it is mounted on."""
    kind: str
    """Type, as the kernel calls it: ext4."""


def mount_lines() -> list[str]:
    """Return the lines of /proc/self/mountinfo, see proc_pid_mountinfo(5); names in them may be in other encodings."""
    return os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).rstrip("\n").split("\n")


def mount_of(folder: Path) -> Mount:
    """Return the mount of a folder; one of the type `unknown` if the kernel lists none."""
    found, longest, place = Mount(Path("/"), "unknown"), -1, folder.resolve()
    for line in mount_lines():
        fields, _, details = line.partition(" - ")
        # the kernel writes a blank in a path as its octal code
        point = Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields.split()[4]))
        # the innermost mount decides; of several on one folder the last one, which covers the others
        if place.is_relative_to(point) and len(point.parts) >= longest:
            found, longest = Mount(point, details.split()[0]), len(point.parts)
    return found


def is_read_only(folder: Path) -> bool:
    """Return whether the file system of a folder is read-only; False if that cannot be determined."""
    # Not by the mount's flags: ext4 keeps `rw` in them when an error made it read-only. A file without a name (Linux
    # 3.11) leaves nothing behind, even if this process is killed.
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600))
    except OSError as problem:
        return problem.errno == errno.EROFS
    return False


def remount(folder: Path) -> str:
    """Return the imperative sentence that makes the file system of a folder writable."""
    return f"mount it writable: sudo mount -o remount,rw {in_shell(mount_of(folder).point)}"


def write_error(message: str, problem: OSError, folder: Path, *, fix: str, then: str = "") -> StorageError:
    """Return the error for a folder that cannot be written.

    Args:
        message: what could not be done: "cannot resume run bert".
        problem: the error of the file system.
        folder: the folder.
        fix: the fix, unless the file system is read-only.
        then: end of the fix, in either case: "; then: orchestrator resume bert".
    """
    if problem.errno == errno.EROFS:
        return StorageError(f"{message}: {READ_ONLY}", facts={"where": folder}, fix=remount(folder) + then)
    if (command := more_files(problem.errno)) is not None:
        again = then if then.startswith(";") else "; then run the same command again"
        reason = f"{message}: {problem.strerror}"
        return StorageError(reason, facts={"limit": open_files_limit()}, fix=command + again)
    return StorageError(f"{message}: {problem.strerror or problem}", facts={"where": folder}, fix=fix + then)


@contextmanager
def reporting_write_errors(message: str, folder: Path) -> Iterator[None]:
    """Report errors of a disk in a block; other errors of the operating system pass.

    Args:
        message: see `write_error`.
        folder: the folder that the block writes to.

    Raises:
        StorageError: the block could not read or write a file.
    """
    try:
        yield
    except OSError as problem:
        if problem.errno not in DISK_ERRORS:
            raise
        named = problem.filename if isinstance(problem.filename, str) else "/proc/"
        where = folder if named.startswith("/proc/") else Path(named)  # an open file has only a path of the kernel
        fix = "free some space" if problem.errno in FULL else f"ls -ld {in_shell(where)}"
        raise write_error(message, problem, where, fix=fix) from problem
