"""The processes of a job on this machine: for each node so many, with the variables that Azure ML sets."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

JOB_VARIABLE = "AZURE_DOUBLE_JOB"
PATIENCE = 30.0
"""Seconds from the SIGTERM of a cancel to SIGKILL."""
SECONDS_FOR_PEERS = 5.0
"""The same where another process of the job failed."""
LOOKS = 2
"""In a row that must find nothing: one look may fall into the moment in which a process has no environment."""


@dataclass(frozen=True)
class Process:
    """One process of a job, before it starts."""

    log: Path
    variables: Mapping[str, str]


class Launch:
    """A job's processes, all started at once.

    Args:
        command: as a shell reads it.
        folder: where it starts.
        processes: each with its log and what it has beyond the common variables.
        common: environment of all; `JOB_VARIABLE` marks them, and whatever they start, as this job's.
    """

    def __init__(self, command: str, folder: Path, processes: list[Process], common: Mapping[str, str]) -> None:
        self._marker = f"{JOB_VARIABLE}={common[JOB_VARIABLE]}".encode()
        self._children: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._deadline: float | None = None
        with ExitStack() as logs:
            for process in processes:
                process.log.parent.mkdir(parents=True, exist_ok=True)
                log = logs.enter_context(process.log.open("ab"))
                self._children.append(
                    subprocess.Popen(
                        ["/bin/bash", "-c", command],
                        cwd=folder,
                        env={**common, **process.variables},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    def wait(self) -> tuple[int, int] | None:
        """Waits for all; the first that fails ends the others, as Azure does.

        Returns:
            Which failed first, and its exit code; None: all succeeded.
        """
        first: tuple[int, int] | None = None
        while True:
            codes = [child.poll() for child in self._children]
            first = first or next(((rank, code) for rank, code in enumerate(codes) if code), None)
            if None not in codes:
                break
            if first is not None:
                self.stop(seconds=SECONDS_FOR_PEERS)
            if self._deadline is not None and time.monotonic() > self._deadline:
                self.kill()
            with suppress(subprocess.TimeoutExpired):
                self._children[codes.index(None)].wait(0.05)
        self.kill()  # what the processes left behind in their sessions
        return first

    def stop(self, seconds: float = PATIENCE) -> None:
        """SIGTERM to all, SIGKILL to what is left after so long."""
        with self._lock:
            if self._deadline is not None:
                return
            self._deadline = time.monotonic() + seconds
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to everything of the job, in whatever session it is, as when its machine goes away."""
        looks = 0
        while looks < LOOKS:
            pids = self._alive()
            looks = 0 if pids else looks + 1
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def _alive(self) -> set[int]:
        """Our own children that have not ended, and all processes that carry the job's mark.

        One that has ended and waits to be asked has no environment; for a moment, one that begins a program has none
        either.
        """
        found = {child.pid for child in self._children if child.poll() is None}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and self._marker in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
        return found

    def _signal(self, number: int) -> None:
        for child in self._children:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, number)


def ranks(nodes: int, per_node: int, port: int) -> Iterator[dict[str, str]]:
    """What the PyTorch distribution tells each process; every node is this machine."""
    for rank in range(nodes * per_node):
        yield {
            "LOCAL_RANK": str(rank % per_node),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "NODE_RANK": str(rank // per_node),
            "RANK": str(rank),
            "WORLD_SIZE": str(nodes * per_node),
        }
