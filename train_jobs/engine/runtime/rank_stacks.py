"""Where a live process stands, told at any time: on SIGUSR2 it writes the stacks of all its threads.

    OUTPUT/stacks/rank-0.json       which process to ask
    OUTPUT/stacks/rank-0.txt        what it answered, each time; innermost frame first
    OUTPUT/stacks/hang-rank-0.txt   where it stood when the watchdog ended it

It answers from inside a C call as well, and without waiting for Python's lock.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from train_jobs.artifacts.host import boot_id, process_started
from train_jobs.engine.runtime.storage import storage_errors, write_json

FOLDER = "stacks"


@contextmanager
def stacks_on_request(output: Path, rank: int) -> Iterator[None]:
    """Answers SIGUSR2 while the body runs.

    Args:
        output: folder of the run.
        rank: of this process.

    Raises:
        StorageError: the folder cannot be written.
    """
    folder = output / FOLDER
    with storage_errors(output, "making the output folder"):
        folder.mkdir(parents=True, exist_ok=True)
        answers = (folder / f"rank-{rank}.txt").open("ab")
    with answers:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # what it is again behind the body: a late signal must not kill
        faulthandler.register(signal.SIGUSR2, answers, all_threads=True, chain=False)
        try:
            with storage_errors(output, "stacks"):
                write_json(folder / f"rank-{rank}.json", _identity())  # only now: before, the signal would have killed
            yield
        finally:
            faulthandler.unregister(signal.SIGUSR2)


def hang_file(output: Path, rank: int) -> Path:
    """Where a process that hangs leaves its stacks."""
    return output / FOLDER / f"hang-rank-{rank}.txt"


def _identity() -> dict[str, object]:
    """What tells this process from all others, of this machine and of others."""
    pid = os.getpid()
    return {"pid": pid, "started": process_started(pid), "boot": boot_id(), "host": socket.gethostname()}
