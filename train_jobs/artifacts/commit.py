"""COMMIT.json of a checkpoint: written last, with size and hash of every other file. Without it the folder is ignored.

    {"format": 2, "step": 500, "validation_loss": 1.5, "files": {"state.json": {"bytes": 812, "sha256": "9f..."}, ...},
     "sha256": "3b..."}

The last key is the hash of the other ones: a flipped bit in the validation loss would parse, and keep the wrong
checkpoint. Commits of earlier versions have none.

The job writes it; both packages read it without torch. Files are hashed while they are written, so nothing is read
again, and in small steps, so that a checkpoint can be written during training. The safetensors library offers neither.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from train_jobs.artifacts.files import checked_json, parse_checked, sync
from train_jobs.artifacts.regular_files import read_bytes
from train_jobs.config.errors import ConflictError

COMMIT = "COMMIT.json"
FORMAT = 2
FOLDER = re.compile(r"step-(\d{8})")
"""Name of a checkpoint's folder; the group is its step."""
DAMAGED = "damaged-"
"""Prefix of the folder of a committed checkpoint that did not verify when the run resumed."""
CHUNK = 4 << 20  # bytes per step, a few milliseconds

T = TypeVar("T")


@dataclass(frozen=True)
class WrittenFile:
    """Size and SHA-256 of a file's content."""

    bytes: int
    """Size in bytes."""
    sha256: str
    """Hex digits."""


@dataclass(frozen=True)
class Commit:
    """Content of a COMMIT.json."""

    step: int
    """Optimizer steps done."""
    validation_loss: float | None
    """Loss of exactly these weights; None: they were not validated."""
    files: Mapping[str, WrittenFile] = field(default_factory=dict)
    """Name -> size and hash, for every other file of the folder."""
    format: int = FORMAT
    """Version of the folder's layout."""


def folder_name(step: int) -> str:
    """Return the name of the folder that holds the checkpoint of `step`."""
    return f"step-{step:08d}"


def read_commit(folder: Path) -> Commit:
    """Read the COMMIT.json of a checkpoint's folder; the other files are not read.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: the file is truncated, damaged or not a commit.
    """
    try:
        document = parse_checked(read_bytes(folder / COMMIT))
        files = {
            name: WrittenFile(facts["bytes"], facts["sha256"]) for name, facts in document.get("files", {}).items()
        }
        return Commit(document["step"], document["validation_loss"], files, document.get("format", 0))
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"not a commit: {folder / COMMIT}: {type(problem).__name__}: {problem}") from None


def write_commit(folder: Path, commit: Commit) -> None:
    """Write COMMIT.json and wait until it is on the disk.

    Raises:
        OSError: the disk is full or read-only.
    """
    # Written in place: a mounted blob store has no atomic rename. A truncated file does not parse, so it counts as
    # missing.
    document = {"format": commit.format, **asdict(commit)}
    finish(write_file(folder / COMMIT, [checked_json(document, indent=1).encode()]))
    with contextlib.suppress(OSError):  # not every mounted store can sync a folder
        sync(folder)


def committed(folder: Path) -> Commit | None:
    """Return a folder's commit; None if it is truncated, missing or names another step than the folder.

    The other files are not read.

    Raises:
        OSError: the file exists but cannot be read; the checkpoint may be valid.
    """
    try:
        commit = read_commit(folder)
        return commit if folder.name == folder_name(commit.step) else None
    except (FileNotFoundError, ValueError):
        return None


def verify(folder: Path) -> bool:
    """Return whether the folder's commit is complete and every file that it lists has its size and SHA-256.

    Raises:
        ConflictError: the checkpoint is intact, but this version does not know its format.
    """
    return finish(verifying(folder))


def verifying(folder: Path) -> Generator[None, None, bool]:
    """Verify a checkpoint in steps of a few milliseconds, see `verify`.

    Raises:
        ConflictError: see `verify`.
    """
    try:
        commit = read_commit(folder)
        if not commit.files or folder.name != folder_name(commit.step) or not sizes_match(folder, commit):
            return False
        for name, written in commit.files.items():
            if (yield from read_file(folder / name)) != written:
                return False
    except (OSError, ValueError):
        return False
    if commit.format != FORMAT:
        raise ConflictError(
            f"unknown checkpoint format {commit.format}",
            facts={"need": f"format {FORMAT}", "where": folder},
            fix="give another --output, or resume with the version of the code that wrote it",
        )
    return True


def sizes_match(folder: Path, commit: Commit) -> bool:
    """Return whether all files of a commit have their sizes; their content is not read.

    Raises:
        OSError: a file is missing.
    """
    return all((folder / name).stat().st_size == written.bytes for name, written in commit.files.items())


def write_file(
    path: Path, pieces: Iterable[bytes | memoryview], *, chunk: int = CHUNK
) -> Generator[None, None, WrittenFile]:
    """Write `pieces` in order and wait until they are on the disk; a generator that returns size and hash.

    Args:
        path: file to write.
        pieces: content.
        chunk: bytes written between two yields.

    Raises:
        OSError: the disk is full, read-only or no longer exists; the incomplete file stays.
    """
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as stream:
        for piece in pieces:
            for start in range(0, len(piece), chunk):
                part = piece[start : start + chunk]
                stream.write(part)
                digest.update(part)
                yield
            size += len(piece)
        stream.flush()
        os.fsync(stream.fileno())
    return WrittenFile(size, digest.hexdigest())


def read_file(path: Path, *, chunk: int = CHUNK) -> Generator[None, None, WrittenFile]:
    """Read a file; a generator that returns its size and hash.

    Args:
        path: file to read.
        chunk: bytes read between two yields.

    Raises:
        OSError: the file cannot be read.
    """
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while part := stream.read(chunk):
            digest.update(part)
            size += len(part)
            yield
    return WrittenFile(size, digest.hexdigest())


def finish(steps: Generator[None, None, T]) -> T:
    """Run a generator to its end and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
