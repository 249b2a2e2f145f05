"""Real MLflow servers as processes, and a proxy in front of one that fails as networks and gateways do."""

from __future__ import annotations

import http.client
import os
import pwd
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from mlflow.tracking import MlflowClient

from train_jobs.artifacts.tracking.mlflow_store import prepare

SERVER_PYTHON = "ORCHESTRATOR_TEST_MLFLOW_PYTHON"  # an interpreter with MLflow and packages that only servers need
START_SECONDS = 120.0
PASSED_ON = ("Authorization", "Content-Type", "Accept", "Range")


def server_python(*packages: str) -> str:
    """Return the interpreter of servers; skip the test if it lacks one of the packages."""
    python = os.environ.get(SERVER_PYTHON, sys.executable)
    command = [python, "-c", f"import {', '.join(('mlflow.version', *packages))}"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"{python} lacks {', '.join(packages)}; name another interpreter with {SERVER_PYTHON}")
    return python


class MlflowServer:
    """`mlflow server` with artifacts that pass through it; restarts at the same address.

    Args:
        folder: its folder, with the log and the artifacts.
        backend: URI of its database. None: SQLite.
        words: further arguments.
        variables: further environment variables.
        python: interpreter.
    """

    def __init__(
        self,
        folder: Path,
        *,
        backend: str | None = None,
        words: tuple[str, ...] = (),
        variables: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        if backend is None:
            prepare(folder / "server.db")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        store = ["--backend-store-uri", backend or f"sqlite:///{folder / 'server.db'}"]
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        artifacts = ["--artifacts-destination", str(folder / "artifacts")]
        self._command = [python, "-m", "mlflow", "server", *store, *place, *artifacts, *words]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        self._environ = {**kept, **quiet, **(variables or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            AssertionError: it ended, or did not answer in time.
        """
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self.folder, env=self._environ, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < until, (self.folder / "server.log").read_text()
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.uri}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def kill(self) -> None:
        """Kill it with all its processes, as a lost machine."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def client(self) -> MlflowClient:
        """Return a client of it."""
        return MlflowClient(tracking_uri=self.uri)


@contextmanager
def running(server: MlflowServer) -> Iterator[MlflowServer]:
    """Run a server for as long as the context is open."""
    try:
        server.start()
        yield server
    finally:
        server.kill()


def everything(uri: str, run_id: str, scratch: Path) -> dict[str, Any]:
    """Return all that a server or store has of a run, with the content of its artifacts, but no id and no address."""
    client = MlflowClient(tracking_uri=uri)
    found = client.get_run(run_id)
    info = {key: getattr(found.info, key) for key in ("run_name", "status", "start_time", "end_time")}
    histories = {key: client.get_metric_history(run_id, key) for key in found.data.metrics}
    scratch.mkdir()
    place = Path(client.download_artifacts(run_id, "", str(scratch)))
    return {
        "info": info,
        "params": found.data.params,
        "tags": found.data.tags,
        "metrics": {
            key: sorted((one.step, one.timestamp, one.value) for one in kept) for key, kept in histories.items()
        },
        "inputs": sorted((one.to_dictionary() for one in found.inputs.dataset_inputs), key=str),
        "files": {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()},
    }


def active_runs(uri: str) -> list[Any]:
    """Return the runs of all experiments of a server."""
    client = MlflowClient(tracking_uri=uri)
    return list(client.search_runs([one.experiment_id for one in client.search_experiments()], max_results=5000))


Fault = Callable[["Passing"], None]


class FaultProxy(ThreadingHTTPServer):
    """A proxy of a server whose faults a test chooses.

    Args:
        server: address of the server.
        choose: returns the fault of a request, given its method, its path and its number. None: passed on.
    """

    daemon_threads = True

    def __init__(self, server: str, choose: Callable[[str, str, int], Fault | None]) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.backend, self.choose = server.removeprefix("http://"), choose
        self.uri = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[tuple[str, str]] = []
        self.faults = 0
        self.lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing of a connection that a client closed."""


@contextmanager
def proxied(server: str, choose: Callable[[str, str, int], Fault | None]) -> Iterator[FaultProxy]:
    """Run a proxy for as long as the context is open."""
    with FaultProxy(server, choose) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.shutdown()


class Passing(BaseHTTPRequestHandler):
    """One request to the proxy."""

    server: FaultProxy

    def handle_one(self) -> None:
        """Pass a request on, or fail as chosen."""
        path = self.path.partition("?")[0]
        with self.server.lock:
            number = len(self.server.requests)
            self.server.requests.append((self.command, path))
            fault = self.server.choose(self.command, path, number)
            self.server.faults += fault is not None
        if fault is None:
            self.reply(*self.pass_on())
        else:
            fault(self)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one  # noqa: N815

    def pass_on(self) -> tuple[int, bytes]:
        """Return the status and the body of the server's answer."""
        body = self.body()
        connection = http.client.HTTPConnection(self.server.backend, timeout=60)
        try:
            headers = {name: self.headers[name] for name in PASSED_ON if self.headers[name]}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 502, b"no answer from the server"
        finally:
            connection.close()

    def body(self) -> bytes:
        """Read the whole body of the request."""
        if self.headers["Transfer-Encoding"] != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"] or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def reply(self, status: int, body: bytes) -> None:
        """Answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def too_many(request: Passing) -> None:
    """Answer 429 without a Retry-After."""
    request.body()
    request.reply(429, b"slow down")


def too_large(request: Passing) -> None:
    """Answer 413 without passing the request on."""
    request.body()
    request.reply(413, b"too large")


def internal(request: Passing) -> None:
    """Answer 500 without passing the request on."""
    request.body()
    request.reply(500, b"gateway")


def lost_answer(request: Passing) -> None:
    """Pass the request on and answer 500: the server has handled it."""
    request.pass_on()
    request.reply(500, b"gateway")


def cut(request: Passing) -> None:
    """Pass the request on, and close the connection in the middle of the answer."""
    status, body = request.pass_on()
    request.send_response(status)
    request.send_header("Content-Length", str(len(body) + 1))
    request.end_headers()
    request.wfile.write(body[: len(body) // 2])


def reset(request: Passing) -> None:
    """Reset the connection."""
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.connection.close()


def delayed(seconds: float) -> Fault:
    """Return a fault that passes a request on after some time."""

    def fault(request: Passing) -> None:
        time.sleep(seconds)
        request.reply(*request.pass_on())

    return fault


FAULTS: tuple[Fault, ...] = (too_many, internal, lost_answer, cut, reset, delayed(0.2))


def at_random(seed: int, share: float) -> Callable[[str, str, int], Fault | None]:
    """Return a choice that lets a share of all requests fail, each in a random way."""
    draw = random.Random(seed)
    return lambda method, path, number: draw.choice(FAULTS) if draw.random() < share else None


@contextmanager
def postgres() -> Iterator[str]:
    """Run Debian's PostgreSQL on a socket of its own; yield the URI of its database. Skip the test without it."""
    places = [Path(found).parent for found in (shutil.which("initdb"),) if found]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if not places:
        pytest.skip("no PostgreSQL: apt-get install postgresql")
    user: dict[str, Any] = {}
    # not pytest's folder, which only its owner can enter: PostgreSQL refuses to run as root
    with tempfile.TemporaryDirectory(prefix="mlflow-pg-") as folder:
        if os.getuid() == 0:
            account = pwd.getpwnam("postgres")
            user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            os.chown(folder, account.pw_uid, account.pw_gid)

        def command(name: str, *words: str) -> None:
            done = subprocess.run([str(places[0] / name), "-D", f"{folder}/data", *words], cwd=folder, **quiet, **user)
            assert done.returncode == 0, Path(folder, "log").read_text()

        with Path(folder, "log").open("wb") as log:
            quiet: dict[str, Any] = {"stdout": log, "stderr": log, "check": False}
            command("initdb", "-U", "mlflow", "-A", "trust", "--no-sync")
            command("pg_ctl", "-w", "-o", f"-k {folder} -c listen_addresses='' -c fsync=off", "start")
            try:
                yield f"postgresql+psycopg2://mlflow@/postgres?host={folder}"
            finally:
                command("pg_ctl", "-w", "-m", "immediate", "stop")
