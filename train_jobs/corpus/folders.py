"""Folders that appear whole or not at all, on a local disk: built beside their place, then renamed."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from train_jobs.config.files import sync

BUILDING = ".building"


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


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yields an empty folder that takes the place of `folder` if the block ends well and is removed if it does not.

    Call it under `exclusive`: what dead builders left is removed first.
    """
    for stale in folder.parent.glob(f".{folder.name}.*{BUILDING}"):
        shutil.rmtree(stale)
    building = folder.with_name(f".{folder.name}.{os.getpid()}{BUILDING}")
    building.mkdir()
    try:
        yield building
        if folder.exists():
            old = building.with_name(f".{folder.name}.old{BUILDING}")
            folder.rename(old)
            building.rename(folder)
            shutil.rmtree(old)
        else:
            building.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(building, ignore_errors=True)
