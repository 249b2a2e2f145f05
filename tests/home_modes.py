"""Modes of home folders, and the umask of the process that makes them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Set the umask of this process and of those that it starts."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    """Return the permissions of a file or folder."""
    return stat.S_IMODE(path.lstat().st_mode)


def other_modes(home: Path, folders: int = 0o700, files: int = 0o600) -> dict[str, str]:
    """Return the files and folders of a home that have other modes than these: path -> mode."""
    found = {}
    for path in (home, *home.rglob("*")):
        if not path.is_symlink() and mode_of(path) != (folders if path.is_dir() else files):
            found[str(path.relative_to(home))] = f"{mode_of(path):04o}"
    return found
