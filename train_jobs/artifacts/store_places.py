"""The folder of a token store on a disk or in an object store, and the few operations on its files.

A file on a disk is written under a temporary name and renamed. An object is written whole, so that a reader never sees
a part of it: a new one is collected in a temporary file of the writer, which holds one part of the text at most.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeVar

from pydantic import PlainSerializer, PlainValidator

from train_jobs.artifacts.drafts import scratch_folder
from train_jobs.artifacts.files import NewFile, write_text
from train_jobs.artifacts.regular_files import read_bytes
from train_jobs.artifacts.remote_files import FileStatus, RemoteFile, file_system, repeated
from train_jobs.config.errors import DataError, StorageError
from train_jobs.config.urls import is_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")


@dataclass(frozen=True, order=True)
class RemotePath:
    """A folder or file of a token store by URL, with those methods of `Path` that the steps use."""

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.url.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """Last part of the URL."""
        return PurePosixPath(self.url).name

    def match(self, pattern: str) -> bool:
        """Return whether the name matches a pattern."""
        return fnmatch(self.name, pattern)

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open a file for reading.

        Raises:
            FileNotFoundError: there is no such file.
            StorageError: the service refuses or does not answer.
        """
        return RemoteFile(self.url, self.stat().st_size, "").open(mode)

    def read_bytes(self) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: there is no such file.
            StorageError: see `open`.
        """
        return self._existing(lambda system, path: bytes(system.cat_file(path)))

    def write_bytes(self, content: bytes) -> None:
        """Write a file whole.

        Raises:
            StorageError: see `open`.
        """
        self._ask(lambda system, path: system.pipe_file(path, content))

    def stat(self) -> FileStatus:
        """Return the size of a file.

        Raises:
            FileNotFoundError: there is no such file.
            StorageError: see `open`.
        """
        return FileStatus(int(self._existing(lambda system, path: system.info(path)["size"]) or 0))

    def exists(self) -> bool:
        """Return whether there is a file or folder."""
        return self._ask(lambda system, path: system.info(path)) is not None

    def is_file(self) -> bool:
        """Return whether there is a file."""
        return (self._ask(lambda system, path: system.info(path)) or {}).get("type") == "file"

    def is_dir(self) -> bool:
        """Return whether there is a folder; in most services, a folder exists as long as it has files."""
        return (self._ask(lambda system, path: system.info(path)) or {}).get("type") == "directory"

    def mkdir(self, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Make the folder in file systems that have folders."""
        self._ask(lambda system, path: system.makedirs(path, exist_ok=True) if "file" in system.protocol else None)

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield the files and folders of this folder whose names match."""
        listed = self._ask(lambda system, path: system.ls(path, detail=True)) or []
        names = (PurePosixPath(info["name"].rstrip("/")).name for info in listed)
        return (self / name for name in sorted(names) if name and fnmatch(name, pattern))

    def unlink(self) -> None:
        """Delete a file, if it exists."""
        self._ask(lambda system, path: system.rm_file(path))

    def upload(self, local: Path) -> None:
        """Write a file whole, with the content of a file on a disk."""
        self._ask(lambda system, path: system.put_file(str(local), path))

    def remove(self) -> None:
        """Delete the folder with its files, if it exists."""
        self._ask(lambda system, path: system.rm(path, recursive=True))

    def _existing(self, request: Callable[[AbstractFileSystem, str], T]) -> T:
        if (found := self._ask(request)) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", self.url)
        return found

    def _ask(self, request: Callable[[AbstractFileSystem, str], T]) -> T | None:
        """Return the result of a request; None if the file does not exist."""

        def ask() -> T | None:
            try:
                return request(*file_system(self.url))
            except FileNotFoundError:
                return None

        try:
            return repeated(ask, self.url)
        except DataError as problem:
            message = problem.message.replace("cannot read", "cannot access", 1)
            raise StorageError(message, facts=problem.facts, fix=problem.fix) from None


StorePath = Path | RemotePath
"""Folder or file of a token store."""


def store_path(place: object) -> StorePath:
    """Return the folder or file of a path or URL."""
    if isinstance(place, StorePath):
        return place
    return RemotePath(str(place)) if is_url(place) else Path(str(place))


def store_bytes(path: StorePath) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: it is missing, not a regular file, or cannot be read.
        StorageError: see `RemotePath.open`.
    """
    return read_bytes(path) if isinstance(path, Path) else path.read_bytes()


StoreFolder = Annotated[Path | RemotePath, PlainValidator(store_path), PlainSerializer(str, return_type=str)]
"""Type of a field of a configuration."""


class NewObject:
    """A file by URL that is collected on a disk, and written whole when it is complete; see `NewFile`.

    Args:
        path: the file.
    """

    def __init__(self, path: RemotePath) -> None:
        self.path = path
        # without a name, so that nothing is left of it after a kill
        self._temporary = tempfile.TemporaryFile()  # noqa: SIM115  # closed in commit or discard
        self.stream: Any = self._temporary
        """Stream that writes the content."""

    def commit(self) -> None:
        """Write the object and delete the temporary file.

        Raises:
            StorageError: the service refuses or does not answer.
        """
        self.stream.flush()
        self.path.upload(Path(f"/proc/self/fd/{self._temporary.fileno()}"))
        self._temporary.close()

    def discard(self) -> None:
        """Delete the temporary file, after an error."""
        self._temporary.close()


def new_file(path: StorePath) -> NewFile | NewObject:
    """Return a new file, to be written as a stream and committed."""
    return NewObject(path) if isinstance(path, RemotePath) else NewFile(path)


def write_whole(path: StorePath, text: str) -> None:
    """Write a small file so that a reader sees the old or the new content."""
    if isinstance(path, RemotePath):
        path.write_bytes(text.encode())
    else:
        write_text(path, text)


def remove_folder(path: StorePath) -> None:
    """Delete a folder of a store, as far as it exists and can be deleted."""
    if isinstance(path, RemotePath):
        path.remove()
    else:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def nearby(folder: StorePath, names: list[str]) -> Iterator[Path]:
    """Yield a folder with these files from which reading parts of them again and again is cheap.

    Args:
        folder: the folder of the files; one on a disk is yielded itself.
        names: the files that are copied for the time of the context if the folder is at a URL.
    """
    if isinstance(folder, Path):
        yield folder
        return
    with scratch_folder("nearby") as copied:
        for name in names:
            (copied / name).write_bytes((folder / name).read_bytes())
        yield copied
