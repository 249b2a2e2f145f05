"""A proxy on loopback that ends TLS itself: the client keeps the real host names, and reaches no other host."""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from urllib.parse import urlsplit

from orchestrator.testing.proxy.faults import Fault, Faults, Moment
from orchestrator.testing.proxy.messages import Call, Refusal, Reply
from orchestrator.testing.proxy.recording import Recorder

Answer = Callable[[Call], Reply]
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST


class Proxy(ThreadingMixIn, TCPServer):
    """Serves CONNECT to the known hosts, and plain requests to them and to itself.

    Args:
        answer: what the hosts say.
        knows: whether a host is one of them.
        context: TLS in their names.
        faults: what goes wrong.
        recorder: told every call.
    """

    allow_reuse_address = True
    request_queue_size = 64

    def __init__(
        self,
        answer: Answer,
        knows: Callable[[str], bool],
        context: ssl.SSLContext,
        faults: Faults,
        recorder: Recorder,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.knows = knows
        self.context = context
        self.faults = faults
        self.recorder = recorder
        self.refused: list[str] = []
        self.crashes: list[BaseException] = []
        self._open: set[socket.socket] = set()
        self._serving: list[threading.Thread] = []
        self._closing = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="azure-double", daemon=True)

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`."""
        host, port = self.socket.getsockname()[:2]
        return f"http://{host}:{port}"

    def start(self) -> None:
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for each connection; a process that forgets to close the double ends all the same."""
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        with self._lock:
            self._serving = [*(other for other in self._serving if other.is_alive()), thread]
            thread.start()

    def close(self) -> None:
        """Ends every connection; returns when no thread is left."""
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

    def track(self, connection: socket.socket, *, was: socket.socket | None = None) -> None:
        """A connection to be ended when the proxy closes."""
        with self._lock:
            if was is not None:
                self._open.discard(was)
            self._open.add(connection)
            late = self._closing
        if late:
            _end(connection)

    def forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no error of the server's; anything else would be lost without a word."""
        problem = sys.exc_info()[1]
        if problem is not None and not isinstance(problem, OSError | ssl.SSLError | ValueError):
            self.crashes.append(problem)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"
    tunnel: str | None = None

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self.server.track(self.request)

    def finish(self) -> None:
        self.server.forget(self.request)
        with suppress(OSError, ValueError):
            super().finish()
        with suppress(OSError):
            self.request.close()

    def do_CONNECT(self) -> None:
        host = self.path.rpartition(":")[0].lower()
        if not self.server.knows(host):
            self._refuse(host)
            return
        self.send_response(200, "Connection established")
        self.end_headers()
        self.tunnel = host
        was = self.request
        self.request = self.server.context.wrap_socket(was, server_side=True)
        self.server.track(self.request, was=was)
        self.setup()
        self.close_connection = False

    def do_GET(self) -> None:
        target = urlsplit(self.path)
        host = self.tunnel or target.hostname or "127.0.0.1"
        if not self.server.knows(host):
            self._refuse(host)
            return
        path = target._replace(scheme="", netloc="").geturl()
        named = {name.lower(): value for name, value in self.headers.items()}
        call = Call.of(self.command, host, path, named, b"")
        length = int(named.get("content-length", 0))
        fault = self.server.faults.take(call)
        if fault is not None and fault.moment in (Moment.CONNECTION, Moment.UPLOAD):
            self.rfile.read(length // 2 if fault.moment is Moment.UPLOAD else 0)
            self._reset(call)
            return
        body = self.rfile.read(length)
        if len(body) < length:  # the client went away: half a body is none
            self.close_connection = True
            return
        self._serve(Call.of(self.command, host, path, named, body), fault)

    do_DELETE = do_HEAD = do_PATCH = do_POST = do_PUT = do_GET  # noqa: N815

    def _serve(self, call: Call, fault: Fault | None) -> None:
        try:
            if fault is not None and fault.refusal is not None:
                raise fault.refusal
            reply = self.server.answer(call)
        except Refusal as refusal:
            reply = refusal.reply(call)
        except Exception as problem:  # a mistake of the double's: the client is told, and so is who closes the double
            self.server.crashes.append(problem)
            reply = Refusal(500, "DoubleCrashed", repr(problem)).reply(call)
        if fault is not None and fault.moment is Moment.REPLY:
            self._reset(call)
            return
        self.server.recorder.add(call, reply.status)
        self._send(reply)

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        headers = {"Content-Length": str(len(reply.body)), **reply.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def _refuse(self, host: str) -> None:
        self.server.refused.append(host)
        self.close_connection = True
        self._send(Refusal(403, "UnknownHost", f"{host} is none of the double's hosts").reply(Call("", "", "", {}, {})))

    def _reset(self, call: Call) -> None:
        self.server.recorder.add(call, None)
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.rfile.close()
        self.wfile.close()
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """A test's output is its own."""
