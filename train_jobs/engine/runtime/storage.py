"""Errors of disks that are full, read-only or mounted blob stores, as StorageError."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from train_jobs.artifacts.files import write_text
from train_jobs.config import StorageError, UserError, in_shell

FULL = {errno.ENOSPC, errno.EDQUOT}
REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
IN_THE_WAY = {
    errno.EFBIG: "a file would grow past the size limit",
    errno.EEXIST: "a part of the path is a file",
    errno.ENOTDIR: "a part of the path is a file",
    errno.ENOLCK: "the file system has no locks",
    errno.EOPNOTSUPP: "the file system has no locks",
}
MIB = 1 << 20


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file as `write_text` does."""
    write_text(path, json.dumps(document, indent=1))


@contextmanager
def storage_errors(folder: Path, doing: str, *, partial: Path | None = None) -> Iterator[None]:
    """Raise StorageError for a full or read-only disk.

    Args:
        folder: that is written to, for the message.
        doing: what is being written, for the message.
        partial: removed on any failure, so that nothing half-written stays and the error file has space.
    """
    try:
        yield
    except BaseException as problem:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
        if found := explain(problem, folder, doing) or _in_the_way(problem, folder, doing):
            raise found from problem
        raise


def explain(problem: BaseException, folder: Path, doing: str) -> StorageError | None:
    """Return the StorageError for an exception of the disk, in `folder` or elsewhere; None for other exceptions.

    Safetensors hides the errno in an error of its own, so the message is searched too; a library may raise its own
    error from an OSError, so the causes are searched too.
    """
    if isinstance(problem, UserError):
        return None  # explained already
    chain = list(_chain(problem))
    codes = {found.errno for found in chain if isinstance(found, OSError)}
    text = "\n".join(str(found) for found in chain)
    if codes & FULL or "No space left on device" in text or "StorageFull" in text or "file write failed" in text:
        free = shutil.disk_usage(_existing(folder)).free
        return StorageError(
            f"the disk is full: {doing} failed",
            facts={"where": folder, "free": f"{free / MIB:.1f} MiB"},
            fix="free some space, then resume the run",
        )
    if (other := next((place for found in chain if (place := _refused_elsewhere(found, folder))), None)) is not None:
        return StorageError(f"no permission: {other}", fix=f"chmod u+rwX {in_shell(other)}")
    if codes & REFUSED or "Read-only file system" in text or "Permission denied" in text:
        return StorageError(
            f"cannot write: {doing} failed", facts={"where": folder}, fix=f"chmod u+w {in_shell(folder)}"
        )
    return None


def _refused_elsewhere(problem: BaseException, folder: Path) -> Path | None:
    """Return the path that cannot be accessed, unless it is in or above `folder`, or a temporary file next to it."""
    if not isinstance(problem, PermissionError) or not isinstance(problem.filename, (str, os.PathLike)):
        return None
    named = Path(problem.filename)
    path, place = named.resolve(), folder.resolve()
    beside = path.parent == place.parent and place.name in path.name
    return None if beside or path.is_relative_to(place) or place.is_relative_to(path) else named


def _in_the_way(problem: BaseException, folder: Path, doing: str) -> StorageError | None:
    """Return the error for a file in the path, a size limit or missing locks: elsewhere these would be bugs."""
    reason = IN_THE_WAY.get(problem.errno or 0) if isinstance(problem, OSError) else None
    if reason is None:
        return None
    return StorageError(f"{reason}: {doing} failed", facts={"where": folder}, fix="choose another folder or disk")


def require_free(folder: Path, need: int, doing: str) -> None:
    """Raise StorageError before anything is written if `need` bytes will not fit."""
    free = shutil.disk_usage(_existing(folder)).free
    if free < need:
        raise StorageError(
            f"the disk is too full: {doing} needs more than is free",
            facts={"need": f"{need / MIB:.1f} MiB", "have": f"{free / MIB:.1f} MiB", "where": folder},
            fix="free some space, then resume the run",
        )


def require_writable(folder: Path) -> None:
    """Create `folder` and write to it once.

    Raises:
        StorageError: the folder cannot be created or written.
    """
    probe = folder / f".probe-{os.getpid()}"
    with storage_errors(folder, "making the output folder"):
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, and those that it was raised from or while handling."""
    while problem is not None:
        yield problem
        problem = problem.__cause__ or (None if problem.__suppress_context__ else problem.__context__)


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
