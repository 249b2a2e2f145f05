"""The code that goes with a run: the installed `train_jobs`, by content.

    snapshot = take_snapshot()
    snapshot.digest                # changes with any byte of any file
    snapshot.write(run_folder)     # run_folder/train_jobs/...

It is read from where the package is installed, so a wheel does as well as a checkout, and no git is asked.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import train_jobs.config
from orchestrator.errors import ConflictError, StorageError
from train_jobs.config.base import Config

PACKAGE = "train_jobs"
LARGEST_SHOWN = 5


class SnapshotFile(Config):
    """One file of a snapshot."""

    path: str
    """Posix path, starting with the package's name."""
    size: int
    """Bytes."""
    sha256: str
    """Hash of its content, in hex."""


class Snapshot(Config):
    """The files of the package, and where they are read from."""

    root: Path
    """Folder of the package itself. No part of the digest."""
    files: tuple[SnapshotFile, ...]
    """Sorted by path."""

    @property
    def total_bytes(self) -> int:
        """Size of all files together."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 over (path, size, hash) of every file: the same code has the same digest wherever it lies."""
        manifest = "".join(f"{file.path}\0{file.size}\0{file.sha256}\n" for file in self.files)
        return hashlib.sha256(manifest.encode()).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Count, bytes, digest and the largest files, as JSON has it."""
        largest = sorted(self.files, key=lambda file: (-file.size, file.path))[:LARGEST_SHOWN]
        return {
            "files": len(self.files),
            "total_bytes": self.total_bytes,
            "digest": self.digest,
            "largest": [{"path": file.path, "size": file.size} for file in largest],
        }

    def write(self, folder: Path) -> None:
        """Copies every file to `folder`/train_jobs/..., and sees that it is the one that was hashed.

        Raises:
            ConflictError: a file changed or went away since the snapshot was taken.
            StorageError: the folder cannot be written.
        """
        for file in self.files:
            content = self._read(file)
            target = folder / file.path
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            except OSError as problem:
                raise StorageError(f"cannot write the code to {target}", facts={"why": problem.strerror}) from problem

    def _read(self, file: SnapshotFile) -> bytes:
        source = self.root / Path(file.path).relative_to(PACKAGE)
        try:
            content = source.read_bytes()
        except FileNotFoundError:
            content = None
        if content is None or _entry(file.path, content) != file:
            raise ConflictError(f"{source} changed while the run was being made", fix="the same command again")
        return content


def take_snapshot(package: Path | None = None) -> Snapshot:
    """Reads and hashes the package.

    Args:
        package: its folder. None: the one that is installed.
    """
    root = package or Path(train_jobs.config.__file__).resolve().parent.parent
    files = (_entry(f"{PACKAGE}/{path.relative_to(root).as_posix()}", path.read_bytes()) for path in _sources(root))
    return Snapshot(root=root, files=tuple(sorted(files, key=lambda file: file.path)))


def _sources(root: Path) -> Iterator[Path]:
    """Files of a package, but for bytecode and whatever is hidden."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name != "__pycache__" and not name.startswith(".")]
        yield from (Path(folder, name) for name in names if not name.startswith(".") and not name.endswith(".pyc"))


def _entry(path: str, content: bytes) -> SnapshotFile:
    return SnapshotFile(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest())
