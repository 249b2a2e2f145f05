"""Locks on files: held by one process at a time, and released by the kernel when that process dies, however it dies.

`hold` is filelock's. Two things that filelock does not offer are done with `flock` here, and nowhere else:

- `is_held` asks with a shared lock on a file opened for reading, so that askers never block each other or the holder
  for long, never create the file and need no permission to write it. A lock of filelock is always exclusive: two
  `orchestrator list` at the same moment would each see the other as a supervisor that lives.
- `try_lock` locks a file that holds data, through the very stream that writes it (a download, which is renamed into its
  place while it is locked). Nothing is left beside the data.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

POLL_SECONDS = 0.02


@contextmanager
def hold(
    path: Path, *, seconds: float = -1, busy: Exception | None = None, waiting: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Hold the lock of a file, which is created if it is missing and stays.

    Args:
        path: the lock file; its folder must exist.
        seconds: how long to wait for another holder; -1: for ever.
        busy: raised if another process held the lock all the time; None: filelock's Timeout, a TimeoutError.
        waiting: called once if another process holds the lock.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        waiting()
        try:
            lock.acquire(timeout=seconds, poll_interval=POLL_SECONDS)
        except Timeout as problem:
            raise (busy or problem) from None
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock of a file; False if there is no such file."""
    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def try_lock(stream: IO[Any]) -> bool:
    """Lock an open file until it is closed; return False if another process holds its lock."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
