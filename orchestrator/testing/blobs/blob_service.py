"""The REST interface of the blob service, as far as azure-storage-blob uses it for folders of files."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from datetime import UTC, datetime
from email.utils import formatdate
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from orchestrator.testing.blobs.containers import VERSION, Storage, StoredBlob
from orchestrator.testing.cloud_state import Place
from orchestrator.testing.proxy.login import Login
from orchestrator.testing.proxy.messages import Call, Refusal, Reply

NEEDED = {"GET": "rl", "HEAD": "rl", "PUT": "wca", "DELETE": "d"}


class BlobService:
    """Answers on the account's host."""

    def __init__(self, place: Place, storage: Storage, login: Login) -> None:
        self.place = place
        self.storage = storage
        self.login = login

    def answer(self, call: Call) -> Reply:
        """One call.

        Raises:
            Refusal: as the service would refuse it.
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
        if call.query.get("se", "") < f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}":
            raise Refusal(403, "AuthenticationFailed", "Signature not valid in the specified time frame.")
        if not set(NEEDED.get(call.method, "")) & set(call.query.get("sp", "")):
            raise Refusal(403, "AuthorizationPermissionMismatch", "The SAS does not allow this operation.")
        made_here = self.storage.signed(call.query["sig"], container, name)
        if not made_here and not self._signed_with_key(call):
            raise Refusal(403, "AuthenticationFailed", "Server failed to authenticate the request.")

    def _signed_with_key(self, call: Call) -> bool:
        """Whether a client that has the account's key signed this SAS of one blob or container."""
        query = call.query
        whole = call.path if query.get("sr") == "b" else "/" + call.path.split("/")[1]
        resource = f"/blob/{self.place.account}{whole}"
        first = [query.get(name, "") for name in ("sp", "st", "se")]
        second = [query.get(name, "") for name in ("si", "sip", "spr", "sv", "sr", "snapshot", "ses")]
        answer = [query.get(name, "") for name in ("rscc", "rscd", "rsce", "rscl", "rsct")]
        text = "\n".join((*first, resource, *second, *answer))
        digest = hmac.new(base64.b64decode(self.storage.key), text.encode(), hashlib.sha256).digest()
        return hmac.compare_digest(base64.b64encode(digest).decode(), query["sig"])

    def _container(self, call: Call, container: str) -> Reply:
        if call.query.get("restype") != "container":
            raise Refusal(400, "InvalidUri", "The requested URI does not represent any resource on the server.")
        if call.method == "PUT" and "comp" not in call.query:
            self.storage.make(container)
            return Reply(201)
        self.storage.path(container)
        if call.query.get("comp") == "list":
            return self._list(call, container)
        if call.method in ("GET", "HEAD") and "comp" not in call.query:
            return Reply(200, headers={"Last-Modified": formatdate(usegmt=True), "ETag": '"0x1"'})
        raise _unknown(call)

    def _list(self, call: Call, container: str) -> Reply:
        prefix, delimiter = call.query.get("prefix", ""), call.query.get("delimiter", "")
        size, after = int(call.query.get("maxresults") or 5000), call.query.get("marker", "")
        entries: dict[str, str] = {}
        with_metadata = "metadata" in call.query.get("include", "")
        for blob in self.storage.blobs(container, prefix):
            head, found, _ = blob.name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                folder = prefix + head + delimiter
                entries[folder] = f"<BlobPrefix><Name>{escape(folder)}</Name></BlobPrefix>"
            else:
                entries[blob.name] = _entry(blob, with_metadata)
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
        if call.method == "GET" and part == "blocklist":
            return self._waiting(call, container, name)
        if call.method == "DELETE" and part is None:
            self.storage.delete(container, name)
            return Reply(202)
        if call.method == "PUT" and part in (None, "block", "blocklist", "metadata"):
            return self._write(call, container, name, part)
        raise _unknown(call)

    def _waiting(self, call: Call, container: str, name: str) -> Reply:
        """The blocks of a blob that was not finished."""
        if call.query.get("blocklisttype") != "uncommitted":
            raise _unknown(call)
        blocks = self.storage.staged(container, name)
        if not blocks:
            raise Refusal(404, "BlobNotFound", "The specified blob does not exist.")
        shown = "".join(f"<Block><Name>{escape(block)}</Name><Size>{size}</Size></Block>" for block, size in blocks)
        return Reply.xml(f"<BlockList><UncommittedBlocks>{shown}</UncommittedBlocks></BlockList>")

    def _write(self, call: Call, container: str, name: str, part: str | None) -> Reply:
        self._check_md5(call)
        metadata = _metadata(call)
        kind = call.headers.get("x-ms-blob-content-type", "application/octet-stream")
        if part == "block":
            self.storage.path(container, name)
            self.storage.stage(container, name, call.query["blockid"], call.body)
            return Reply(201, headers={"x-ms-request-server-encrypted": "true"})
        if part == "metadata":
            return _written(self.storage.describe(container, name, metadata), 200)
        self._check_conditions(call, container, name)
        if part == "blocklist":
            blocks = [element.text or "" for element in ElementTree.fromstring(call.body)]
            return _written(self.storage.commit(container, name, blocks, kind=kind, metadata=metadata), 201)
        if call.headers.get("x-ms-blob-type") != "BlockBlob":
            raise Refusal(400, "InvalidBlobType", "the double keeps block blobs only")
        return _written(self.storage.write(container, name, [call.body], kind=kind, metadata=metadata), 201)

    def _check_conditions(self, call: Call, container: str, name: str) -> None:
        """`If-None-Match: *` means: only if there is none."""
        if call.headers.get("if-none-match") != "*":
            return
        try:
            self.storage.find(container, name)
        except Refusal:
            return
        raise Refusal(409, "BlobAlreadyExists", "The specified blob already exists.")

    def _check_md5(self, call: Call) -> None:
        said = call.headers.get("content-md5")
        if said is not None and said != base64.b64encode(hashlib.md5(call.body).digest()).decode():
            raise Refusal(400, "Md5Mismatch", "The MD5 value specified in the request did not match.")


def _read(call: Call, blob: StoredBlob) -> Reply:
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Type": blob.kind,
        "ETag": blob.etag,
        "Last-Modified": formatdate(blob.modified, usegmt=True),
        "x-ms-blob-type": "BlockBlob",
        "x-ms-creation-time": formatdate(blob.modified, usegmt=True),
        "x-ms-server-encrypted": "true",
        **{f"x-ms-meta-{name}": value for name, value in blob.metadata.items()},
    }
    if call.headers.get("if-match", blob.etag) not in (blob.etag, "*"):
        raise Refusal(412, "ConditionNotMet", "The condition specified using HTTP conditional header(s) is not met.")
    if call.method == "HEAD":
        return Reply(200, b"", {**headers, "Content-Length": str(blob.size)})
    wanted = call.headers.get("x-ms-range") or call.headers.get("range")
    if wanted is None:
        return Reply(200, blob.path.read_bytes(), headers)
    first, last = _range(wanted, blob.size)
    with blob.path.open("rb") as file:
        file.seek(first)
        data = file.read(last - first + 1)
    headers["Content-Range"] = f"bytes {first}-{first + len(data) - 1}/{blob.size}"
    if call.headers.get("x-ms-range-get-content-md5") == "true":
        headers["Content-MD5"] = base64.b64encode(hashlib.md5(data).digest()).decode()
    return Reply(206, data, headers)


def _range(wanted: str, size: int) -> tuple[int, int]:
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted.strip())
    if found is None or int(found[1]) >= size:
        headers = {"Content-Range": f"bytes */{size}"}
        raise Refusal(416, "InvalidRange", "The range specified is invalid for the current size.", headers)
    return int(found[1]), min(int(found[2]) if found[2] else size - 1, size - 1)


def _written(blob: StoredBlob, status: int) -> Reply:
    headers = {"ETag": blob.etag, "Last-Modified": formatdate(blob.modified, usegmt=True)}
    return Reply(status, headers={**headers, "x-ms-request-server-encrypted": "true"})


def _metadata(call: Call) -> dict[str, str]:
    start = "x-ms-meta-"
    return {name[len(start) :]: value for name, value in call.headers.items() if name.startswith(start)}


def _entry(blob: StoredBlob, with_metadata: bool) -> str:
    properties = (
        f"<Creation-Time>{formatdate(blob.modified, usegmt=True)}</Creation-Time>"
        f"<Last-Modified>{formatdate(blob.modified, usegmt=True)}</Last-Modified>"
        f"<Etag>{escape(blob.etag.strip(chr(34)))}</Etag><Content-Length>{blob.size}</Content-Length>"
        f"<Content-Type>{escape(blob.kind)}</Content-Type><BlobType>BlockBlob</BlobType>"
    )
    metadata = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in blob.metadata.items())
    shown = f"<Metadata>{metadata}</Metadata>" if with_metadata else ""
    return f"<Blob><Name>{escape(blob.name)}</Name><Properties>{properties}</Properties>{shown}</Blob>"


def _unknown(call: Call) -> Refusal:
    return Refusal(400, "DoubleHasNoSuchOperation", f"the double does not know {call.line} {dict(call.query)}")


def url(place: Place, container: str, name: str, sas: str) -> str:
    """A blob with what opens it."""
    return f"https://{place.blob_host}/{container}/{quote(name)}?{sas}"
