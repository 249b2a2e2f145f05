"""Asks the live ranks of a run where they stand: a signal, upon which each writes its stacks to a file of the run.

train_jobs/engine/runtime/rank_stacks.py is the other half. A rank is signalled only if it is the very process that said
so.
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
from train_jobs.artifacts.host import boot_id, process_started, process_state

ANSWER_SECONDS = 5.0
SETTLED_SECONDS = 0.3  # an answer that has not grown for so long is complete: it has no end mark
POLL_SECONDS = 0.02
STATES = {
    "T": "stopped by a signal (kill -CONT {pid} lets it go on)",
    "t": "stopped by a debugger",
    "D": "waiting for a disk or a network file system",
}


@dataclass
class Answer:
    """What a rank writes, from a place in its file on."""

    path: Path
    pid: int
    begin: int
    size: int
    grown: float
    """When it was seen to grow last."""

    def look(self) -> None:
        """Notes whether it has grown."""
        size = self.path.stat().st_size
        if size != self.size:
            self.size, self.grown = size, time.monotonic()

    @property
    def complete(self) -> bool:
        """True once there is one that grows no more."""
        return self.size > self.begin and time.monotonic() - self.grown > SETTLED_SECONDS

    def text(self) -> str:
        """The answer, or why there is none."""
        with self.path.open("rb") as stream:
            stream.seek(self.begin)
            said = stream.read().decode(errors="replace").strip()
        return said or f"no answer within {ANSWER_SECONDS:g} s: process {self.pid} is {_condition(self.pid)}"


def ranks_stacks(run: RunFolder, ranks: Iterable[int]) -> dict[int, str]:
    """Python stacks of all threads of each rank, innermost frame first; where there are none, a line that says why."""
    asked = {rank: _ask(run.stacks, rank) for rank in ranks}
    answers = [answer for answer in asked.values() if isinstance(answer, Answer)]
    limit = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < limit and not all(answer.complete for answer in answers):
        time.sleep(POLL_SECONDS)
        for answer in answers:
            answer.look()
    return {rank: answer.text() if isinstance(answer, Answer) else answer for rank, answer in asked.items()}


def hang_files(run: RunFolder) -> list[Path]:
    """What the ranks left of their stacks when the run hung for the last time."""
    return sorted(run.stacks.glob("hang-rank-*.txt"))


def _ask(folder: Path, rank: int) -> Answer | str:
    """Signals a rank, or says why it cannot be asked."""
    try:
        who = json.loads((folder / f"rank-{rank}.json").read_text())
    except FileNotFoundError:
        return "not up yet: it is still loading its packages"
    pid = int(who["pid"])
    gone = f"its process {pid} is gone, and no other has come up yet"
    if who["host"] != socket.gethostname():
        return f"it is process {pid} of {who['host']}: ask there"
    try:
        process = os.pidfd_open(pid)  # from here on the number cannot pass to another process unnoticed
    except ProcessLookupError:
        return gone
    try:
        if who["boot"] != boot_id() or who["started"] != process_started(pid):
            return gone
        if process_state(pid) in {"T", "t"}:
            return f"process {pid} is {_condition(pid)}"
        path = folder / f"rank-{rank}.txt"
        begin = path.stat().st_size
        signal.pidfd_send_signal(process, signal.SIGUSR2)
    except ProcessLookupError:
        return gone
    finally:
        os.close(process)
    return Answer(path, pid, begin, begin, time.monotonic())


def _condition(pid: int) -> str:
    """What keeps a process from answering, as far as the kernel tells."""
    state = process_state(pid)
    if state is None:
        return "gone by now"
    return STATES.get(state, f"in state {state}").format(pid=pid)
