"""The home folder and the disks: can they be written, do locks hold, is there room."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from orchestrator.support.finding import Finding, fail, ok, warn
from orchestrator.support.formatting import bytes_text
from train_jobs.artifacts.file_lock import try_lock

LEAST_FREE = 100e6  # less than one small checkpoint
LITTLE_FREE = 5e9  # a few checkpoints of BERT-base
REMOTE = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "lustre")  # beginnings of the types
PROBE_BYTES = 64 * 1024
MOVE_HOME = "set ORCHESTRATOR_HOME to a folder on a local disk"


def home_folder(home: Path) -> Iterator[Finding]:
    """Whether runs can be made there, and whether its file system keeps two supervisors apart."""
    place = existing(home)
    kind = file_system(place)
    where = f"{home} ({kind})"
    if home.exists() and not home.is_dir():
        yield fail("home", f"{home} is a file", MOVE_HOME)
        return
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=".doctor-") as probe:
            Path(probe, "bytes").write_bytes(bytes(PROBE_BYTES))
            held = _lock_holds(Path(probe, "lock"))
    except OSError as problem:
        yield fail("home", f"cannot write to {where}: {problem.strerror}", f"free some space, or {MOVE_HOME}")
        return
    if kind == "overlay":
        yield warn("home", f"{where} goes away with its container", "mount a volume, and ORCHESTRATOR_HOME below it")
    else:
        yield ok("home", where if home.is_dir() else f"{where}, made by the first run")
    if not held:
        yield fail(
            "locks", f"two processes get the same lock on {kind}: runs could not be told dead or alive", MOVE_HOME
        )
    elif kind.startswith(REMOTE):
        yield warn("locks", f"held here, but {kind} may lose them when its server is out of reach", MOVE_HOME)
    else:
        yield ok("locks", f"held, on {kind}")


def disks(home: Path) -> Iterator[Finding]:
    """Room for runs, and for temporary files."""
    try:
        temporary = Path(tempfile.gettempdir())
    except FileNotFoundError:
        yield fail("temporary files", "no folder for them can be written", "free some space in /tmp, or set TMPDIR")
    else:
        yield _room("temporary files", temporary, "free some space, or set TMPDIR", little=LEAST_FREE)
    yield _room("disk", existing(home), "orchestrator prune --keep-last 3 --dry-run", little=LITTLE_FREE)


def _room(name: str, place: Path, fix: str, *, little: float) -> Finding:
    free = shutil.disk_usage(place).free
    text = f"{bytes_text(free)} free at {place}"
    if free < LEAST_FREE:
        return fail(name, text, fix)
    return warn(name, text, fix) if free < little else ok(name, text)


def existing(folder: Path) -> Path:
    """The folder, or the nearest parent that there is."""
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def file_system(folder: Path) -> str:
    """Type of the file system that a folder lies on, as the kernel calls it."""
    found, longest = "unknown", -1
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, details = line.partition(" - ")
        # a blank in a path is written as its octal code
        mounted = Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields.split()[4]))
        if folder.resolve().is_relative_to(mounted) and len(mounted.parts) >= longest:
            found, longest = details.split()[0], len(mounted.parts)
    return found


def _lock_holds(path: Path) -> bool:
    """Whether a second opening of a locked file is refused the lock."""
    with path.open("w") as first, path.open("w") as second:
        return try_lock(first) and not try_lock(second)
