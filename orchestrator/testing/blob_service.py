"""The one storage account, in a folder, and the REST API of the blob service as azure-storage-blob uses it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from orchestrator.testing.cloud_state import WorkspaceAddress
from orchestrator.testing.proxy.login import Login
from orchestrator.testing.proxy.messages import Call, Refusal, Reply

VERSION = "2024-11-04"
TIME = "%Y-%m-%dT%H:%M:%SZ"  # of a SAS: texts in this format compare like the times
NEEDED = {"GET": "rl", "HEAD": "rl", "PUT": "wca", "DELETE": "d"}
"""Method -> permissions of a SAS, one of which it needs."""
SIGNED = (
    *("si", "sip", "spr", "sv", "sr", "snapshot", "ses"),
    *("rscc", "rscd", "rsce", "rscl", "rsct"),
)
"""Query parameters that the account's key signs after the resource."""
ENCRYPTED = {"x-ms-request-server-encrypted": "true"}
METADATA = "x-ms-meta-"
FOLDER_MARK = "hdi_isfolder"
"""Key in the metadata of an empty blob that marks a folder, as mounts write it: blobs may have its name as prefix."""


@dataclass(frozen=True)
class StoredBlob:
    """One blob at one moment."""

    name: str
    path: Path
    size: int
    modified: str
    """Date in the format of an HTTP header."""
    etag: str
    metadata: dict[str, str]
    content_type: str

    @property
    def headers(self) -> dict[str, str]:
        """Headers that every answer about the blob has."""
        return {"ETag": self.etag, "Last-Modified": self.modified}


class Storage:
    """The account.

    Args:
        folder: holds the containers.
        datastores: name -> container.
    """

    def __init__(self, folder: Path, datastores: dict[str, str]) -> None:
        self.folder, self.datastores = folder, datastores
        self.by_identity = False
        self.key = base64.b64encode(secrets.token_bytes(64)).decode()
        self._blocks: dict[tuple[str, str], dict[str, bytes]] = {}
        self._described: dict[Path, tuple[dict[str, str], str]] = {}
        self.lock = threading.RLock()
        self._signatures: dict[str, tuple[str, str]] = {}
        for container in datastores.values():
            self.make(container)

    def make(self, container: str) -> None:
        """Make a container if it does not exist."""
        (self.folder / container).mkdir(parents=True, exist_ok=True)

    def sign(self, container: str, name: str = "", *, permissions: str, seconds: float) -> str:
        """Return a SAS for a container, or for one blob of it, as the query of a URL.

        Args:
            container: name of the container.
            name: of the blob; empty: the whole container.
            permissions: letters, as in `sp` of a SAS: r, w, c, a, l, d.
            seconds: how long it is valid.
        """
        ends = datetime.now(UTC) + timedelta(seconds=seconds)
        signature = base64.b64encode(secrets.token_bytes(32)).decode()
        self._signatures[signature] = (container, name)
        kind = "b" if name else "c"
        return urlencode({"sv": VERSION, "sr": kind, "sp": permissions, "se": f"{ends:{TIME}}", "sig": signature})

    def signed(self, signature: str, container: str, name: str) -> bool:
        """Return whether this account issued a signature.

        Args:
            signature: value of `sig` in the query.
            container: name of the container.
            name: of the blob.
        """
        return self._signatures.get(signature) in ((container, ""), (container, name))

    @property
    def secrets(self) -> list[str]:
        """The key and every signature, for tests that check that no log has them."""
        signatures = list(self._signatures)
        return [self.key, *signatures, *(quote(signature, safe="") for signature in signatures)]

    def path(self, container: str, name: str = "") -> Path:
        """Return the path of a container or of a blob in it.

        Raises:
            Refusal: no such container, or a name that leads out of it.
        """
        root = self.folder / container
        if not container or not root.is_dir() or "/" in container:
            raise Refusal(404, "ContainerNotFound", "The specified container does not exist.")
        if ".." in PurePosixPath(name).parts or name.startswith("/") or len(name) > 1024:
            raise Refusal(400, "InvalidResourceName", "The specified resource name contains invalid characters.")
        return root / name

    def find(self, container: str, name: str) -> StoredBlob:
        """Return a blob.

        Raises:
            Refusal: it does not exist.
        """
        path = self.path(container, name)
        with suppress(FileNotFoundError, NotADirectoryError):
            stat = path.stat()
            if not path.is_dir() or path in self._described:
                return self._blob(name, path, stat)
        raise Refusal(404, "BlobNotFound", "The specified blob does not exist.")

    def _blob(self, name: str, path: Path, stat: os.stat_result) -> StoredBlob:
        metadata, content_type = self._described.get(path, ({}, "application/octet-stream"))
        size = 0 if FOLDER_MARK in metadata else stat.st_size
        tag = hashlib.sha256(f"{stat.st_mtime_ns} {size} {sorted(metadata.items())}".encode()).hexdigest()
        modified = formatdate(stat.st_mtime, usegmt=True)
        return StoredBlob(name, path, size, modified, f'"0x{tag[:16].upper()}"', metadata, content_type)

    def blobs(self, container: str, prefix: str = "") -> Iterator[StoredBlob]:
        """Yield the blobs whose names have a prefix, sorted by name."""
        root = self.path(container)
        found = [Path(folder, name) for folder, inner, files in os.walk(root) for name in (*inner, *files)]
        names = [os.path.relpath(path, root) for path in found if not path.is_dir() or path in self._described]
        for name in sorted(name for name in names if name.startswith(prefix)):
            with suppress(FileNotFoundError):  # a job may delete it at this moment
                yield self._blob(name, root / name, (root / name).stat())

    def write(
        self, container: str, name: str, parts: list[bytes], metadata: dict[str, str], content_type: str
    ) -> StoredBlob:
        """Write a blob, or replace it completely.

        Args:
            container: name of the container.
            name: of the blob.
            parts: its content.
            metadata: its own metadata, name -> text.
            content_type: MIME type.

        Raises:
            Refusal: the name is a folder, or one of its parents a file.
        """
        # Written elsewhere and renamed: a job that reads the blob through its mount sees the old content or the new
        # one, as on Azure, never half of it.
        path = self.path(container, name)
        if FOLDER_MARK in metadata and not any(parts):
            path.mkdir(parents=True, exist_ok=True)
            self._described[path] = metadata, content_type
            return self.find(container, name)
        staged = self.folder.parent / "staged" / uuid.uuid4().hex
        staged.parent.mkdir(parents=True, exist_ok=True)
        with staged.open("wb") as file:
            file.writelines(parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            staged.replace(path)
        except OSError:
            staged.unlink()
            raise Refusal(409, "ResourceTypeMismatch", f"{name} is a folder, or one of its parents a file.") from None
        self._described[path] = metadata, content_type
        return self.find(container, name)

    def stage(self, container: str, name: str, block: str, data: bytes) -> None:
        """Keep one block of a blob until the list of its blocks is put.

        Args:
            container: name of the container.
            name: of the blob.
            block: id of the block.
            data: its content.
        """
        with self.lock:
            self._blocks.setdefault((container, name), {})[block] = data

    def staged(self, container: str, name: str) -> list[tuple[str, int]]:
        """Return the staged blocks of a blob, each with its size in bytes."""
        with self.lock:
            return [(block, len(data)) for block, data in sorted(self._blocks.get((container, name), {}).items())]

    def commit(
        self, container: str, name: str, blocks: list[str], metadata: dict[str, str], content_type: str
    ) -> StoredBlob:
        """Write a blob out of its staged blocks.

        Args:
            container: name of the container.
            name: of the blob.
            blocks: ids of the blocks, in the order of the content.
            metadata: its own metadata, name -> text.
            content_type: MIME type.

        Raises:
            Refusal: a block was never staged.
        """
        with self.lock:
            staged = self._blocks.get((container, name), {})
            if missing := set(blocks) - staged.keys():
                raise Refusal(400, "InvalidBlockList", f"The specified block list is invalid: {sorted(missing)}.")
            written = self.write(container, name, [staged[block] for block in blocks], metadata, content_type)
            self._blocks.pop((container, name), None)
            return written

    def describe(self, container: str, name: str, metadata: dict[str, str]) -> StoredBlob:
        """Replace the metadata of a blob.

        Raises:
            Refusal: it does not exist.
        """
        blob = self.find(container, name)
        self._described[blob.path] = metadata, blob.content_type
        return self.find(container, name)

    def delete(self, container: str, name: str) -> None:
        """Delete a blob, and the folders that it leaves empty.

        On Azure a folder exists only as long as a blob has its prefix.

        Raises:
            Refusal: it does not exist.
        """
        path = self.find(container, name).path
        self._described.pop(path, None)
        left = [path, *path.parents] if path.is_dir() else path.parents
        if not path.is_dir():
            path.unlink(missing_ok=True)
        with suppress(OSError):  # rmdir of the first folder that is not empty
            for folder in left:
                if folder == self.folder / container or folder in self._described:
                    break
                folder.rmdir()


@dataclass
class BlobService:
    """Answers on the account's host."""

    place: WorkspaceAddress
    storage: Storage
    login: Login

    def answer(self, call: Call) -> Reply:
        """Answer one call.

        Raises:
            Refusal: the service would refuse it.
        """
        container, _, name = call.path.lstrip("/").partition("/")
        self._authorize(call, container, name)
        reply = self._blob(call, container, name) if name else self._container(call, container)
        reply.headers["x-ms-client-request-id"] = call.headers.get("x-ms-client-request-id", "")
        reply.headers.setdefault("x-ms-version", call.headers.get("x-ms-version", VERSION))
        return reply

    def _authorize(self, call: Call, container: str, name: str) -> None:
        kind, _, rest = call.headers.get("authorization", "").partition(" ")
        if kind == "Bearer":
            self.login.check(call)
        elif kind == "SharedKey":
            if not rest.startswith(f"{self.place.account}:") or self.storage.by_identity:
                raise Refusal(403, "AuthenticationFailed", "Server failed to authenticate the request.")
        elif "sig" in call.query:
            self._check_sas(call, container, name)
        else:
            raise Refusal(401, "NoAuthenticationInformation", "Server failed to authenticate the request.")

    def _check_sas(self, call: Call, container: str, name: str) -> None:
        query = call.query
        if query.get("se", "") < f"{datetime.now(UTC):{TIME}}":
            raise Refusal(403, "AuthenticationFailed", "Signature not valid in the specified time frame.")
        if not set(NEEDED.get(call.method, "")) & set(query.get("sp", "")):
            raise Refusal(403, "AuthorizationPermissionMismatch", "The SAS does not allow this operation.")
        if not self.storage.signed(query["sig"], container, name) and not self._signed_with_key(call):
            raise Refusal(403, "AuthenticationFailed", "Server failed to authenticate the request.")

    def _signed_with_key(self, call: Call) -> bool:
        """Return whether a client with the account's key signed this SAS of one blob or container."""
        # The string to sign of a service SAS, by Microsoft's documentation ("Create a service SAS"): fields in a fixed
        # order, one a line, empty ones included.
        query = call.query
        path = call.path if query.get("sr") == "b" else "/" + call.path.split("/")[1]
        first, second = ([query.get(name, "") for name in names] for names in (("sp", "st", "se"), SIGNED))
        text = "\n".join((*first, f"/blob/{self.place.account}{path}", *second))
        digest = hmac.new(base64.b64decode(self.storage.key), text.encode(), hashlib.sha256).digest()
        return hmac.compare_digest(base64.b64encode(digest).decode(), query["sig"])

    def _container(self, call: Call, container: str) -> Reply:
        if call.query.get("restype") != "container":
            raise Refusal(400, "InvalidUri", "The requested URI does not represent any resource on the server.")
        part = call.query.get("comp")
        if call.method == "PUT" and part is None:
            self.storage.make(container)
            return Reply(201)
        self.storage.path(container)
        if part == "list":
            return self._list(call, container)
        if call.method in ("GET", "HEAD") and part is None:
            return Reply(200, headers={"Last-Modified": formatdate(usegmt=True), "ETag": '"0x1"'})
        raise _unknown(call)

    def _list(self, call: Call, container: str) -> Reply:
        prefix, delimiter = call.query.get("prefix", ""), call.query.get("delimiter", "")
        size, after = int(call.query.get("maxresults") or 5000), call.query.get("marker", "")
        entries: dict[str, str] = {}
        for blob in self.storage.blobs(container, prefix):
            head, more, _ = blob.name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if more:
                folder = prefix + head + delimiter
                entries[folder] = f"<BlobPrefix><Name>{escape(folder)}</Name></BlobPrefix>"
            else:
                entries[blob.name] = _entry(blob, with_metadata="metadata" in call.query.get("include", ""))
        names = [name for name in entries if name > after]
        shown = "".join(entries[name] for name in names[:size])
        marker = escape(names[size - 1]) if len(names) > size else ""
        return Reply.xml(
            f'<EnumerationResults ServiceEndpoint="https://{call.host}/" ContainerName="{container}">'
            f"<Prefix>{escape(prefix)}</Prefix><Marker>{escape(after)}</Marker><MaxResults>{size}</MaxResults>"
            f"<Delimiter>{escape(delimiter)}</Delimiter><Blobs>{shown}</Blobs><NextMarker>{marker}</NextMarker>"
            "</EnumerationResults>"
        )

    def _blob(self, call: Call, container: str, name: str) -> Reply:
        part = call.query.get("comp")
        if call.method in ("GET", "HEAD") and part in (None, "metadata"):
            return _read(call, self.storage.find(container, name))
        if call.method == "GET" and part == "blocklist" and call.query.get("blocklisttype") == "uncommitted":
            return self._staged(container, name)
        if call.method == "DELETE" and part is None:
            self.storage.delete(container, name)
            return Reply(202)
        if call.method == "PUT" and part in (None, "block", "blocklist", "metadata"):
            return self._write(call, container, name, part)
        raise _unknown(call)

    def _staged(self, container: str, name: str) -> Reply:
        """Return the blocks of an unfinished blob."""
        if not (blocks := self.storage.staged(container, name)):
            raise Refusal(404, "BlobNotFound", "The specified blob does not exist.")
        shown = "".join(f"<Block><Name>{escape(block)}</Name><Size>{size}</Size></Block>" for block, size in blocks)
        return Reply.xml(f"<BlockList><UncommittedBlocks>{shown}</UncommittedBlocks></BlockList>")

    def _write(self, call: Call, container: str, name: str, part: str | None) -> Reply:
        digest = base64.b64encode(hashlib.md5(call.body).digest()).decode()
        if call.headers.get("content-md5", digest) != digest:
            raise Refusal(400, "Md5Mismatch", "The MD5 value specified in the request did not match.")
        if part == "block":
            self.storage.path(container, name)
            data = self._copied(call) if "x-ms-copy-source" in call.headers else call.body
            self.storage.stage(container, name, call.query["blockid"], data)
            return Reply(201, headers=dict(ENCRYPTED))
        metadata = {key.removeprefix(METADATA): text for key, text in call.headers.items() if key.startswith(METADATA)}
        if part == "metadata":
            blob = self.storage.describe(container, name, metadata)
            return Reply(200, headers={**blob.headers, **ENCRYPTED})
        content_type = call.headers.get("x-ms-blob-content-type", "application/octet-stream")
        with self.storage.lock:  # of two writers with the same condition one must be refused
            self._check_condition(call, container, name)
            if part == "blocklist":
                blocks = [element.text or "" for element in ElementTree.fromstring(call.body)]
                blob = self.storage.commit(container, name, blocks, metadata, content_type)
            elif call.headers.get("x-ms-blob-type") != "BlockBlob":  # append and page blobs have other semantics
                raise Refusal(400, "InvalidBlobType", "the double keeps block blobs only")
            else:
                blob = self.storage.write(container, name, [call.body], metadata, content_type)
        return Reply(201, headers={**blob.headers, **ENCRYPTED})

    def _check_condition(self, call: Call, container: str, name: str) -> None:
        """Check the condition of a write.

        Raises:
            Refusal: the blob exists, or is not the one that the write may replace.
        """
        if call.headers.get("if-none-match") == "*" and self._exists(container, name):
            raise Refusal(409, "BlobAlreadyExists", "The specified blob already exists.")
        if (wanted := call.headers.get("if-match")) is not None:
            with suppress(Refusal):
                if wanted in ("*", self.storage.find(container, name).etag):
                    return
            raise _changed()

    def _copied(self, call: Call) -> bytes:
        """Return the bytes of another blob of the account that a block is made from (Put Block From URL).

        Raises:
            Refusal: the request has no permission to read the source.
        """
        source = urlsplit(call.headers["x-ms-copy-source"])
        more = {"authorization": call.headers.get("x-ms-copy-source-authorization", "")}
        if wanted := call.headers.get("x-ms-source-range"):
            more["range"] = wanted
        if source.netloc != call.host:
            raise Refusal(400, "CannotVerifyCopySource", "the double copies inside its own account only")
        read = Call.parse("GET", source.netloc, f"{source.path}?{source.query}", more, b"")
        return self.answer(read).body

    def _exists(self, container: str, name: str) -> bool:
        with suppress(Refusal):
            return bool(self.storage.find(container, name))
        return False


def _changed() -> Refusal:
    """Return the refusal of a request whose blob has another version."""
    return Refusal(412, "ConditionNotMet", "The condition specified using HTTP conditional header(s) is not met.")


def _read(call: Call, blob: StoredBlob) -> Reply:
    headers = {
        **blob.headers,
        "Accept-Ranges": "bytes",
        "Content-Type": blob.content_type,
        "x-ms-blob-type": "BlockBlob",
        "x-ms-creation-time": blob.modified,
        "x-ms-server-encrypted": "true",
        **{f"{METADATA}{name}": value for name, value in blob.metadata.items()},
    }
    if call.headers.get("if-match", blob.etag) not in (blob.etag, "*"):
        raise _changed()
    if call.method == "HEAD":
        return Reply(200, b"", {**headers, "Content-Length": str(blob.size)})
    if (wanted := call.headers.get("x-ms-range") or call.headers.get("range")) is None:
        return Reply(200, b"" if FOLDER_MARK in blob.metadata else blob.path.read_bytes(), headers)
    matched = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted.strip())
    if matched is None or int(matched[1]) >= blob.size:
        raise Refusal(
            416,
            "InvalidRange",
            "The range specified is invalid for the current size.",
            {"Content-Range": f"bytes */{blob.size}"},
        )
    first, last = int(matched[1]), min(int(matched[2] or blob.size), blob.size - 1)
    with blob.path.open("rb") as file:
        file.seek(first)
        data = file.read(last - first + 1)
    headers["Content-Range"] = f"bytes {first}-{first + len(data) - 1}/{blob.size}"
    if call.headers.get("x-ms-range-get-content-md5") == "true":
        headers["Content-MD5"] = base64.b64encode(hashlib.md5(data).digest()).decode()
    return Reply(206, data, headers)


def _entry(blob: StoredBlob, *, with_metadata: bool) -> str:
    properties = (
        f"<Creation-Time>{blob.modified}</Creation-Time><Last-Modified>{blob.modified}</Last-Modified>"
        f"<Etag>{escape(blob.etag.strip(chr(34)))}</Etag><Content-Length>{blob.size}</Content-Length>"
        f"<Content-Type>{escape(blob.content_type)}</Content-Type><BlobType>BlockBlob</BlobType>"
    )
    metadata = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in blob.metadata.items())
    shown = f"<Metadata>{metadata}</Metadata>" if with_metadata else ""
    return f"<Blob><Name>{escape(blob.name)}</Name><Properties>{properties}</Properties>{shown}</Blob>"


def _unknown(call: Call) -> Refusal:
    return Refusal(400, "DoubleHasNoSuchOperation", f"the double does not know {call.line} {dict(call.query)}")
