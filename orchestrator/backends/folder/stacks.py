"""Python stacks of live ranks: a signal makes each rank write them to a file of the run.

train_jobs/engine/runtime/diagnostics.py is the other half. A rank is signalled only if its process is the very one that
left its identity in rank-N.json: SIGUSR2 would kill any other.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.support.access import process_owner
from train_jobs.artifacts.host import boot_id, process_started, process_state

SETTLED_SECONDS = 0.3  # faulthandler writes no end mark: a dump is complete when it has not grown for this time
POLL_SECONDS = 0.02
STATES = {
    "T": "stopped by a signal (kill -CONT {pid} resumes it)",
    "t": "stopped by a debugger",
    "D": "waiting for a disk or a network file system",
    None: "no longer running",
}


@dataclass
class StackDump:
    """Stacks that a rank appends to its file after a signal."""

    path: Path
    pid: int
    begin: int
    """Size of the file before the signal."""
    size: int
    grown: float
    """Time of the last growth that was seen."""

    def settled(self) -> bool:
        """Return whether the dump is complete."""
        size = self.path.stat().st_size
        if size != self.size:
            self.size, self.grown = size, time.monotonic()
        return size > self.begin and time.monotonic() - self.grown > SETTLED_SECONDS


def ranks_stacks(run: RunFolder, ranks: Iterable[int], seconds: float = 5.0) -> dict[int, str]:
    """Return the Python stacks of all threads of each rank, innermost frame first; or one line with the reason.

    Args:
        run: its folder.
        ranks: ranks to signal.
        seconds: how long to wait for all of them together.
    """
    # all ranks are signalled before the first is awaited: stacks of one moment show which rank the others wait for
    found = {rank: _request(run.stacks, rank) for rank in ranks}
    dumps = [dump for dump in found.values() if isinstance(dump, StackDump)]
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and dumps:
        time.sleep(POLL_SECONDS)
        settled = [dump.settled() for dump in dumps]  # a list, not a generator: every dump must record its growth
        if all(settled):
            break
    return {rank: dump if isinstance(dump, str) else _text(dump, seconds) for rank, dump in found.items()}


def _request(folder: Path, rank: int) -> StackDump | str:
    """Signal a rank, or return why it cannot be signalled."""
    try:
        identity = json.loads((folder / f"rank-{rank}.json").read_text())
    except FileNotFoundError:
        return "not up yet: it is still loading its packages"
    pid = int(identity["pid"])
    gone = f"its process {pid} no longer exists, and no other has started yet"
    if identity["host"] != socket.gethostname():
        return f"it is process {pid} of {identity['host']}: run the command there"
    try:
        # A pidfd, because checks on a bare pid race: the rank may end between check and signal, and a new process with
        # its number would be killed by SIGUSR2. From here on, a signal reaches this process or none.
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return gone
    try:
        if identity["boot"] != boot_id() or identity["started"] != process_started(pid):
            return gone
        # a stopped process answers only once it continues, long after this command has given up
        if process_state(pid) in {"T", "t"}:
            return f"process {pid} is {_condition(pid)}"
        path = folder / f"rank-{rank}.txt"
        begin = path.stat().st_size
        signal.pidfd_send_signal(process, signal.SIGUSR2)
    except ProcessLookupError:
        return gone
    except PermissionError:
        return f"its process {pid} belongs to user {process_owner(pid)}, who alone can ask it for its stacks"
    finally:
        os.close(process)
    return StackDump(path, pid, begin, begin, time.monotonic())


def _text(dump: StackDump, seconds: float) -> str:
    """Return what a rank wrote, or that it did not answer."""
    with dump.path.open("rb") as stream:
        stream.seek(dump.begin)
        stacks = stream.read().decode(errors="replace").strip()
    return stacks or f"no answer within {seconds:g} s: process {dump.pid} is {_condition(dump.pid)}"


def _condition(pid: int) -> str:
    """Return what keeps a process from answering, by the kernel's letter for its state."""
    state = process_state(pid)
    return STATES.get(state, f"in state {state}").format(pid=pid)
