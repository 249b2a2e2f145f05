"""Files in a datastore: uploaded once, read in parts, downloaded in parallel; what was interrupted goes on.

A file is there when a blob of its name has its size and its SHA-256, which is written with the blob's last part: half
an upload is never taken for a whole one, and one that is there is not sent again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from orchestrator.backends.azure.wire.azure_errors import explained, retry_after
from orchestrator.backends.azure.wire.control_plane import Store
from orchestrator.jobs.inputs import Content
from orchestrator.support.errors import ConflictError, NotFoundError

T = TypeVar("T")
Progress = Callable[[int, int], None]
TOO_MANY = 429
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before the next try, unless Azure says how long
THREADS = 8
BLOCK = 4 * 1024 * 1024  # bytes of a file that are sent or fetched at once
SHA256 = "sha256"  # name of the metadata that holds a blob's hash
PART = ".part"  # behind the name of a file that is being downloaded


class Blob(NamedTuple):
    """A file of the datastore."""

    name: str
    """Below the folder that was listed."""
    size: int
    """Bytes."""
    etag: str
    """Changes with its content."""
    sha256: str | None
    """Of its content, if whoever wrote it said so, as `upload` does."""
    md5: bytes | None = None
    """The same, as Azure's own programs do."""


class Files:
    """The files of one container.

    Args:
        store: where it is, and what lets us in.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._made: Any = None

    def list(self, folder: str) -> list[Blob]:
        """Files below a folder, which ends with a slash; names are as below it."""
        assert folder.endswith("/"), "RUN is a prefix of RUN-2"
        with explained(f"datastore folder {folder}"):
            found = [
                Blob(
                    str(blob.name)[len(folder) :],
                    int(blob.size),
                    str(blob.etag),
                    (blob.metadata or {}).get(SHA256),
                    bytes(blob.content_settings.content_md5) if blob.content_settings.content_md5 else None,
                )
                for blob in _patiently(
                    lambda: list(self._container.list_blobs(name_starts_with=folder, include=["metadata"]))
                )
            ]
        return [blob for blob in found if blob.name and not blob.name.endswith("/")]

    def upload(self, folder: str, files: Mapping[str, Content], progress: Progress | None = None) -> int:
        """Puts files below a folder, those that are not there yet; returns how many bytes were sent.

        Args:
            folder: ends with a slash.
            files: name below it -> content, or the file that has it.
            progress: told bytes done and bytes in all.
        """
        there = {blob.name: blob for blob in self.list(folder)}
        sizes = {name: _size(content) for name, content in files.items()}
        total, done, sent = sum(sizes.values()), 0, 0

        def one(name: str) -> tuple[int, bool]:
            content, known = files[name], there.get(name)
            digest = _hash(content)
            if known is not None and (known.size, known.sha256) == (sizes[name], digest):
                return sizes[name], False
            self._put(folder + name, content, digest)
            return sizes[name], True

        with ThreadPoolExecutor(THREADS) as pool:
            for size, was_sent in pool.map(one, files):
                done += size
                sent += size if was_sent else 0
                if progress:
                    progress(done, total)
        return sent

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of a file, from `start` on.

        Raises:
            NotFoundError: there is no such file.
        """
        from azure.core.exceptions import HttpResponseError

        with explained(f"datastore file {name}"):
            try:
                data: bytes = _patiently(
                    lambda: self._container.download_blob(name, offset=start, length=length).readall()
                )
                return data
            except HttpResponseError as problem:
                if problem.status_code == 416:  # nothing there yet, or nothing behind `start`
                    return b""
                raise

    def size(self, name: str) -> int | None:
        """Bytes of a file; None: there is none."""
        try:
            with explained(f"datastore file {name}"):
                return int(self._container.get_blob_client(name).get_blob_properties().size)
        except NotFoundError:
            return None

    def fetch(self, folder: str, blobs: Iterable[Blob], to: Path, progress: Progress | None = None) -> None:
        """Copies files to below `to`, several at once. What an interrupted call left goes on from where it was.

        Args:
            folder: that `blobs` were listed from.
            blobs: which.
            to: folder; made if missing.
            progress: told bytes done and bytes in all.

        Raises:
            ConflictError: a file changed meanwhile, or is not what it should be.
        """
        wanted = list(blobs)
        total, done = sum(blob.size for blob in wanted), 0
        with ThreadPoolExecutor(THREADS) as pool:
            for size in pool.map(lambda blob: self._fetch_one(folder, blob, to), wanted):
                done += size
                if progress:
                    progress(done, total)

    def delete(self, folder: str) -> None:
        """Deletes all files below a folder."""
        for blob in self.list(folder):
            with explained(f"datastore file {blob.name}"):
                self._container.delete_blob(folder + blob.name)

    def _put(self, name: str, content: Content, digest: str) -> None:
        """Sends one file in blocks; those that Azure has of an interrupted upload are not sent again."""
        from azure.storage.blob import BlobBlock

        metadata = {SHA256: digest}
        client = self._container.get_blob_client(name)
        with explained(f"upload of {name}"):
            if _size(content) <= BLOCK:
                data = content if isinstance(content, bytes) else content.read_bytes()
                _patiently(lambda: client.upload_blob(data, overwrite=True, metadata=metadata))
                return
            known = _uncommitted(client)
            blocks = []
            for block in _blocks(content):
                identity = hashlib.sha256(block).hexdigest()[:32]
                if identity not in known:
                    _patiently(partial(client.stage_block, identity, block, length=len(block)))
                blocks.append(BlobBlock(block_id=identity))
            _patiently(lambda: client.commit_block_list(blocks, metadata=metadata))

    def _fetch_one(self, folder: str, blob: Blob, to: Path) -> int:
        target = to / blob.name
        if not target.resolve().is_relative_to(to.resolve()):
            raise ConflictError(f"the file {blob.name} would lie outside of {to}")
        if target.exists() and target.stat().st_size == blob.size and _same(target, blob):
            return blob.size
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.{hashlib.sha256(blob.etag.encode()).hexdigest()[:8]}{PART}")
        with part.open("ab") as stream:
            while (start := stream.tell()) < blob.size:
                data = self.read(folder + blob.name, start, min(BLOCK, blob.size - start))
                if not data:
                    break
                stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if part.stat().st_size != blob.size or not _same(part, blob):
            part.unlink()
            raise ConflictError(
                f"{blob.name} is not what was to be downloaded",
                facts={"why": "it changed meanwhile, or was damaged on the way"},
                fix="the same command again",
            )
        part.rename(target)
        return blob.size

    @property
    def _container(self) -> Any:
        if self._made is None:
            from azure.storage.blob import ContainerClient, ExponentialRetry

            self._made = ContainerClient(
                self._store.url,
                self._store.container,
                credential=self._store.credential,
                max_single_get_size=BLOCK,
                retry_policy=ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=6),
            )
        return self._made


def _patiently(ask: Callable[[], T]) -> T:
    """Asks again as long as Azure wants to be left in peace, which its blob client, unlike all others, does not do."""
    from azure.core.exceptions import HttpResponseError

    for pause in PAUSES:
        try:
            return ask()
        except HttpResponseError as problem:
            if problem.status_code != TOO_MANY:
                raise
            time.sleep(retry_after(problem) or pause)
    return ask()


def _uncommitted(client: Any) -> set[str]:
    """Blocks that Azure has of a file that was not finished."""
    from azure.core.exceptions import HttpResponseError

    try:
        _, waiting = client.get_block_list("uncommitted")
    except HttpResponseError:  # no such file, or blocks are not told: then all are sent
        return set()
    return {str(block.id) for block in waiting}


def _blocks(content: Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield from (content[start : start + BLOCK] for start in range(0, len(content), BLOCK))
        return
    with content.open("rb") as stream:
        while block := stream.read(BLOCK):
            yield block


def _size(content: Content) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _hash(content: Content) -> str:
    whole = hashlib.sha256()
    for block in _blocks(content):
        whole.update(block)
    return whole.hexdigest()


def _same(path: Path, blob: Blob) -> bool:
    """Whether a file has the content of a blob, as far as anybody said what that is."""
    if blob.sha256 is not None:
        return _hash(path) == blob.sha256
    if blob.md5 is None:
        return True
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "md5").digest() == blob.md5
