"""Dask clusters that run a preparation: one that exists, or one that the job starts on its own nodes and ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from distributed.security import Security

from train_jobs.artifacts.drafts import draft, scratch_folder
from train_jobs.artifacts.files import read_object
from train_jobs.config.errors import InternalError, PeerError, SpecError
from train_jobs.config.prepare import ExecutorConfig
from train_jobs.corpus.executors import dask_process
from train_jobs.corpus.executors.node import Node, text_mismatch_error
from train_jobs.engine.runtime.children import start_child

MODULE = "train_jobs.corpus.executors.dask_process"
MEETING = "dask.json"  # in the folder of the records
MOST_STARTS, STARTS_SECONDS = 5, 60.0  # a process that ends as often within this time cannot run here
END_SECONDS = 10.0
QUIET = {  # environment of the processes, below the user's own
    "DASK_LOGGING__DISTRIBUTED": "error",
    # Workers that end with their parent leave semaphores to the resource tracker, which reports each as a leak.
    "PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker",
}
POLL_SECONDS = 0.2


class Cluster(ABC):
    """A scheduler that a client can connect to."""

    first_seconds: float
    """Seconds to wait for the scheduler at the first connection."""
    compares_text: bool
    """Whether its nodes have compared the text before they run tasks; else the workers must."""

    def start(self) -> None:  # noqa: B027 - a cluster of others runs already
        """Start the processes of the cluster that belong to this job."""

    @abstractmethod
    def find(self) -> tuple[str, Security | None] | None:
        """Return the address of the scheduler and the security of the connection; None while there is no scheduler.

        Processes of this cluster that have died are started again.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return where the scheduler is, for messages."""

    def close(self) -> None:  # noqa: B027 - a cluster of others continues
        """End the processes of the cluster that belong to this job."""


class ExistingCluster(Cluster):
    """A cluster that this job neither starts nor ends.

    Args:
        config: address or file of its scheduler, and TLS.
    """

    first_seconds = 60.0
    compares_text = False

    def __init__(self, config: ExecutorConfig) -> None:
        self._config = config

    def find(self) -> tuple[str, Security | None] | None:
        """Return the address from the configuration or the scheduler file, see `Cluster.find`."""
        config = self._config
        address = config.scheduler
        if config.scheduler_file is not None:
            # Read every time: a scheduler that was started again has another address.
            address = str((read_object(config.scheduler_file) or {}).get("address", "")) or None
        if address is None:
            return None
        files = {"ca_file": config.tls_ca_file, "client_cert": config.tls_cert, "client_key": config.tls_key}
        tls = {f"tls_{name}": str(path) for name, path in files.items() if path is not None}
        # None: the user's own Dask configuration decides.
        return address, Security(require_encryption=True, **tls) if tls else None

    def describe(self) -> str:
        """Return the address or the scheduler file."""
        file = self._config.scheduler_file
        missing = file is not None and not file.exists()
        return self._config.scheduler or f"the scheduler in {file}{', which does not exist' if missing else ''}"


class Child:
    """A process of the cluster that is started again when it dies.

    Args:
        what: its role in `dask_process`.
        words: arguments of that role.
        started: called with each started process.
    """

    def __init__(
        self, what: str, *words: str, started: Callable[[subprocess.Popen[bytes]], None] = lambda process: None
    ) -> None:
        self._what, self._words, self._started = what, words, started
        self._starts: list[float] = []
        self._scratch = ExitStack()
        self._start()

    def keep(self) -> int | None:
        """Return None if the process lives; otherwise start it again and return the exit code of the dead one.

        Raises:
            InternalError: it ended several times within a minute.
        """
        code = self.process.poll()
        if code is None:
            return None
        self.end()
        recent = [moment for moment in self._starts if moment > time.monotonic() - STARTS_SECONDS]
        if len(recent) >= MOST_STARTS:
            raise InternalError(
                f"the {self._what} of the Dask cluster ended {len(recent)} times within a minute",
                facts={"exit code": code},
                fix="read its messages in the log of this process",
            )
        self._start()
        return code

    def end(self) -> None:
        """End the process."""
        self.process.terminate()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._scratch.close()

    def _start(self) -> None:
        self._starts.append(time.monotonic())
        scratch = self._scratch.enter_context(scratch_folder("prepare-dask"))
        words = (self._what, str(os.getpid()), str(scratch), *self._words)
        self.process = start_child(MODULE, *words, environ=QUIET)
        self._started(self.process)


def _own_address(host: str) -> str:
    """Return the IP address of MASTER_ADDR, at which the scheduler of this node will listen.

    Raises:
        SpecError: it is not an address of this machine.
    """
    fix = "set MASTER_ADDR to a name or address of the first node that all nodes can reach"
    try:
        address = socket.gethostbyname(host)
    except (OSError, UnicodeError) as problem:
        raise SpecError(f"cannot resolve MASTER_ADDR '{host}'", facts={"why": str(problem)}, fix=fix) from None
    try:
        with socket.socket() as probe:
            probe.bind((address, 0))
    except OSError as problem:
        raise SpecError(
            f"MASTER_ADDR '{host}' is not an address of the first node",
            facts={"address": address, "why": problem.strerror},
            fix=fix,
        ) from None
    return address


class OwnCluster(Cluster):
    """A cluster of this job: this node runs the scheduler, and every node runs workers; TLS with its own certificates.

    Args:
        folder: folder of the records, on the disk that all nodes share.
        node: this process; it leads.
        key: key of the store.
        workers: number of workers of this node.
        dashboard: HOST:PORT of the dashboard. None: no dashboard.
    """

    first_seconds = dask_process.PATIENCE_SECONDS
    compares_text = True  # each node hashes the text for the key of the store

    def __init__(self, folder: Path, node: Node, key: str, workers: int, dashboard: str | None = None) -> None:
        # Mutual TLS even on one machine: a process that reaches a Dask scheduler can run code as this user.
        made = Security.temporary()
        self._tls = {"ca": made.tls_ca_file, "cert": made.tls_client_cert, "key": made.tls_client_key}
        self._meeting, self._key = folder / MEETING, key
        self._host = "127.0.0.1" if node.size == 1 else _own_address(node.address)
        self._dashboard, self._count = [dashboard] if dashboard else [], workers
        self._workers: Child | None = None
        self._scheduler: Child | None = None

    def start(self) -> None:
        """Start scheduler and workers."""
        self._meeting.unlink(missing_ok=True)  # of an earlier start
        self._workers = local_workers(self._meeting, self._key, self._count)  # they start while the scheduler does
        self._scheduler = Child("scheduler", self._host, *self._dashboard, started=self._meet)

    def find(self) -> tuple[str, Security | None] | None:
        """Return the address of the own scheduler, see `Cluster.find`."""
        assert self._scheduler is not None, "start has started them"
        assert self._workers is not None, "start has started them"
        self._scheduler.keep()
        self._workers.keep()
        return self._address, dask_process.security_of(self._tls)

    @property
    def scheduler_pid(self) -> int:
        """Process id of the scheduler."""
        assert self._scheduler is not None, "start has started it"
        return self._scheduler.process.pid

    def describe(self) -> str:
        """Return the address of the scheduler."""
        return self._address

    def close(self) -> None:
        """End scheduler and workers, and delete the meeting file."""
        self._meeting.unlink(missing_ok=True)
        if self._workers is not None:
            self._workers.end()
        if self._scheduler is not None:
            self._scheduler.end()

    def _meet(self, process: subprocess.Popen[bytes]) -> None:
        """Send the certificates to a new scheduler, receive its address and write the meeting file."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(self._tls).encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            raise InternalError(f"the scheduler of the Dask cluster ended with exit code {code} at its start")
        self._address = str(json.loads(line)["address"])
        self._write_meeting()

    def _write_meeting(self) -> None:
        """Write the address and the certificates to a file that only this user can read."""
        with draft(self._meeting) as temporary:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as stream:
                json.dump({"key": self._key, "address": self._address, "tls": self._tls}, stream)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(self._meeting)


def local_workers(meeting: Path, key: str, count: int) -> Child:
    """Start the workers of this node in a child process that ends with this one.

    Args:
        meeting: meeting file, written by the node that leads.
        key: key of the store.
        count: number of workers.
    """
    return Child("workers", str(meeting), key, str(count))


def serve(folder: Path, node: Node, key: str, workers: int, complete: Callable[[], bool]) -> None:
    """Run the workers of a node that does not lead until the store is complete.

    Args:
        folder: folder of the records, on the disk that all nodes share.
        node: this process.
        key: key of the store.
        workers: number of workers.
        complete: returns whether the store is complete.

    Raises:
        PeerError: there was no scheduler for ten minutes.
        DataError: the node that leads reads another text.
    """
    local = local_workers(folder / MEETING, key, workers)
    try:
        while not complete():
            code = local.keep()
            if code == dask_process.OTHER_TEXT:
                raise text_mismatch_error(where=f"rank 0 and rank {node.rank}")
            if code == dask_process.ALONE:
                raise PeerError(
                    f"rank 0 has had no scheduler for {dask_process.PATIENCE_SECONDS / 60:.0f} minutes",
                    facts={"where": folder},
                    fix="read its log, then start all nodes again; they resume",
                )
            time.sleep(POLL_SECONDS)
    finally:
        local.end()
