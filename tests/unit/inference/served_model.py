"""A prediction server in a process of its own, with raw and well-behaved clients."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

Reply = tuple[int, Any, Mapping[str, str]]
HEAD = b"POST /score HTTP/1.1\r\nHost: localhost\r\n"
GOOD = {"inputs": ["w1 w2", "w3"], "top": 2}


@dataclass
class Server:
    """A server that runs."""

    process: subprocess.Popen[str]
    port: int

    def connect(self) -> socket.socket:
        """Return a connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def get(self, path: str, **headers: str) -> Reply:
        """Return status, text and headers of the response to a GET request."""
        return self._request("GET", path, None, headers)

    def post(self, document: Any, **headers: str) -> Reply:
        """Return status, JSON (None: no body) and headers of the response to a request for predictions."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        status, text, found = self._request("POST", "/score", body, headers)
        return status, json.loads(text) if text else None, found

    def raw(self, data: bytes, *, seconds: float = 15.0) -> bytes:
        """Return all that the server sends until it closes the connection.

        Args:
            data: bytes of the request.
            seconds: time limit of the response.
        """
        with self.connect() as one:
            one.settimeout(seconds)
            with suppress(ConnectionError):
                one.sendall(data)
            return received(one)

    def rss(self) -> int:
        """Return its resident memory in bytes."""
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def metric(self, name: str) -> float:
        """Return the value of a metric, 0 if it has none."""
        text: str = self.get("/metrics")[1]
        return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name} ")), 0.0)

    def _request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            response = connection.getresponse()
            return response.status, response.read().decode(), dict(response.headers)
        finally:
            connection.close()


def received(one: socket.socket) -> bytes:
    """Return all that a connection receives until it is closed."""
    found = b""
    with suppress(ConnectionError):
        while data := one.recv(65536):
            found += data
    return found


@contextmanager
def served(model: Path, *arguments: str, before: str = "", **variables: str) -> Iterator[Server]:
    """Serve a model, and stop it at the end.

    Args:
        model: Hugging Face folder.
        arguments: of the command line.
        before: statements that the process runs first, such as other limits.
        variables: environment variables.
    """
    start = "from train_jobs.tools.serve import main; raise SystemExit(main())"
    command = [sys.executable, "-c", f"{before}\n{start}", "--model", str(model), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            yield Server(process, json.loads(line)["port"])
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=60)
            except (subprocess.TimeoutExpired, ValueError):
                process.kill()


@contextmanager
def attacked(server: Server, kind: str, number: int) -> Iterator[list[int]]:
    """Attack a server from another process; at the end the yielded list contains the number of connections.

    Args:
        server: the server.
        kind: slow or garbage.
        number: slow connections at a time, or requests of garbage a second.
    """
    counted: list[int] = []
    command = [sys.executable, __file__, kind, str(server.port), str(number)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield counted
        finally:
            counted.append(int(process.communicate("over")[0]))


def slow_clients(port: int, number: int, over: threading.Event) -> int:
    """Hold connections that send a byte once a second, half of them of headers, half of a body; return their count.

    Args:
        port: of the server.
        number: connections at a time; those that the server closes are opened again.
        over: set at the end.
    """
    held: list[socket.socket] = []
    opened = 0
    while not over.is_set():
        began = time.monotonic()
        while len(held) < number and not over.is_set():
            opened += 1
            held.append(_connected(port))
            with suppress(OSError):
                held[-1].send(HEAD + (b"Content-Length: 1000000\r\n\r\n" if opened % 2 else b"X-Slow: "))
        for one in held[:]:
            try:
                one.send(b"x")
            except OSError:
                held.remove(one)
                one.close()
        over.wait(max(0.0, 1.0 - (time.monotonic() - began)))
    for one in held:
        one.close()
    return opened


def garbage_client(port: int, rate: int, over: threading.Event) -> int:
    """Send garbage without waiting for responses; return the number of connections.

    Args:
        port: of the server.
        rate: connections a second.
        over: set at the end.
    """
    random, began = Random(2), time.monotonic()
    held: list[socket.socket] = []
    sent = 0
    while not over.is_set():
        held.append(_connected(port))
        with suppress(OSError):
            held[-1].send(garbage(random))
        if len(held) > rate:
            held.pop(0).close()
        sent += 1
        over.wait(max(0.0, began + sent / rate - time.monotonic()))
    for one in held:
        one.close()
    return sent


def garbage(random: Random) -> bytes:
    """Return bytes that are not, or barely, a request."""
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: random.randbytes(random.randint(1, 4000)),
        lambda: HEAD + b"Content-Length: -1\r\n\r\n" + random.randbytes(100),
        lambda: HEAD + b"Content-Length: 100\r\n\r\n" + random.randbytes(100),
        lambda: HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + random.randbytes(50),
        lambda: b"\x16\x03\x01" + random.randbytes(200),  # TLS
        lambda: b"GET /" + bytes(random.choices(range(33, 255), k=50)) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        lambda: b"CONNECT x:1 HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        lambda: HEAD + b"A: b\r\n" * 3000 + b"\r\n",
        lambda: HEAD + b'Content-Length: 20\r\n\r\n{"inputs": [["w1"]]}',
    )
    return random.choice(kinds)()


def _connected(port: int) -> socket.socket:
    one = socket.create_connection(("127.0.0.1", port), timeout=30)
    one.setblocking(False)
    return one


def _attack(kind: str, port: int, number: int) -> int:
    over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    return {"slow": slow_clients, "garbage": garbage_client}[kind](port, number, over)


if __name__ == "__main__":
    print(_attack(sys.argv[1], *map(int, sys.argv[2:])))
