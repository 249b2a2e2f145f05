"""A proxy on loopback that terminates TLS: clients keep the real host names, and can reach no other host.

It also records requests without their secrets, and injects the faults that a test asks for.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from orchestrator.testing.proxy.messages import Call, Refusal, Reply

Answer = Callable[[Call], Reply]
RESET = struct.pack("ii", 1, 0)  # SO_LINGER with 0 s: close sends RST, as a lost connection does, in place of FIN
HOSTS_SIGNED_FOR = (
    "management.azure.com",
    "login.microsoftonline.com",
    "prices.azure.com",
    "*.api.azureml.ms",
    "*.blob.core.windows.net",
    "*.vault.azure.net",
)
REDACTED = "REDACTED"
SECRET_FIELDS = {"access_token", "assertion", "client_assertion", "client_secret", "key", "password", "refresh_token"}
SIGNATURE = re.compile(r"(?<=[?&]sig=)[^&\s\"']+")


def server_context(folder: Path, *more_hosts: str) -> tuple[ssl.SSLContext, Path]:
    """Return a TLS context for the hosts, and the file with the certificate of the authority that clients must trust.

    The authority lives as long as the double.

    Args:
        folder: gets the authority's certificate.
        more_hosts: in addition to those that every workspace needs; `*` matches one label.

    Raises:
        ModuleNotFoundError: the extra `testing` is not installed.
    """
    import trustme

    authority = trustme.CA(organization_name="Azure double")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*HOSTS_SIGNED_FOR, *more_hosts).configure_cert(context)
    folder.mkdir(parents=True, exist_ok=True)
    trusted = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(trusted))
    return context, trusted


@dataclass(frozen=True)
class Recorded:
    """One request and the status of its answer."""

    method: str
    host: str
    path: str
    query: dict[str, str]
    """Without the signature of a SAS."""
    body: Any
    """The JSON document or form, without secrets; None: no body, or another type."""
    size: int
    """Bytes of the body."""
    status: int | None
    """None: the connection was reset."""

    @property
    def line(self) -> str:
        """`PUT management.azure.com/subscriptions/...`."""
        return f"{self.method} {self.host}{self.path}"


def record(call: Call, status: int | None) -> Recorded:
    """Return the record of a call, without secrets."""
    query = {name: REDACTED if name == "sig" else value for name, value in call.query.items()}
    return Recorded(call.method, call.host, call.path, query, _document(call), len(call.body), status)


def _document(call: Call) -> Any:
    kind, document = call.headers.get("content-type", ""), None
    if "x-www-form-urlencoded" in kind:
        document = dict(parse_qsl(call.body.decode())) or None
    elif "json" in kind:
        with suppress(ValueError):
            document = json.loads(call.body)
    return redacted(document)


def redacted(document: Any) -> Any:
    """Return a document without tokens, keys and the signatures of SAS."""
    if isinstance(document, dict):
        return {name: REDACTED if name in SECRET_FIELDS else redacted(value) for name, value in document.items()}
    if isinstance(document, list):
        return [redacted(value) for value in document]
    return SIGNATURE.sub(REDACTED, document) if isinstance(document, str) else document


class Moment(StrEnum):
    """The moment of a call at which a fault occurs."""

    ANSWER = "answer"
    """Nothing is done; the answer is an error."""
    CONNECTION = "connection"
    """The connection is reset before anything is read."""
    UPLOAD = "upload"
    """The connection is reset after half of the body; nothing is done."""
    REPLY = "reply"
    """The call is carried out; the connection is reset instead of the answer."""
    CUT = "cut"
    """The call is carried out; the connection is reset after half of the answer."""


@dataclass
class Fault:
    """An injected fault."""

    match: str
    """Pattern of `fnmatch` for the line of a call."""
    moment: Moment
    times: int
    """How often it will still occur."""
    refusal: Refusal | None = None
    """The error, at the moment ANSWER."""


class Faults(list[Fault]):
    """Injected faults, the oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def take(self, call: Call) -> Fault | None:
        """Return the first fault that matches a call, and count it down."""
        with self._lock:  # connections are served by threads: a fault with times=1 must occur once
            for fault in self:
                if fault.times and fnmatchcase(call.line, fault.match):
                    fault.times -= 1
                    return fault
        return None

    @property
    def left(self) -> list[str]:
        """Patterns of faults that have not occurred as often as requested."""
        return [fault.match for fault in self if fault.times]


class Proxy(ThreadingMixIn, TCPServer):
    """Serves CONNECT to the known hosts, and plain requests to them and to itself.

    Args:
        answer: answers a call.
        is_known_host: whether a host is one of the double's.
        context: TLS context of these hosts.
        faults: faults to inject; None: those that a test appends.
    """

    allow_reuse_address = True
    request_queue_size = 64

    def __init__(
        self,
        answer: Answer,
        is_known_host: Callable[[str], bool],
        context: ssl.SSLContext,
        faults: Faults | None = None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.is_known_host, self.context = answer, is_known_host, context
        self.faults = Faults() if faults is None else faults
        self.recorded: list[Recorded] = []
        self.refused: list[str] = []
        self.crashes: list[BaseException] = []
        self._open: set[socket.socket] = set()
        self._serving: list[threading.Thread] = []
        self._closing = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="azure-double", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`."""
        host, port = self.socket.getsockname()[:2]
        return f"http://{host}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a daemon thread for a connection, so that a process that forgets to close the double still ends."""
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        with self._lock:
            self._serving = [*(other for other in self._serving if other.is_alive()), thread]
            thread.start()

    def close(self) -> None:
        """End every connection and join every thread."""
        self.shutdown()
        self._thread.join()
        with self._lock:
            self._closing = True
            left, serving = list(self._open), list(self._serving)
        for connection in left:
            _end(connection)
        for thread in serving:
            thread.join()
        self.server_close()

    def track(self, connection: socket.socket | None, *, was: socket.socket | None = None) -> None:
        """Register a connection that must end when the proxy closes.

        Args:
            connection: an open one; None: only forget the other.
            was: one that was closed or wrapped.
        """
        with self._lock:
            self._open = (self._open - {was}) | ({connection} if connection else set())
            late = self._closing
        if late and connection:
            _end(connection)

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep an error of the server's own, but not that of a client that went away."""
        problem = sys.exc_info()[1]
        if problem is not None and not isinstance(problem, OSError | ssl.SSLError | ValueError):
            self.crashes.append(problem)


def _end(connection: socket.socket) -> None:
    # shutdown, not close: it wakes the thread that is blocked in a read of this connection
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"
    tunnel: str | None = None

    def setup(self) -> None:
        super().setup()
        # headers and body are two small writes: Nagle's algorithm would delay each answer by 40 ms
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self.server.track(self.request)

    def finish(self) -> None:
        self.server.track(None, was=self.request)
        with suppress(OSError, ValueError):
            super().finish()
        with suppress(OSError):
            self.request.close()

    def do_CONNECT(self) -> None:
        host = self.path.rpartition(":")[0].lower()
        if not self.server.is_known_host(host):
            self._refuse(host)
            return
        self.send_response(200, "Connection established")
        self.end_headers()
        # From here on the client sends TLS over the same socket: wrap it, and let this handler serve the requests
        # inside as if they had arrived directly.
        self.tunnel = host
        was = self.request
        self.request = self.server.context.wrap_socket(was, server_side=True)
        self.server.track(self.request, was=was)
        self.setup()
        self.close_connection = False

    def do_GET(self) -> None:
        target = urlsplit(self.path)
        host = self.tunnel or target.hostname or "127.0.0.1"
        if not self.server.is_known_host(host):
            self._refuse(host)
            return
        path = target._replace(scheme="", netloc="").geturl()
        named = {name.lower(): value for name, value in self.headers.items()}
        call = Call.parse(self.command, host, path, named, b"")
        length = int(named.get("content-length", 0))
        fault = self.server.faults.take(call)
        # before the body is read: a client that is still sending gets the reset
        if fault is not None and fault.moment in (Moment.CONNECTION, Moment.UPLOAD):
            self.rfile.read(length // 2 if fault.moment is Moment.UPLOAD else 0)
            self._reset(call)
            return
        body = self.rfile.read(length)
        if len(body) < length:  # the client went away in the middle of the body
            self.close_connection = True
            return
        self._serve(replace(call, body=body), fault)

    do_DELETE = do_HEAD = do_PATCH = do_POST = do_PUT = do_GET  # noqa: N815

    def _serve(self, call: Call, fault: Fault | None) -> None:
        try:
            if fault is not None and fault.refusal is not None:
                raise fault.refusal
            reply = self.server.answer(call)
        except Refusal as refusal:
            reply = refusal.reply(call)
        except Exception as problem:  # a bug of the double: reported to the client here, and to the test by close()
            self.server.crashes.append(problem)
            reply = Refusal(500, "DoubleCrashed", repr(problem)).reply(call)
        if fault is not None and fault.moment is Moment.REPLY:
            self._reset(call)
            return
        if fault is not None and fault.moment is Moment.CUT:
            self._send(reply, cut=True)
            self._reset(call)
            return
        self.server.recorded.append(record(call, reply.status))
        self._send(reply)

    def _send(self, reply: Reply, *, cut: bool = False) -> None:
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body[: len(reply.body) // 2] if cut else reply.body)

    def _refuse(self, host: str) -> None:
        self.server.refused.append(host)
        self.close_connection = True
        self._send(Refusal(403, "UnknownHost", f"{host} is not a host of the double").reply(Call("", "", "", {}, {})))

    def _reset(self, call: Call) -> None:
        self.server.recorded.append(record(call, None))
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        for stream in (self.rfile, self.wfile, self.connection):
            stream.close()

    def log_message(self, *_: object) -> None:
        """Print nothing: a test's output is its own."""
