"""Conversion of disk errors (full, read-only, mounted blob stores) to StorageError."""

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
from train_jobs.artifacts.mounts import FULL, READ_ONLY, remount
from train_jobs.config import StorageError, UserError, in_shell

REFUSED = {errno.EACCES, errno.EPERM}
PATH_ERRORS = {
    errno.EFBIG: "a file would grow past the size limit",
    errno.EEXIST: "a part of the path is a file",
    errno.ENOTDIR: "a part of the path is a file",
    errno.ENOLCK: "the file system has no locks",
    errno.EOPNOTSUPP: "the file system has no locks",
}
MIB = 1 << 20
FREE = "free"  # fact of each error of a full disk: a restart recognizes its cause by it


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file as `write_text` does."""
    write_text(path, json.dumps(document, indent=1))


@contextmanager
def storage_errors(folder: Path, what: str, *, partial: Path | None = None) -> Iterator[None]:
    """Convert disk errors of the body to StorageError.

    Args:
        folder: folder that the body writes to, for the message.
        what: noun phrase for the message: "the export".
        partial: file or folder to delete on any failure, so that nothing incomplete stays and the error file has space.

    Raises:
        StorageError: the body raised an error of the disk.
    """
    try:
        yield
    except BaseException as problem:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
        if found := explain(problem, folder, what) or _explain_path_error(problem, folder, what):
            raise found from problem
        raise


def explain(problem: BaseException, folder: Path, what: str) -> StorageError | None:
    """Return the StorageError for an exception of the disk, in `folder` or elsewhere; None for other exceptions.

    Args:
        problem: the exception.
        folder: folder that was written to, for the message.
        what: noun phrase for the message: "the export".
    """
    # Not by type alone: safetensors hides the errno in the text of its own error, and other libraries raise their own
    # error from an OSError. So texts and causes are searched too.
    if isinstance(problem, UserError):
        return None  # explained already
    chain = list(_chain(problem))
    codes = {found.errno for found in chain if isinstance(found, OSError)}
    text = "\n".join(str(found) for found in chain)
    if codes & FULL or "No space left on device" in text or "StorageFull" in text or "file write failed" in text:
        free = shutil.disk_usage(_existing(folder)).free
        return StorageError(
            f"cannot write {what}: the disk is full",
            facts={"where": folder, FREE: f"{free / MIB:.1f} MiB"},
            fix="free some space, then resume the run",
        )
    if (other := next((place for found in chain if (place := _refused_elsewhere(found, folder))), None)) is not None:
        return StorageError(f"cannot access {other}: permission denied", fix=f"chmod u+rwX {in_shell(other)}")
    if errno.EROFS in codes or "Read-only file system" in text:
        return StorageError(
            f"cannot write {what}: {READ_ONLY}",
            facts={"where": folder},
            fix=f"{remount(folder)}; then resume the run",
        )
    if codes & REFUSED or "Permission denied" in text:
        return StorageError(
            f"cannot write {what}: permission denied",
            facts={"where": folder},
            fix=f"chmod u+w {in_shell(folder)}",
        )
    return None


def _refused_elsewhere(problem: BaseException, folder: Path) -> Path | None:
    """Return the path that cannot be accessed, unless it is in or above `folder`, or a temporary file next to it."""
    if not isinstance(problem, PermissionError) or not isinstance(problem.filename, (str, os.PathLike)):
        return None
    named = Path(problem.filename)
    path, place = named.resolve(), folder.resolve()
    is_sibling = path.parent == place.parent and place.name in path.name
    return None if is_sibling or path.is_relative_to(place) or place.is_relative_to(path) else named


def _explain_path_error(problem: BaseException, folder: Path, what: str) -> StorageError | None:
    """Return the error for a file in the path, a size limit or missing locks; None for other exceptions."""
    # Separate from `explain`, which also sees exceptions of the whole job: outside of a write these are bugs.
    reason = PATH_ERRORS.get(problem.errno or 0) if isinstance(problem, OSError) else None
    if reason is None:
        return None
    return StorageError(f"cannot write {what}: {reason}", facts={"where": folder}, fix="choose another folder or disk")


def require_free(folder: Path, need: int, what: str) -> None:
    """Check that `need` bytes fit on the disk of `folder`, before anything is written.

    Args:
        folder: folder to write to; it does not have to exist.
        need: bytes to write.
        what: noun phrase for the message: "the export".

    Raises:
        StorageError: fewer bytes are free.
    """
    free = shutil.disk_usage(_existing(folder)).free
    if free < need:
        raise StorageError(
            f"cannot write {what}: not enough disk space",
            facts={"need": f"{need / MIB:.1f} MiB", FREE: f"{free / MIB:.1f} MiB", "where": folder},
            fix="free some space, then resume the run",
        )


def require_writable(folder: Path) -> None:
    """Create `folder` and write an empty file to it, then delete the file.

    Raises:
        StorageError: the folder cannot be created or written.
    """
    # Permission bits do not show a read-only mount or a quota; only a write does. The pid keeps ranks apart.
    probe = folder / f".probe-{os.getpid()}"
    with storage_errors(folder, "the output folder"):
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its causes, in the order of Python's tracebacks."""
    while problem is not None:
        yield problem
        problem = problem.__cause__ or (None if problem.__suppress_context__ else problem.__context__)


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
