"""Files in a datastore: uploaded once, read in parts, downloaded in parallel; interrupted transfers are resumed.

A file exists when a blob of its name has its size and its SHA-256, which is written with the blob's last part: half an
upload is never taken for a whole one, and an existing file is not sent again. Where the
content is already in another folder, Azure copies it: a new version of a large text sends only its new files.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from orchestrator.backends.azure.wire.azure_errors import TOO_MANY, retry_after, translated_errors
from orchestrator.backends.azure.wire.control_plane import Store, Wire
from orchestrator.backends.base import Progress
from orchestrator.jobs.inputs import Content
from orchestrator.support.errors import ConflictError, NotFoundError
from train_jobs.artifacts.files import file_sha256

T = TypeVar("T")
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before the next try, unless Azure gives a time
THREADS = 8  # files in transfer at a time
BLOCK = 4 * 1024 * 1024  # bytes of a file in one request: what an interruption loses at most
COPIED = 1024**3  # bytes that Azure copies in one request; its limit for a block is 4000 MiB
COPY_SECONDS = 3600  # validity of the signature with which Azure reads the source of a copy
STORAGE_SCOPE = "https://storage.azure.com/.default"
SHA256 = "sha256"  # key of the blob's hash in its metadata
FOLDER_MARK = "hdi_isfolder"  # key in the metadata of empty blobs that mounts and ADLS Gen2 write for folders
PART = ".part"  # suffix of a file in download
NO_SUCH_RANGE = 416  # HTTP status: the blob ends before it


class Blob(NamedTuple):
    """A file of the datastore."""

    name: str
    """Path below the folder that was listed."""
    size: int
    """Bytes."""
    etag: str
    """Azure's version of the blob, which changes with every write."""
    sha256: str | None
    """Hash of its content, if its writer recorded it, as `upload` does."""
    md5: bytes | None = None
    """Hash that Azure's own programs record."""
    modified: float = 0.0
    """Time of the last write, in seconds since the epoch."""


class Files:
    """Files of one datastore.

    The SDK repeats a request up to six times after a lost connection or an error of the server, with growing pauses.
    Busy replies are retried here, see `_retry_while_busy`.

    Args:
        wire: the workspace.
        datastore: its name.
    """

    def __init__(self, wire: Wire, datastore: str) -> None:
        self._wire, self._datastore = wire, datastore
        self._connected: tuple[Store, Any] | None = None
        self._lock = Lock()

    @property
    def _store(self) -> Store:
        return self._wire.store(self._datastore)

    @property
    def _container(self) -> Any:
        """The client of the container. Get it for each request: a transfer takes longer than its signature is valid."""
        from azure.storage.blob import ContainerClient, ExponentialRetry

        with self._lock:
            store = self._store
            if self._connected is None or self._connected[0] is not store:
                client = ContainerClient(
                    store.url,
                    store.container,
                    credential=store.credential,
                    max_single_get_size=BLOCK,
                    retry_policy=ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=6),
                )
                self._connected = store, client
            return self._connected[1]

    def _blob(self, name: str) -> Any:
        """Return the client of a blob, for one request."""
        return self._container.get_blob_client(name)

    def list(self, folder: str) -> list[Blob]:
        """Return the files below a folder, which ends with a slash; their names are relative to it.

        Raises:
            UserError: Azure cannot be reached, or refused.
        """
        blobs = (
            Blob(
                str(blob.name)[len(folder) :],
                int(blob.size),
                str(blob.etag),
                (blob.metadata or {}).get(SHA256),
                bytes(blob.content_settings.content_md5 or b"") or None,
                blob.last_modified.timestamp(),
            )
            for blob in self._entries(folder)
            if not (blob.metadata or {}).get(FOLDER_MARK)
        )
        # some programs write empty blobs as markers of folders
        return [blob for blob in blobs if blob.name and not blob.name.endswith("/")]

    def _entries(self, folder: str) -> Sequence[Any]:
        """Return the SDK's properties of all blobs below a folder, markers of folders included."""
        # blobs have no folders, only names with a prefix: without the slash, RUN would include the files of RUN-2
        assert folder.endswith("/"), "RUN is a prefix of RUN-2"
        with translated_errors(f"datastore folder {folder}"):
            return _retry_while_busy(
                lambda: list(self._container.list_blobs(name_starts_with=folder, include=["metadata"]))
            )

    def upload(
        self, folder: str, files: Mapping[str, Content], progress: Progress | None = None, *, copy_below: str = ""
    ) -> int:
        """Upload the files that a folder does not have yet; return the number of bytes sent.

        Args:
            folder: ends with a slash.
            files: name below it -> content, or the local file that has it.
            progress: called with bytes done and bytes in total.
            copy_below: a parent of `folder`, with a slash at its end: files whose content is anywhere below it are
                copied inside Azure instead of sent. Empty: none are.

        Raises:
            UserError: Azure cannot be reached, or refused. Repeating the call resumes the upload.
        """
        root = copy_below or folder
        known = {root + blob.name: (blob.size, blob.sha256) for blob in self.list(root)}
        sources = {content: name for name, content in known.items()} if copy_below else {}
        sizes = {name: _size(content) for name, content in files.items()}
        sent: list[int] = []

        def upload_one(name: str) -> int:
            content = sizes[name], _hash(files[name])
            if known.get(folder + name) != content:
                source = sources.get(content)
                if not (source and sizes[name] and self._copy(source, folder + name, *content)):
                    self._put(folder + name, files[name], content[1])
                    sent.append(sizes[name])
            return sizes[name]

        _in_parallel(upload_one, files, sum(sizes.values()), progress)
        return sum(sent)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file; empty if it ends before `start`.

        Args:
            name: path in the container.
            start: offset of the first byte.
            length: largest number of bytes. None: to the end.

        Raises:
            NotFoundError: it does not exist.
        """
        from azure.core.exceptions import HttpResponseError

        with translated_errors(f"datastore file {name}"):
            try:
                return bytes(
                    _retry_while_busy(
                        lambda: self._container.download_blob(name, offset=start, length=length).readall()
                    )
                )
            except HttpResponseError as problem:
                if problem.status_code == NO_SUCH_RANGE:  # a follower of a file that has not grown asks for this range
                    return b""
                raise

    def read_version(self, name: str) -> tuple[bytes, str]:
        """Return the content of a small file and Azure's version of it.

        Raises:
            NotFoundError: it does not exist.
        """
        with translated_errors(f"datastore file {name}"):
            found = _retry_while_busy(lambda: self._container.download_blob(name))
            return bytes(found.readall()), str(found.properties.etag)

    def write_version(self, name: str, content: bytes, version: str | None) -> str:
        """Replace a small file that has not changed since; return Azure's version of the new one.

        Args:
            name: of the file.
            content: of the file.
            version: the one that `read_version` returned; None: the file must not exist.

        Raises:
            ConflictError: it has another version.
        """
        from azure.core import MatchConditions
        from azure.core.exceptions import HttpResponseError

        condition = MatchConditions.IfMissing if version is None else MatchConditions.IfNotModified
        options = {"match_condition": condition, **({} if version is None else {"etag": version})}
        with translated_errors(f"upload of {name}"):
            try:
                written = self._blob(name).upload_blob(content, overwrite=version is not None, **options)
            except HttpResponseError as problem:
                if problem.status_code in {409, 412}:
                    raise ConflictError(
                        f"cannot write {name}: another process has changed it", fix="run the same command again"
                    ) from problem
                raise
        return str(written["etag"])

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None: it does not exist."""
        try:
            with translated_errors(f"datastore file {name}"):
                return int(self._blob(name).get_blob_properties().size)
        except NotFoundError:
            return None

    def fetch(self, folder: str, blobs: Iterable[Blob], to: Path, progress: Progress | None = None) -> None:
        """Copy files to below `to`, several in parallel. Files of an interrupted call are resumed.

        Args:
            folder: that `blobs` were listed from.
            blobs: the files.
            to: the local folder; created if missing.
            progress: called with bytes done and bytes in total.

        Raises:
            ConflictError: a file changed meanwhile, or its copy is damaged.
        """
        wanted = list(blobs)
        _in_parallel(partial(self._fetch_one, folder, to), wanted, sum(blob.size for blob in wanted), progress)

    def delete(self, folder: str) -> None:
        """Delete all files below a folder, and the markers of its folders."""
        # the marker of a folder after what is in it: ADLS Gen2 deletes only empty folders
        for name in sorted((str(blob.name) for blob in self._entries(folder)), reverse=True):
            with translated_errors(f"datastore file {name}"):
                self._container.delete_blob(name)

    def _put(self, name: str, content: Content, digest: str) -> None:
        """Send one file in blocks, except those that Azure has from an interrupted upload."""
        from azure.storage.blob import BlobBlock

        metadata = {SHA256: digest}
        with translated_errors(f"upload of {name}"):
            if _size(content) <= BLOCK:
                data = b"".join(_blocks(content))
                _retry_while_busy(lambda: self._blob(name).upload_blob(data, overwrite=True, metadata=metadata))
                return
            known = _uncommitted(self._blob(name))
            blocks = []
            for block in _blocks(content):
                # The id is the block's hash: a block that Azure has from an interrupted upload is not sent again.
                # Azure demands ids of equal length within a blob.
                identity = hashlib.sha256(block).hexdigest()[:32]
                if identity not in known:
                    _retry_while_busy(partial(self._blob(name).stage_block, identity, block, length=len(block)))
                blocks.append(BlobBlock(block_id=identity))
            _retry_while_busy(lambda: self._blob(name).commit_block_list(blocks, metadata=metadata))

    def _copy(self, source: str, name: str, size: int, digest: str) -> bool:
        """Copy a blob inside the account; return False if Azure does not, and the file has to be sent.

        An account may refuse copies, by its firewall for example, and the source may have been deleted meanwhile.
        """
        from azure.core.exceptions import HttpResponseError
        from azure.storage.blob import BlobBlock

        blocks = []
        try:
            # in ranges: this works for any size, answers when it is done, and commits blob and hash together
            for start in range(0, size, COPIED):
                identity, length = f"copy-{start:027}", min(COPIED, size - start)
                url, authorization = self._readable_url(source)
                stage = partial(self._blob(name).stage_block_from_url, identity, url, start, length, **authorization)
                _retry_while_busy(stage)
                blocks.append(BlobBlock(block_id=identity))
            _retry_while_busy(lambda: self._blob(name).commit_block_list(blocks, metadata={SHA256: digest}))
        except HttpResponseError:
            return False
        return True

    def _readable_url(self, name: str) -> tuple[str, dict[str, str]]:
        """Return the address at which Azure itself can read a blob, and arguments with the permission to do so."""
        from azure.storage.blob import BlobSasPermissions, generate_blob_sas

        url, store = self._blob(name).url, self._store
        credential = store.credential
        if hasattr(credential, "get_token"):
            return url, {"source_authorization": f"Bearer {credential.get_token(STORAGE_SCOPE).token}"}
        if "sig=" in str(credential):  # a signature: the address has it already
            return url, {}
        expiry = datetime.now(UTC) + timedelta(seconds=COPY_SECONDS)
        signature = generate_blob_sas(
            store.account,
            store.container,
            name,
            account_key=str(credential),
            permission=BlobSasPermissions(read=True),
            expiry=expiry,
        )
        return f"{url}?{signature}", {}

    def _fetch_one(self, folder: str, to: Path, blob: Blob) -> int:
        target = to / blob.name
        # names come from the datastore, where other users write: `../.bashrc` must not leave the target folder
        if not target.resolve().is_relative_to(to.resolve()):
            raise ConflictError(f"cannot download {blob.name}: its path leaves {to}")
        if target.exists() and _same(target, blob):
            return blob.size
        target.parent.mkdir(parents=True, exist_ok=True)
        # named by the blob's version: a partial file of an older version is not continued
        part = target.with_name(f"{target.name}.{hashlib.sha256(blob.etag.encode()).hexdigest()[:8]}{PART}")
        with part.open("ab") as stream:
            while (start := stream.tell()) < blob.size:
                data = self.read(folder + blob.name, start, min(BLOCK, blob.size - start))
                if not data:
                    break
                stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if not _same(part, blob):
            part.unlink()
            raise ConflictError(
                f"cannot download {blob.name}: the copy differs from the original",
                facts={"reason": "the file changed during the download, or was damaged in transit"},
                fix="run the same command again",
            )
        part.rename(target)
        return blob.size


def _in_parallel(work: Callable[[T], int], items: Iterable[T], total: int, progress: Progress | None) -> None:
    """Run a transfer on each item, several in parallel; `work` returns the size of its item in bytes."""
    done = 0
    with ThreadPoolExecutor(THREADS) as pool:
        for size in pool.map(work, items):
            done += size
            if progress:
                progress(done, total)


def _retry_while_busy(ask: Callable[[], T]) -> T:
    """Repeat a request while Azure is busy (429), after the pause that it asks for.

    Azure's blob client, unlike its other clients, neither retries a 429 nor reads `Retry-After`.
    """
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
    """Return the ids of blocks that Azure has from an unfinished upload. It keeps them for a week."""
    from azure.core.exceptions import HttpResponseError

    try:
        _, waiting = client.get_block_list("uncommitted")
    except HttpResponseError:  # no such blob, or listing blocks is not allowed: then all blocks are sent
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
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else file_sha256(content)


def _same(path: Path, blob: Blob) -> bool:
    """Return whether a file has the size of a blob, and its content if a hash of it is recorded.

    Blobs that the job wrote through a mount have no SHA-256; some have an MD5 from Azure's own programs.
    """
    if path.stat().st_size != blob.size:
        return False
    if blob.sha256 is not None:
        return file_sha256(path) == blob.sha256
    if blob.md5 is None:
        return True
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "md5").digest() == blob.md5
