"""A double of S3 on loopback (moto), behind a proxy that counts requests and injects faults."""

from __future__ import annotations

import http.client
import logging
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

BUCKET = "bucket"
FAULTS = ("reset", "503", "truncated")
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class ObjectStore:
    """An S3 service with one bucket.

    Attributes:
        environ: variables that lead a job to the service.
        requests: method -> number of requests.
        faults: kind of fault -> number of injected ones.
        read: key -> bytes that were sent of it.
        share: share of the requests that fail.
    """

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.share = 0.0
        self.requests, self.faults, self.read = Counter[str](), Counter[str](), Counter[str]()
        self.lock, self._exposed = threading.Lock(), 0
        self.upstream = upstream
        self.server = _Server(("127.0.0.1", 0), _Proxy)
        self.server.store = self
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.environ = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server.server_port}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def fault(self, method: str) -> str | None:
        """Count a request, and return the fault that it meets."""
        with self.lock:
            self.requests[method] += 1
            if not self.share:
                return None
            # in turn, not drawn: however many processes ask, a job of 60 requests meets every kind at a share of 5%
            every = round(1 / self.share)
            self._exposed += 1
            if self._exposed % every:
                return None
            kind = FAULTS[self._exposed // every % len(FAULTS)]
            self.faults[kind] += 1
            return kind

    def put(self, key: str, content: bytes) -> str:
        """Write an object without the proxy and return its URL."""
        self._call("PUT", f"/{BUCKET}/{key}", content)
        return f"s3://{BUCKET}/{key}"

    def put_folder(self, folder: Path, prefix: str) -> str:
        """Write all files below a folder and return the URL of the prefix."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return f"s3://{BUCKET}/{prefix}"

    def make_bucket(self) -> None:
        """Create the bucket, empty."""
        self._call("POST", "/moto-api/reset", b"")
        self._call("PUT", f"/{BUCKET}", b"")

    def _call(self, method: str, path: str, body: bytes) -> None:
        connection = http.client.HTTPConnection(*self.upstream, timeout=60)
        headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request"}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        assert answer.status < 300, answer.read()
        connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    store: ObjectStore


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._forward
        raise AttributeError(name)

    def _forward(self) -> None:
        store = self.server.store
        body = self._body()
        kind = store.fault(self.command)
        if kind == "reset":
            self._reset()
            return
        if kind == "503":
            self._answer(503, {}, b"<Error><Code>ServiceUnavailable</Code><Message>fault</Message></Error>")
            return
        connection = http.client.HTTPConnection(*store.upstream, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP - {"date"}}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        found = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP}
        if self.command == "HEAD":
            found["Content-Length"] = answer.headers.get("Content-Length", "0")
        if self.command == "GET" and "?" not in self.path:
            with store.lock:
                store.read[self.path.partition(f"/{BUCKET}/")[2]] += len(content)
        self._answer(answer.status, found, content, cut=kind == "truncated")

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        found = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _answer(self, status: int, headers: dict[str, str], content: bytes, *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if cut:
            self.wfile.write(content[: len(content) // 2])
            self._reset()
        elif self.command != "HEAD":
            self.wfile.write(content)

    def _reset(self) -> None:
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def handle(self) -> None:
        """Ignore that a client, or a fault, has closed the connection."""
        try:
            super().handle()
        except (OSError, ValueError):
            self.close_connection = True

    def finish(self) -> None:
        """Ignore that the connection is closed."""
        try:
            super().finish()
        except (OSError, ValueError):
            self.close_connection = True


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Run the service; the test is skipped without the packages of the extra `dev`."""
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed: pip install -e '.[dev]'")
    server = pytest.importorskip("moto.server", reason="moto is not installed: pip install -e '.[dev]'")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for every request
    service = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    service.start()
    store = ObjectStore(service.get_host_and_port())
    store.make_bucket()
    before = dict(os.environ)
    os.environ.update(store.environ)  # fsspec finds the service as a job does
    s3fs.S3FileSystem.clear_instance_cache()  # of a former service at another port
    try:
        yield store
    finally:
        for name in store.environ:
            os.environ.pop(name, None)
        os.environ.update(before)
        store.server.shutdown()
        store.server.server_close()
        service.stop()
