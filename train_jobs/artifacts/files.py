"""Files as both packages write, check and lock them.

Locks are released by the kernel when their process dies, however it dies. `hold` is filelock's. Two things that it does
not offer are done with `flock` here, and nowhere else:

- `is_held` asks with a shared lock on a file opened for reading, so that askers never block each other or the holder
  for long, never create the file and need no permission to write it. A lock of filelock is always exclusive: two
  `orchestrator list` at the same moment would each see the other as a supervisor that lives.
- `try_lock` locks a file that holds data, through the very stream that writes it (a download, which is renamed into its
  place while it is locked). It creates no other file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader on the same disk sees the old one or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_draft(texts: Mapping[Path, str]) -> None:
    """Write files of a folder that is not visible yet; all are on the disk when this returns.

    They are synced together, which takes a journalling file system little longer than one sync.
    """
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    with ThreadPoolExecutor(max_workers=len(texts)) as pool:
        list(pool.map(sync, texts))


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is no such file, or something else in it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
