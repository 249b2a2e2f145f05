"""The processes of a job on this machine: some for each node, with the variables that Azure ML sets."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

JOB_VARIABLE = "AZURE_DOUBLE_JOB"
GRACE_SECONDS = 30.0
"""From the SIGTERM of a cancel to SIGKILL."""
PEER_GRACE_SECONDS = 5.0
"""The same where another process of the job failed."""
EMPTY_SCANS = 2
"""Looks in a row that must find no process: while a process begins a program it has no environment."""


class Launch:
    """The processes of a job, all started together.

    Args:
        command: shell command.
        folder: where it starts.
        processes: log of each process -> its own variables.
        common: environment of all; `JOB_VARIABLE` marks them and their descendants as this job's.
    """

    def __init__(
        self, command: str, folder: Path, processes: Mapping[Path, Mapping[str, str]], common: Mapping[str, str]
    ) -> None:
        # descendants inherit the environment, even those that leave the session: `kill` finds them all by this mark
        self._marker = f"{JOB_VARIABLE}={common[JOB_VARIABLE]}".encode()
        self._children: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._deadline: float | None = None
        with ExitStack() as logs:
            for path, variables in processes.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                child = subprocess.Popen(
                    ["/bin/bash", "-c", command],
                    cwd=folder,
                    env={**common, **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=logs.enter_context(path.open("ab")),
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self._children.append(child)

    def wait(self) -> tuple[int, int] | None:
        """Wait for all processes; the first that fails ends the others, as on Azure.

        Returns:
            Rank and exit code of the first that failed; None: all succeeded.
        """
        first: tuple[int, int] | None = None
        while True:
            codes = [child.poll() for child in self._children]
            first = first or next(((rank, code) for rank, code in enumerate(codes) if code), None)
            if None not in codes:
                break
            if first is not None:
                self.stop(PEER_GRACE_SECONDS)
            if self._deadline is not None and time.monotonic() > self._deadline:
                self.kill()
            with suppress(subprocess.TimeoutExpired):
                self._children[codes.index(None)].wait(0.05)
        self.kill()  # descendants that outlived the processes
        return first

    def stop(self, seconds: float = GRACE_SECONDS) -> None:
        """Send SIGTERM to all, and SIGKILL after the grace period."""
        with self._lock:
            if self._deadline is not None:
                return
            self._deadline = time.monotonic() + seconds
        for child in self._children:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to every process of the job, in whatever session, as when its machine goes away."""
        # Repeated, because a process may fork between the scan and its own death, and a scan may miss one that is just
        # starting a program.
        empty_scans = 0
        while empty_scans < EMPTY_SCANS:
            pids = self._alive()
            empty_scans = 0 if pids else empty_scans + 1
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def _alive(self) -> set[int]:
        """Return our own children that have not ended, and all processes that carry the job's mark.

        A zombie has no environment; for a moment, a process that begins a program has none either.
        """
        alive = {child.pid for child in self._children if child.poll() is None}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and self._marker in (entry / "environ").read_bytes().split(b"\0"):
                    alive.add(int(entry.name))
        return alive
