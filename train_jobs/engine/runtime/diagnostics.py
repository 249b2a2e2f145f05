"""Diagnostics of a rank that fails or hangs: its error file, its stacks on request, and a watchdog.

    OUTPUT/error-RANK.json          why a process of the job ended, for programs that watch the job
    OUTPUT/stacks/rank-0.json       process to send SIGUSR2 to
    OUTPUT/stacks/rank-0.txt        stacks of all its threads at each SIGUSR2, innermost frame first
    OUTPUT/stacks/hang-rank-0.txt   its stacks when the watchdog ended it

SIGUSR2 also works inside a C call, and without waiting for Python's lock (GIL).

The watchdog ends a process that makes no progress, with exit code 76. Each process watches itself, under any launcher.
If one process hangs, its peers wait for it in a collective, so all of them report a hang. Each writes its stacks to its
log and to OUTPUT/stacks. A process that is stuck in its own work ends first; those that wait end later, so that they
can read its error file and name it as the cause.

Time at a debugger's prompt does not count, nor does a short stop (SIGSTOP, paused container). If Python's lock is held,
no Python code runs, so a timer in C dumps the stacks and ends the process 20 seconds later, with exit code 1. That
timer counts by the clock. A stop longer than the limit may therefore end the process when it continues: the timer has
expired, and may fire before Python sets it again. Suspending the machine stops the clock too.

Nothing here loads torch: a preparation runs without it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import gethostname
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from train_jobs.artifacts.host import boot_id, process_started
from train_jobs.artifacts.redaction import redact
from train_jobs.config import HangError, UserError, WatchdogConfig
from train_jobs.engine.runtime.storage import storage_errors, write_json

if TYPE_CHECKING:
    from train_jobs.engine.runtime.distributed import World

FOLDER = "stacks"
RESERVE_VARIABLE = "RUN_RESERVE"  # file that the orchestrator reserved for the reason of an end on a full disk
SHARED_PROCESS = "ORCHESTRATOR_DEBUG"  # set where this process belongs to the user and must outlive the job
CHECKS_PER_HANG = 10  # checks of the activity until a hang is reported; at most one per second
STDERR = 2
MAX_NAMED_RANKS = 8  # ranks in a message


def write_error(problem: UserError, output: Path, rank: int) -> None:
    """Write the error file of a rank; on a full disk, free the reserve of the run first. Ignore any other failure.

    Args:
        problem: the error.
        output: output folder of the run.
        rank: rank of this process.
    """
    path, document = _error_file(output, rank), _without_secrets({**problem.as_json(), "text": str(problem)})
    try:
        write_json(path, document)
    except OSError:
        with suppress(OSError, KeyError):
            Path(os.environ[RESERVE_VARIABLE]).unlink(missing_ok=True)
            write_json(path, document)


def _without_secrets(document: Any) -> Any:
    """Return a JSON document with every text in it redacted."""
    if isinstance(document, dict):
        return {key: _without_secrets(value) for key, value in document.items()}
    if isinstance(document, list):
        return [_without_secrets(value) for value in document]
    return redact(document) if isinstance(document, str) else document


def report_error(problem: UserError, output: Path, rank: int) -> int:
    """Print an error to stderr and write its file; return the exit code of the process."""
    write_error(problem, output, rank)
    with suppress(OSError):  # the log may be on a full disk
        print(redact(str(problem)), file=sys.stderr, flush=True)
    return problem.exit_code


def remove_error(output: Path, rank: int) -> None:
    """Remove the error file of an earlier start of this rank."""
    with suppress(NotADirectoryError):  # a file has the folder's name: the first write reports it
        _error_file(output, rank).unlink(missing_ok=True)


def read_errors(output: Path, ranks: range) -> dict[int, dict[str, Any]]:
    """Read the error files of ranks.

    Args:
        output: output folder of the run.
        ranks: ranks to read; those without a readable file are left out.

    Returns:
        rank -> {kind, message, facts, fix}.
    """
    found = {}
    for rank in ranks:
        with suppress(OSError, ValueError, KeyError):  # no file; or, on a mounted blob store, a part of it
            found[rank] = json.loads(_error_file(output, rank).read_text())["error"]
    return found


def _error_file(output: Path, rank: int) -> Path:
    return output / f"error-{rank}.json"


@contextmanager
def stacks_on_request(output: Path, rank: int) -> Iterator[None]:
    """Write the stacks of all threads at each SIGUSR2 while the body runs.

    Args:
        output: output folder of the run.
        rank: rank of this process.

    Raises:
        StorageError: the folder cannot be created or written.
    """
    folder, pid = output / FOLDER, os.getpid()
    with storage_errors(output, "the output folder"):
        folder.mkdir(parents=True, exist_ok=True)
        answers = (folder / f"rank-{rank}.txt").open("ab")
    with answers:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the handler after `unregister`: a late signal must not kill
        faulthandler.register(signal.SIGUSR2, answers, all_threads=True, chain=False)
        try:
            # Written after the handler is registered: a sender that reads the pid earlier would kill the process. Start
            # time and boot id distinguish this process from a later one with the same pid.
            with storage_errors(output, "the stacks"):
                identity = {"pid": pid, "started": process_started(pid), "boot": boot_id(), "host": gethostname()}
                write_json(folder / f"rank-{rank}.json", identity)
            yield
        finally:
            faulthandler.unregister(signal.SIGUSR2)


def hang_file(output: Path, rank: int) -> Path:
    """Return the path of the stacks file of a rank that hung."""
    return output / FOLDER / f"hang-rank-{rank}.txt"


def is_shared_process() -> bool:
    """Return whether this process belongs to the user, who debugs the job in it, and must outlive the job."""
    return bool(os.environ.get(SHARED_PROCESS))


class Watchdog:
    """Ends the process if it makes no progress while the `with` block runs.

    Args:
        config: seconds without progress that count as a hang; None disables the watchdog.
        world: rank, number of ranks, and the activity to watch.
        output: output folder of the run.
        grace_seconds: time for another rank to detect the same hang and to write its error file.
        last_resort_seconds: time for the report in Python, before the timer in C ends the process.
    """

    def __init__(
        self,
        config: WatchdogConfig,
        world: World,
        output: Path,
        *,
        grace_seconds: float = 5.0,
        last_resort_seconds: float = 20.0,
    ) -> None:
        self._seconds, self._grace, self._last_resort = config.hang_seconds, grace_seconds, last_resort_seconds
        self._activity, self._world, self._output = world.activity, world, output
        self._thread: threading.Thread | None = None
        self._done = threading.Event()

    def __enter__(self) -> None:
        if self._seconds is not None and not is_shared_process():
            self._done.clear()
            arguments = (self._seconds, threading.get_ident())
            self._thread = threading.Thread(target=self._watch, args=arguments, name="watchdog", daemon=True)
            self._thread.start()

    def __exit__(self, *problem: object) -> None:
        if self._thread is not None:
            self._done.set()
            self._thread.join()  # a thread that is already ending the process does so
            faulthandler.cancel_dump_traceback_later()

    def _watch(self, limit: float, watched: int) -> None:
        every = min(1.0, limit / CHECKS_PER_HANG)
        idle, seen, looked = 0.0, self._activity.beats, time.monotonic()
        while idle < limit:
            # Re-armed by every check. It fires if this thread does not run in time: another holds the GIL, or the
            # process was stopped for longer. faulthandler has no timer that stops together with the process.
            faulthandler.dump_traceback_later(limit + self._last_resort, exit=True, file=STDERR)
            if self._done.wait(every):
                return
            now = time.monotonic()
            # Capped: between two checks of a process that was stopped (SIGSTOP, paused container) hours may have
            # passed.
            idle += min(now - looked, 2 * every)
            looked = now
            if self._activity.beats != seen or _being_debugged(watched):
                idle, seen = 0.0, self._activity.beats
        self._end(limit)

    def _end(self, limit: float) -> NoReturn:
        """Report stage and stacks of this process, then end it."""
        stage, rank = self._activity.stage, self._world.rank
        problem = HangError(
            f"rank {rank} made no progress for {limit:g} s (last: {stage})",
            facts={"waits": "for other ranks"} if stage.waits else None,
            fix="look in the stacks for the call that does not return, then resume the run",
        )
        stacks = self._write_stacks(problem)
        write_error(problem, self._output, rank)
        # The stuck rank ends one grace period before those that wait, so its error is the first that the launcher
        # reports. It sleeps as well: the others must find the error file of every stuck rank.
        time.sleep(2 * self._grace if stage.waits else self._grace)
        problem.facts |= {**(self._others() if stage.waits else {}), "stacks": stacks}
        report_error(problem, self._output, rank)
        os._exit(problem.exit_code)  # not sys.exit: the main thread is stuck, and its clean-up would hang again

    def _write_stacks(self, problem: HangError) -> Path | str:
        """Write the stacks to the log and to a file; return the path of the file, or a hint if the disk fails."""
        print(f"stacks of rank {self._world.rank}, innermost frame first", file=sys.stderr, flush=True)
        # to the log first: the disk may be what hangs
        faulthandler.dump_traceback(STDERR)
        path = hang_file(self._output, self._world.rank)
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            with path.open("w") as stream:
                print(f"{time.strftime('%Y-%m-%d %H:%M:%S %z')}\n{problem}\n", file=stream, flush=True)
                faulthandler.dump_traceback(stream)
            return path
        return "in the log, above"

    def _others(self) -> dict[str, str]:
        """Return the ranks that this one may be waiting for: those that are stuck, and those without an error file."""
        ranks = range(self._world.size)
        errors = read_errors(self._output, ranks)
        stuck = [
            error["message"] for error in errors.values() if error["kind"] == "hang" and "waits" not in error["facts"]
        ]
        silent = [f"rank {rank}" for rank in ranks if rank not in errors]
        found = {"stuck": "; ".join(stuck[:MAX_NAMED_RANKS])} if stuck else {}
        if silent:
            found["silent"] = f"{', '.join(silent[:MAX_NAMED_RANKS])}: stopped, unreachable, or holding Python's lock"
        return found


def _being_debugged(thread: int) -> bool:
    """Return whether a debugger traces the thread, or waits at its prompt in it."""
    # pdb sets f_trace in the frames that it steps through; sys.gettrace alone knows only about the calling thread.
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None and frame.f_trace is None:
        frame = frame.f_back
    return frame is not None or sys.gettrace() is not None
