"""Files of users as regular files: a FIFO keeps its reader waiting, and a device such as /dev/zero has no end.

Errors are of type OSError, so readers handle them as they handle missing permission.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# What the user's shell or another program opened for this process: `-f /dev/stdin` and `-f <(command)`.
_GIVEN = re.compile(r"/dev/stdin|/dev/fd/\d+|/proc/self/fd/\d+")


class SpecialFileError(OSError):
    """A path names something that is neither a regular file nor a folder."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def special_kind(path: Path) -> str | None:
    """Return what a path names, such as `a FIFO`; None for a file, a folder and a path that does not exist."""
    try:
        return _KINDS.get(stat.S_IFMT(path.stat().st_mode))
    except OSError:
        return None


def require_regular(path: Path) -> None:
    """Require that a path that exists names a regular file or a folder; the file is not opened.

    Raises:
        SpecialFileError: it names something else.
    """
    if (kind := special_kind(path)) is not None:
        raise SpecialFileError(path, kind)


def open_regular(path: Path, *, buffering: int = -1, pipe: bool = False) -> BinaryIO:
    """Open a regular file for reading.

    Args:
        path: the file.
        buffering: see `open`.
        pipe: whether a pipe that this process was given, such as /dev/stdin, is read too; for files read once.

    Raises:
        SpecialFileError: the path names no regular file.
        OSError: the file cannot be opened.
    """
    if pipe and _GIVEN.fullmatch(str(path)) and special_kind(path) == _KINDS[stat.S_IFIFO]:
        return path.open("rb", buffering)
    require_regular(path)  # before it is opened: that alone rewinds a tape, and fails for a socket
    # A FIFO that takes the place of the file here must not block either.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        kind = _KINDS.get(stat.S_IFMT(os.fstat(handle).st_mode))
        if kind is not None:
            raise SpecialFileError(path, kind)
        return os.fdopen(handle, "rb", buffering)  # closed by the caller
    except BaseException:
        os.close(handle)
        raise


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Return the content of a regular file.

    Args:
        path: the file.
        most: maximum bytes. None: no limit.

    Raises:
        SpecialFileError: the path names no regular file.
        OSError: the file cannot be read, or is larger than `most`.
    """
    with open_regular(path) as stream:
        content = stream.read(-1 if most is None else most + 1)
    if most is not None and len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most >> 20} MiB", str(path))
    return content
