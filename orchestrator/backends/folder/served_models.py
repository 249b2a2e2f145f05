"""Models of runs behind a small server on the loopback interface of this machine."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from orchestrator.backends.capabilities import check_endpoint, require_model
from orchestrator.runs.status import RunStatus
from orchestrator.runs.supervised_folder import last_line
from orchestrator.support.access import process_owner
from orchestrator.support.errors import ConflictError, NotFoundError, ServiceError
from orchestrator.support.home import compile_variables
from orchestrator.support.moved_home import FolderIdentity
from train_jobs.artifacts.files import hold, is_held, write_text
from train_jobs.artifacts.host import boot_id, process_started
from train_jobs.artifacts.mounts import reporting_write_errors
from train_jobs.config.errors import in_shell

ENDPOINTS = "endpoints"  # below the home folder
STARTING = ".starting"  # suffix of the record of a server that loads
START_SECONDS = 1800.0  # to load a model, which can take minutes from a slow disk
POLL_SECONDS = 1.0


def deploy(home: Path, status: RunStatus, endpoint: str, key: Path | None = None) -> dict[str, Any]:
    """Start a server on the loopback interface, at any free port, and wait until it answers.

    Args:
        home: the user's orchestrator folder, which records the server.
        status: of the run whose model is served.
        endpoint: name of the endpoint.
        key: public key that must have signed the model. None: a signature is not required.

    Returns:
        {endpoint, uri, run}.

    Raises:
        ConflictError: the run has not completed, or the endpoint has a server, or another command changes it.
        DataError: the signature is missing or invalid.
        SpecError: the key cannot be read, or model-signing is not installed.
        UsageError: the endpoint's name is invalid.
        NotFoundError: the run's model is missing.
        ServiceError: it did not start.
        StorageError: the server cannot be recorded, and is ended.
    """
    check_endpoint(endpoint)
    require_model(status)
    if status.model is None:
        raise NotFoundError(f"run {status.name} has no model on this machine", fix=f"orchestrator status {status.name}")
    if key is not None:  # the server checks it again, before it loads the weights
        from train_jobs.artifacts.model_trust import require_trusted  # slow to import, for every command
        from train_jobs.config.trust import TrustConfig

        require_trusted(Path(status.model), TrustConfig(require_signature=key))
    path = home / ENDPOINTS / f"{endpoint}.json"
    with _changing(path, "start"):
        if (known := _running_server(path)) is not None:
            raise ConflictError(
                f"cannot start endpoint {endpoint}: it already has a server",
                facts={"where": known["uri"]},
                fix=f"orchestrator model delete {endpoint} -y",
            )
        words = ["--model", status.model, *(["--require-signature", str(key)] if key is not None else [])]
        with _protecting(path, status.model), _start_server(words, endpoint, path.with_suffix(".log")) as (pid, port):
            found = {"endpoint": endpoint, "uri": f"http://127.0.0.1:{port}/score", "run": status.name}
            place = FolderIdentity.of(path.parent).model_dump()
            process = {"pid": pid, "started": process_started(pid), "boot": boot_id()}
            write_text(path, json.dumps({**found, **process, "folder": place, "model": status.model}, indent=1))
    return found


def served_models(home: Path) -> dict[str, str]:
    """Return endpoint -> folder of its model, of the servers that run or load."""
    found = {}
    for path in (home / ENDPOINTS).glob(f"*{STARTING}"):  # first: it is deleted after the server is recorded
        with suppress(FileNotFoundError, ValueError):  # the command is over, or was killed as it wrote the file
            if is_held(path.with_suffix(".lock")):
                found[path.stem] = str(json.loads(path.read_text(encoding="utf-8"))["model"])
    records = {path.stem: _running_server(path) for path in (home / ENDPOINTS).glob("*.json")}
    return found | {name: known["model"] for name, known in records.items() if known is not None and "model" in known}


def forget_killed(home: Path) -> None:
    """Delete the records of servers that loaded as their command was killed: they protect nothing, but name a run."""
    for path in (home / ENDPOINTS).glob(f"*{STARTING}"):
        if not is_held(path.with_suffix(".lock")):
            path.unlink(missing_ok=True)


@contextmanager
def _protecting(path: Path, model: str) -> Iterator[None]:
    """Record the model of a server that loads, which can take minutes, so that no command deletes the model meanwhile.

    The record counts only while the lock of the endpoint is held: that of a killed command protects nothing.
    """
    starting = path.with_suffix(STARTING)
    write_text(starting, json.dumps({"model": model}))
    try:
        yield
    finally:
        starting.unlink(missing_ok=True)


@contextmanager
def _changing(path: Path, verb: str) -> Iterator[None]:
    """Let one command at a time start or stop a server, which takes a minute for a large model.

    Raises:
        ConflictError: another command does.
        StorageError: the server cannot be recorded.
    """
    message = f"cannot {verb} endpoint {path.stem}"
    busy = ConflictError(
        f"cannot {verb} endpoint {path.stem}: another command changes it", fix="wait for the other command"
    )
    with reporting_write_errors(message, path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with hold(path.with_suffix(".lock"), seconds=0, busy=busy, remove=True):
            yield


@contextmanager
def _start_server(words: list[str], endpoint: str, log: Path) -> Iterator[tuple[int, int]]:
    """Start a server that outlives this command; yield its process id and its port once it listens.

    An exception before the end of the block, such as Ctrl-C, ends the server: without a record, no command finds it.

    Args:
        words: options of `train_jobs.tools.serve`.
        endpoint: name of the endpoint.
        log: file for its messages.

    Raises:
        ServiceError: it did not start.
    """
    process = None
    try:
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "train_jobs.tools.serve", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **compile_variables(log.parent.parent, os.environ)},
                start_new_session=True,
            )
        first = _first_line(process)
        if not first:
            raise ServiceError(
                f"cannot start endpoint {endpoint}: its server did not start",
                facts={"exit code": _end(process), "reason": _reason(log)},
                fix=f"less {in_shell(log)}",
            )
        yield process.pid, int(json.loads(first)["port"])
    except BaseException:
        if process is not None:
            _end(process)
        raise
    process.returncode = 0  # it outlives this command: without a code, Popen warns of a child that still runs


def _end(process: subprocess.Popen[bytes]) -> int:
    """Kill a server and what it started, and return its exit code: its own if it has finished."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    """Return the port that a server prints once it listens; empty if it ends, or exceeds the limit, before that."""
    assert process.stdout is not None
    limit = time.monotonic() + START_SECONDS
    with process.stdout as stream:
        while not select.select([stream], [], [], min(POLL_SECONDS, START_SECONDS))[0]:
            # a process that the server started may hold the pipe open after its end
            if process.poll() is not None or time.monotonic() > limit:
                return b""
        return stream.readline()


def _reason(log: Path) -> str:
    """Return the message of the error that ended a server, without its facts; else the last line of its log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.startswith("error[")), last_line(log))


def delete(home: Path, endpoint: str) -> None:
    """Stop the server of an endpoint.

    Raises:
        ConflictError: its server is another user's, or another command changes it.
        NotFoundError: the endpoint does not exist.
        StorageError: its record cannot be deleted.
        UsageError: its name is invalid.
    """
    check_endpoint(endpoint)
    path = home / ENDPOINTS / f"{endpoint}.json"
    if not path.is_file():
        raise NotFoundError(f"endpoint {endpoint} does not exist", fix="orchestrator model deploy RUN --endpoint NAME")
    with _changing(path, "stop"):
        if (known := _running_server(path)) is not None:
            try:
                os.kill(known["pid"], signal.SIGTERM)
            except PermissionError:
                owner = process_owner(known["pid"])
                raise ConflictError(
                    f"cannot stop endpoint {endpoint}: its server belongs to user {owner}", fix=f"ask {owner} to do it"
                ) from None
        path.unlink(missing_ok=True)


def _running_server(path: Path) -> dict[str, Any] | None:
    """Return the record of a server if it still runs.

    A process id alone is not enough: after a reboot, or once ids wrap around, it may belong to any other process, which
    `delete` would kill. Boot and start time make it unique. In a copy of a home folder, the record names the server of
    the original.
    """
    try:
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    same = known.get("boot") == boot_id() and known.get("started") == process_started(known["pid"])
    if not same or known.get("started") is None:
        return None
    place = known.get("folder")  # missing in a record of an earlier version
    return known if place is None or FolderIdentity.model_validate(place).matches(path.parent) else None
