"""Containers and blobs of the one account, in a folder; who may see them."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlencode

from orchestrator.testing.proxy.messages import Refusal

VERSION = "2024-11-04"


@dataclass(frozen=True)
class StoredBlob:
    """One blob as it is at this moment."""

    name: str
    path: Path
    size: int
    modified: float
    """Seconds since the epoch."""
    etag: str
    metadata: dict[str, str]
    kind: str
    """Its content type."""


class Storage:
    """The account.

    Args:
        folder: holds the containers.
        datastores: name -> container.
    """

    def __init__(self, folder: Path, datastores: dict[str, str]) -> None:
        self.folder = folder
        self.datastores = datastores
        self.by_identity = False
        self.key = base64.b64encode(secrets.token_bytes(64)).decode()
        self._staged = folder.parent / "staged"
        self._metadata: dict[Path, dict[str, str]] = {}
        self._kinds: dict[Path, str] = {}
        self._lock = threading.RLock()
        self._signatures: dict[str, tuple[str, str]] = {}
        for container in datastores.values():
            self.make(container)

    def make(self, container: str) -> None:
        (self.folder / container).mkdir(parents=True, exist_ok=True)

    def sign(self, container: str, name: str = "", *, permissions: str, seconds: float) -> str:
        """A SAS for a container, or for one blob of it, as the query of a URL."""
        ends = datetime.now(UTC) + timedelta(seconds=seconds)
        signature = base64.b64encode(secrets.token_bytes(32)).decode()
        with self._lock:
            self._signatures[signature] = (container, name)
        fields = {"sv": VERSION, "sr": "b" if name else "c", "sp": permissions, "se": f"{ends:%Y-%m-%dT%H:%M:%SZ}"}
        return urlencode({**fields, "sig": signature})

    def signed(self, signature: str, container: str, name: str) -> bool:
        """Whether this account made that signature, for that container or that blob."""
        with self._lock:
            return self._signatures.get(signature) in ((container, ""), (container, name))

    @property
    def secrets(self) -> list[str]:
        """The key and every signature, for tests that look for them where they must not be."""
        with self._lock:
            return [self.key, *self._signatures, *(quote(signature, safe="") for signature in self._signatures)]

    def path(self, container: str, name: str = "") -> Path:
        """Where a container, or a blob of it, lies.

        Raises:
            Refusal: there is no such container, or the name leads out of it.
        """
        root = self.folder / container
        if not container or not root.is_dir() or "/" in container:
            raise Refusal(404, "ContainerNotFound", "The specified container does not exist.")
        if ".." in PurePosixPath(name).parts or name.startswith("/") or len(name) > 1024:
            raise Refusal(400, "InvalidResourceName", "The specified resource name contains invalid characters.")
        return root / name

    def find(self, container: str, name: str) -> StoredBlob:
        """A blob.

        Raises:
            Refusal: there is none.
        """
        path = self.path(container, name)
        try:
            found = path.stat()
            if path.is_dir():
                raise FileNotFoundError
        except (FileNotFoundError, NotADirectoryError):
            raise Refusal(404, "BlobNotFound", "The specified blob does not exist.") from None
        return self._blob(name, path, found)

    def _blob(self, name: str, path: Path, found: os.stat_result) -> StoredBlob:
        with self._lock:
            metadata, kind = self._metadata.get(path, {}), self._kinds.get(path, "application/octet-stream")
        tag = hashlib.sha256(f"{found.st_mtime_ns} {found.st_size} {sorted(metadata.items())}".encode()).hexdigest()
        return StoredBlob(name, path, found.st_size, found.st_mtime, f'"0x{tag[:16].upper()}"', metadata, kind)

    def blobs(self, container: str, prefix: str = "") -> Iterator[StoredBlob]:
        """Blobs whose names begin so, in the order of their names."""
        root = self.path(container)
        names = []
        for folder, _, files in os.walk(root):
            below = os.path.relpath(folder, root)
            names += [file if below == "." else f"{below}/{file}" for file in files]
        for name in sorted(found for found in names if found.startswith(prefix)):
            with suppress(FileNotFoundError):  # a job may delete it at this moment
                yield self._blob(name, root / name, (root / name).stat())

    def write(
        self, container: str, name: str, parts: list[bytes], *, kind: str, metadata: dict[str, str]
    ) -> StoredBlob:
        """Puts a blob in the place of what was there."""
        path = self.path(container, name)
        staged = self._staged / uuid.uuid4().hex
        staged.parent.mkdir(parents=True, exist_ok=True)
        with staged.open("wb") as file:
            file.writelines(parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            staged.replace(path)
        except OSError:
            staged.unlink()
            raise Refusal(409, "ResourceTypeMismatch", f"{name} is a folder, or one of its parents a file.") from None
        with self._lock:
            self._metadata[path], self._kinds[path] = metadata, kind
        return self.find(container, name)

    def stage(self, container: str, name: str, block: str, data: bytes) -> None:
        """Keeps one block of a blob until the list of its blocks comes."""
        folder = self._blocks(container, name)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / hashlib.sha256(block.encode()).hexdigest()
        path.write_bytes(data)
        path.with_suffix(".name").write_text(block)

    def staged(self, container: str, name: str) -> list[tuple[str, int]]:
        """Blocks that wait for their list: (id, bytes)."""
        names = sorted(self._blocks(container, name).glob("*.name"))
        return [(path.read_text(), path.with_suffix("").stat().st_size) for path in names]

    def commit(
        self, container: str, name: str, blocks: list[str], *, kind: str, metadata: dict[str, str]
    ) -> StoredBlob:
        """Puts a blob together out of its blocks.

        Raises:
            Refusal: one of them never came.
        """
        folder = self._blocks(container, name)
        try:
            parts = [(folder / hashlib.sha256(block.encode()).hexdigest()).read_bytes() for block in blocks]
        except FileNotFoundError:
            raise Refusal(400, "InvalidBlockList", "The specified block list is invalid.") from None
        found = self.write(container, name, parts, kind=kind, metadata=metadata)
        shutil.rmtree(folder, ignore_errors=True)
        return found

    def _blocks(self, container: str, name: str) -> Path:
        return self._staged / "blocks" / hashlib.sha256(f"{container}/{name}".encode()).hexdigest()

    def describe(self, container: str, name: str, metadata: dict[str, str]) -> StoredBlob:
        """Replaces a blob's metadata."""
        found = self.find(container, name)
        with self._lock:
            self._metadata[found.path] = metadata
        return self.find(container, name)

    def delete(self, container: str, name: str) -> None:
        found = self.find(container, name)
        found.path.unlink(missing_ok=True)
        with self._lock:
            self._metadata.pop(found.path, None)
            self._kinds.pop(found.path, None)
        with suppress(OSError):  # folders are there for their blobs alone
            for parent in found.path.parents:
                if parent == self.folder / container:
                    break
                parent.rmdir()
