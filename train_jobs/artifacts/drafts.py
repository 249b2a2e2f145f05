"""Hidden drafts of files and folders, which take their names once complete, and whose leftovers the next one deletes.

A draft is named `.NAME.COUNT.PID-STARTED-BOOT.tmp`, after the process that writes it. A process that makes a draft
deletes those of killed processes in the same folder.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from train_jobs.artifacts.host import boot_id, process_started

ENDING = ".tmp"
OLD_SECONDS = 3600.0  # after which a draft of another machine, or of an earlier boot, is abandoned
PID_SPACE = Path("/proc/self/ns/pid")  # its inode identifies the container in which a pid is valid
_counter = itertools.count()


class Owner(NamedTuple):
    """The process that made a draft. A pid alone may belong to another process by now."""

    pid: int
    started: int
    """Its start, in clock ticks since the boot."""
    boot: str
    """First part of the id of the boot, and the container in which the pid is valid."""

    @classmethod
    def current(cls) -> Owner:
        """Return this process."""
        return cls(os.getpid(), process_started(os.getpid()) or 0, boot_token())

    @classmethod
    def of(cls, path: Path) -> Owner | None:
        """Return the process that made a draft; None: its name names none."""
        try:
            pid, started, boot = path.name.removesuffix(ENDING).rpartition(".")[2].split("-")
            return cls(int(pid), int(started), boot)
        except ValueError:
            return None

    @property
    def lives(self) -> bool:
        """Whether the process lives; it must be one of this boot of this machine."""
        return process_started(self.pid) == self.started

    def __str__(self) -> str:
        return f"{self.pid}-{self.started}-{self.boot}"


def boot_token() -> str:
    """Return what identifies this boot of this machine, and the container."""
    space = 0
    with suppress(OSError):
        space = PID_SPACE.stat().st_ino
    return f"{(boot_id() or '0').partition('-')[0]}{space:x}"


@contextmanager
def draft(path: Path) -> Iterator[Path]:
    """Yield an unused hidden name next to `path`. The block renames what it makes there; otherwise it is deleted.

    Args:
        path: the file or folder that is made; its folder must exist.
    """
    delete_dead_drafts(path.parent)
    with _draft(path) as own:
        yield own


@contextmanager
def small_draft(path: Path) -> Iterator[Path]:
    """Yield a name as `draft` does, but look for leftovers only once in each folder, for files written often."""
    _delete_once(path.parent)
    with _draft(path) as own:
        yield own


@contextmanager
def scratch_folder(name: str, place: Path | None = None) -> Iterator[Path]:
    """Yield an empty hidden folder that only this user can enter, and delete it at the end.

    Args:
        name: part of its name.
        place: its parent. None: the folder for temporary files.

    Raises:
        OSError: it cannot be created.
    """
    with draft((place or Path(tempfile.gettempdir())) / name) as folder:
        folder.mkdir(mode=0o700)
        yield folder


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    own = path.with_name(f".{path.name}.{next(_counter)}.{Owner.current()}{ENDING}")
    try:
        yield own
    finally:
        _delete(own)


def delete_dead_drafts(folder: Path) -> None:
    """Delete the drafts of killed processes in a folder, as far as possible."""
    before, here = time.time() - OLD_SECONDS, boot_token()
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not (entry.name.startswith(".") and entry.name.endswith(ENDING)):
                continue
            path = folder / entry.name
            if (owner := Owner.of(path)) is None:
                continue
            with suppress(OSError):  # deleted or renamed meanwhile
                known = owner.boot == here
                if (not owner.lives) if known else _last_change(path) < before:
                    _delete(path)


@cache
def _delete_once(folder: Path) -> None:
    delete_dead_drafts(folder)


def _last_change(path: Path) -> float:
    """Return the time of the last change of a file, or of all in a folder."""
    return max(one.lstat().st_ctime for one in (path, *path.rglob("*")))


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # a folder
        shutil.rmtree(path, ignore_errors=True)
