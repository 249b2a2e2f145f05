"""A real HTTP server on loopback with the failures that download servers have."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from orchestrator.fetch.http import Client, Transfer

Script = Callable[["Handler", bytes], None]
QUICK = Transfer(connect=5, read=0.3, tries=3, pause=0.0)


@dataclass
class Site:
    """Published files, and the responses to the next requests for each."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    scripts: dict[str, list[Script]] = field(default_factory=dict)
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    modified: str = "Wed, 21 Oct 2015 07:28:00 GMT"
    etags: bool = True
    over: threading.Event = field(default_factory=threading.Event)

    def publish(self, path: str, content: bytes, *scripts: Script) -> None:
        """Publish a file; the first requests for it run `scripts`, later ones get a proper response."""
        self.files[path] = content
        self.scripts[path] = list(scripts)

    def ranges(self) -> list[str | None]:
        """Return the ranges of all requests."""
        return [headers.get("range") for _, headers in self.seen]


class Handler(BaseHTTPRequestHandler):
    """Answers GET."""

    protocol_version = "HTTP/1.1"
    site: Site

    def do_GET(self) -> None:
        path = self.path.lstrip("/")
        self.site.seen.append((path, {name.lower(): value for name, value in self.headers.items()}))
        content = self.site.files.get(path)
        if content is None:
            status(404)(self, b"")
        elif scripts := self.site.scripts.get(path):
            scripts.pop(0)(self, content)
        else:
            serve_file(self, content)

    def begin(self, code: int, length: int | None, **headers: str) -> None:
        """Send status and headers."""
        self.send_response(code)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Log nothing."""


class Server(ThreadingHTTPServer):
    """Server that accepts clients which close the connection during a response."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing."""


def file_headers(handler: Handler, content: bytes) -> dict[str, str]:
    found = {"Last_Modified": handler.site.modified, "Content_Type": "application/octet-stream"}
    if handler.site.etags:
        found["ETag"] = f'"{hashlib.md5(content).hexdigest()}"'
    return found


def serve_file(handler: Handler, content: bytes) -> None:
    """Send the whole file, or the requested range if the file has not changed."""
    asked, headers = handler.headers.get("Range"), file_headers(handler, content)
    condition = handler.headers.get("If-Range")
    if asked is None or (condition is not None and condition not in headers.values()):
        handler.begin(200, len(content), **headers)
        handler.wfile.write(content)
        return
    start = int(asked.removeprefix("bytes=").removesuffix("-"))
    if start >= len(content):
        handler.begin(416, 0, Content_Range=f"bytes */{len(content)}")
        return
    span = f"bytes {start}-{len(content) - 1}/{len(content)}"
    handler.begin(206, len(content) - start, Content_Range=span, **headers)
    handler.wfile.write(content[start:])


def without_ranges(handler: Handler, content: bytes) -> None:
    """Send the whole file, whatever range is requested."""
    handler.begin(200, len(content), **file_headers(handler, content))
    handler.wfile.write(content)


def cut(after: int, *, ranges: bool = True) -> Script:
    """Return a response that closes the connection after that many bytes."""

    def run(handler: Handler, content: bytes) -> None:
        asked = handler.headers.get("Range") if ranges else None
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        span = {"Content_Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if asked else {}
        handler.begin(206 if asked else 200, len(content) - start, **span, **file_headers(handler, content))
        handler.wfile.write(content[start : start + after])
        handler.close_connection = True

    return run


def stall(after: int) -> Script:
    """Return a response that sends nothing more after that many bytes."""

    def run(handler: Handler, content: bytes) -> None:
        handler.begin(200, len(content), **file_headers(handler, content))
        handler.wfile.write(content[:after])
        handler.wfile.flush()
        handler.site.over.wait(20)
        handler.close_connection = True

    return run


def status(code: int, **headers: str) -> Script:
    """Return a response with another status."""

    def run(handler: Handler, content: bytes) -> None:
        handler.begin(code, 2, **headers)
        handler.wfile.write(b"no")

    return run


def send(body: bytes, length: int | None = None, **headers: str) -> Script:
    """Return a response with status 200 and another body."""

    def run(handler: Handler, content: bytes) -> None:
        handler.begin(200, len(body) if length is None else length, **headers)
        handler.wfile.write(body)
        handler.close_connection = length is not None

    return run


@pytest.fixture
def site() -> Iterator[Site]:
    handler = type("SiteHandler", (Handler,), {})
    with Server(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        handler.site = site = Site(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield site
        finally:
            site.over.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def client(site: Site) -> Iterator[Client]:
    with Client([site.url], QUICK) as client:
        yield client


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
