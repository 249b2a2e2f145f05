"""Atomic writes, syncs, hashes and locks of files, for both packages.

The kernel releases a lock when its process dies, even by SIGKILL. `hold` uses filelock. Two operations that filelock
does not offer use `flock`, only in this module:

- `is_held` tries a shared lock on a file opened for reading. Processes that test a lock do not block each other, do not
  create the file and need no permission to write it. A lock of filelock is always exclusive: two `orchestrator list`
  at the same moment would each take the other for a running supervisor.
- `try_lock` locks a folder, or a file through the stream that writes it: a download is renamed while it is locked,
  without a separate lock file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, Protocol

from train_jobs.artifacts.drafts import small_draft
from train_jobs.artifacts.regular_files import open_regular, read_bytes

SYNCS = 8  # at the same time; more are not faster
CHECKSUM = "sha256"
"""Key of a JSON object that holds the hash of its other keys."""


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: a reader on the same disk sees the old or the new content, never a part of it.

    Args:
        path: the file; its folder must exist.
        text: new content, written as UTF-8.

    Raises:
        OSError: the folder cannot be written, or the disk is full; the old file stays.
    """
    with small_draft(path) as temporary:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())  # a crash could leave the new name on an empty file
        temporary.replace(path)


class NewFile:
    """A file that is written under a temporary name and takes its own name when it is complete.

    Two processes may write the same file: one that was taken for dead, and the one that replaced it. The later one
    deletes the temporary file of the earlier one, whose `commit` then fails.

    Args:
        path: the file; its folder must exist.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._temporary.unlink(missing_ok=True)
        self.stream: BinaryIO = self._temporary.open("xb")
        """Stream that writes the content."""
        self._inode = os.fstat(self.stream.fileno()).st_ino

    def commit(self) -> None:
        """Sync the content to the disk, close the stream and rename the file.

        Raises:
            OSError: the disk is full, or another process writes the same file.
        """
        self.stream.flush()
        os.fsync(self.stream.fileno())
        if not self._is_own():
            raise OSError(errno.ESTALE, "another process writes the same file", str(self.path))
        self.stream.close()
        self._temporary.replace(self.path)

    def discard(self) -> None:
        """Close the stream and delete the temporary file, after an error."""
        with suppress(OSError):  # closing writes the buffer, and the disk may be full
            if self._is_own():
                self._temporary.unlink()
        with suppress(OSError):
            self.stream.close()

    def _is_own(self) -> bool:
        try:
            return self._temporary.stat().st_ino == self._inode
        except FileNotFoundError:
            return False


def sync_all(folder: Path) -> None:
    """Wait until a folder and all files below it are on the disk."""
    # Concurrent syncs share commits of a journalling file system: 200 files take 50 ms, one after the other 800 ms.
    with ThreadPoolExecutor(SYNCS) as pool:
        list(pool.map(sync, [folder, *folder.rglob("*")]))


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name; copy it where that is impossible, as on exFAT or on another file system.

    Raises:
        OSError: `target` exists, or the file cannot be copied.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def replace_path(new: Path, path: Path) -> None:
    """Rename a file or folder to its place; what exists there stays next to the former name of the new one, as `.old`.

    A part of it is never visible: the caller deletes the folder of the new one afterwards.

    Raises:
        OSError: it cannot be renamed; what existed is back in its place.
    """
    # rename(2) replaces a file, but not a folder that has content
    old = new.with_name(f"{new.name}.old")
    if path.exists():
        path.rename(old)
    try:
        new.rename(path)
    except OSError:
        if old.exists():
            old.rename(path)
        raise


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file is missing or contains anything else."""
    try:
        document = json.loads(read_bytes(path).decode())
    except (OSError, ValueError, RecursionError):  # RecursionError: deeply nested arrays
        return None
    return document if isinstance(document, dict) else None


def checksum(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object without its own checksum, in hex."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def checked_json(document: Mapping[str, Any], *, indent: int) -> str:
    """Return a JSON object as text, with the hash of its content as last key.

    Args:
        document: the object, without the key `CHECKSUM`.
        indent: spaces of a level.
    """
    return json.dumps({**document, CHECKSUM: checksum(document)}, indent=indent, ensure_ascii=False)


def parse_checked(content: bytes) -> dict[str, Any]:
    """Return the object that `checked_json` wrote, without its checksum; one without checksum is accepted.

    Raises:
        ValueError: the content is not a JSON object, or differs from its checksum.
    """
    # A flipped bit in a number still parses. Files of earlier versions have no checksum.
    try:
        document = json.loads(content)
        if not isinstance(document, dict):
            raise ValueError("not a JSON object")
        if document.pop(CHECKSUM, None) not in (None, checksum(document)):
            raise ValueError("the content differs from its checksum")
    except RecursionError:
        raise ValueError("too deeply nested") from None
    return document


def sync(path: Path) -> None:
    """Wait until the content of a file, or the entries of a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Readable(Protocol):
    """A path, or a file by URL."""

    def open(self, mode: Literal["rb"], /) -> Any:
        """Open it for reading."""


def file_sha256(path: Path | Readable) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    opened: Any = open_regular(path) if isinstance(path, Path) else path.open("rb")
    with opened as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def content_record(path: Path) -> dict[str, Any]:
    """Return size and SHA-256 of a file, as JSON; see `has_content`.

    Raises:
        OSError: the file cannot be read.
    """
    return {"size": path.stat().st_size, "sha256": file_sha256(path)}


def has_content(path: Path, record: Any) -> bool:
    """Return whether a file exists, can be read and is as recorded.

    Args:
        path: the file.
        record: what `content_record` returned; anything else matches no file.
    """
    try:
        # the size first: a cut file needs no hash
        return isinstance(record, dict) and path.stat().st_size == record.get("size") and content_record(path) == record
    except OSError:
        return False


POLL_SECONDS = 0.02


@contextmanager
def hold(
    path: Path,
    *,
    seconds: float = -1,
    busy: Exception | None = None,
    waiting: Callable[[], object] = lambda: None,
    remove: bool = False,
) -> Iterator[None]:
    """Hold a lock file while the context is open; the file is created if it is missing.

    Args:
        path: the lock file; its folder must exist.
        seconds: maximum time to wait for the lock. -1: without limit.
        busy: error to raise if the lock is not free in time. None: filelock's Timeout, a TimeoutError.
        waiting: called once if another process holds the lock.
        remove: delete the file at the end; by default it stays.

    Raises:
        Exception: `busy`.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, mode=lock_mode(path))
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
        if remove:
            # before the release: a process that locks the deleted file notices it (filelock 3.24) and starts over
            path.unlink(missing_ok=True)
        lock.release()


@contextmanager
def hold_folder(path: Path, *, seconds: float, busy: Exception) -> Iterator[None]:
    """Hold a lock of a folder itself while the context is open: no file is left, and a renamed folder stays locked.

    Without a lock on file systems that cannot lock folders, such as NFS, and if the folder does not exist.

    Args:
        path: the folder.
        seconds: maximum time to wait for the lock.
        busy: error to raise if the lock is not free in time.

    Raises:
        Exception: `busy`.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, handle)
            last = time.monotonic() + seconds
            while not try_lock(handle):
                if time.monotonic() > last:
                    raise busy
                time.sleep(POLL_SECONDS)
        yield


def lock_mode(path: Path) -> int:
    """Return the mode of a lock file: only users who may write to its folder can open it, and therefore hold it.

    An existing file of this user loses what a wider mode allows.
    """
    writers = path.parent.stat().st_mode & 0o222
    mode = 0o600 | writers | writers << 1
    with suppress(OSError):  # it does not exist yet, is a link, or is another user's
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(handle)
            if found.st_uid == os.geteuid() and found.st_mode & 0o777 & ~mode:
                # Never a wider mode: where others may write, the name may be a hard link to a private file.
                os.fchmod(handle, found.st_mode & mode)
        finally:
            os.close(handle)
    return mode


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock of a file; False if the file is missing."""
    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def try_lock(stream: IO[Any] | int) -> bool:
    """Lock an open file until it is closed; return False if another process has locked it."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
