"""The right to build a folder, which one process of a machine has at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the right to build `folder`; the kernel takes it back if the process dies.

    Args:
        folder: what is to be built; the lock is a hidden file beside it.
        waiting: called once if another process holds it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file releases it
