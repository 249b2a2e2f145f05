"""Diagnostics of a rank that fails or hangs: its error file, its stacks on request, and a watchdog.

    OUTPUT/error-RANK.json          why a process of the job ended, for programs that watch the job
    OUTPUT/stacks/rank-0.json       process to send SIGUSR2 to
    OUTPUT/stacks/rank-0.txt        stacks of all its threads at each SIGUSR2, innermost frame first
    OUTPUT/stacks/hang-rank-0.txt   its stacks when the watchdog ended it

SIGUSR2 is answered from inside a C call as well, and without waiting for Python's lock.

The watchdog ends a process that makes no progress. Each process watches itself, under any launcher. A process that
hangs takes its peers along: they wait for it in a collective. So each of them finds out, each leaves its stacks in its
log and in OUTPUT/stacks, and they end in an order that names the cause first: one that is stuck in work of its own
before those that wait, which look for it and name it. All with exit code 76.

Only time in which the process ran counts: one that was stopped, by a debugger or with its container, is not guilty when
it continues. One that holds Python's lock runs none of this: a timer in C dumps its stacks and ends it a little later,
with exit code 1, for another cannot be chosen there. (The timer's clock does not stop: it sets a limit to the first.)

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
from train_jobs.config import HangError, UserError, WatchdogConfig
from train_jobs.engine.runtime.storage import storage_errors, write_json

if TYPE_CHECKING:
    from train_jobs.engine.runtime.distributed import World

FOLDER = "stacks"
LOOKS = 10  # at the activity, within the time that a hang takes; at most one a second
STDERR = 2
MOST_NAMED = 8  # ranks in a message


def write_error(problem: UserError, output: Path, rank: int) -> None:
    """Write the error file of a rank, as JSON and text; do nothing if the disk refuses, which may be the problem."""
    with suppress(OSError):
        write_json(_error_file(output, rank), {**problem.as_json(), "text": str(problem)})


def report_error(problem: UserError, output: Path, rank: int) -> int:
    """Print an error and write its file; return the exit code of the process."""
    print(problem, file=sys.stderr, flush=True)
    write_error(problem, output, rank)
    return problem.exit_code


def remove_error(output: Path, rank: int) -> None:
    """Remove the error file that an earlier start of this rank left."""
    with suppress(NotADirectoryError):  # a file has the folder's name: the first write reports it
        _error_file(output, rank).unlink(missing_ok=True)


def read_errors(output: Path, ranks: range) -> dict[int, dict[str, Any]]:
    """Return the errors that ranks left: rank -> {kind, message, facts, fix}."""
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
        output: folder of the run.
        rank: of this process.

    Raises:
        StorageError: the folder cannot be written.
    """
    folder, pid = output / FOLDER, os.getpid()
    with storage_errors(output, "making the output folder"):
        folder.mkdir(parents=True, exist_ok=True)
        answers = (folder / f"rank-{rank}.txt").open("ab")
    with answers:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # restored behind the body: a late signal must not kill
        faulthandler.register(signal.SIGUSR2, answers, all_threads=True, chain=False)
        try:
            with storage_errors(output, "stacks"):  # only now: before, the signal would have killed the process
                identity = {"pid": pid, "started": process_started(pid), "boot": boot_id(), "host": gethostname()}
                write_json(folder / f"rank-{rank}.json", identity)
            yield
        finally:
            faulthandler.unregister(signal.SIGUSR2)


def hang_file(output: Path, rank: int) -> Path:
    """Return the path of the stacks of a rank that hung."""
    return output / FOLDER / f"hang-rank-{rank}.txt"


class Watchdog:
    """Ends the process if it makes no progress while the `with` block runs.

    Args:
        config: how long a process may make no progress.
        world: rank, number of ranks, and the activity to watch.
        output: folder of the run.
        grace_seconds: for one more rank to find out that it hangs as well.
        last_resort_seconds: for everything done in Python, before the timer in C ends the process.
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
        if self._seconds is not None and os.environ.get("ORCHESTRATOR_DEBUG") != "1":
            self._done.clear()
            arguments = (self._seconds, threading.get_ident())
            self._thread = threading.Thread(target=self._watch, args=arguments, name="watchdog", daemon=True)
            self._thread.start()

    def __exit__(self, *problem: object) -> None:
        if self._thread is not None:
            self._done.set()
            self._thread.join()  # one that is ending the process finishes that
            faulthandler.cancel_dump_traceback_later()

    def _watch(self, limit: float, watched: int) -> None:
        every = min(1.0, limit / LOOKS)
        idle, seen, looked = 0.0, self._activity.beats, time.monotonic()
        while idle < limit:
            # fires if this thread does not get here again in time
            faulthandler.dump_traceback_later(limit + self._last_resort, exit=True, file=STDERR)
            if self._done.wait(every):
                return
            now = time.monotonic()
            idle += min(now - looked, 2 * every)  # more time has passed if the process was stopped
            looked = now
            if self._activity.beats != seen or _being_debugged(watched):
                idle, seen = 0.0, self._activity.beats
        self._end(limit)

    def _end(self, limit: float) -> NoReturn:
        """Report the stage and the stacks of this process, then end it."""
        stage, rank = self._activity.stage, self._world.rank
        problem = HangError(
            f"rank {rank} made no progress for {limit:g} s (last: {stage})",
            facts={"waits": "for other ranks"} if stage.waits else None,
            fix="look in the stacks for what does not return, then resume the run",
        )
        stacks = self._write_stacks(problem)
        write_error(problem, self._output, rank)
        time.sleep(2 * self._grace if stage.waits else self._grace)
        problem.facts |= {**(self._others() if stage.waits else {}), "stacks": stacks}
        report_error(problem, self._output, rank)
        os._exit(problem.exit_code)

    def _write_stacks(self, problem: HangError) -> Path | str:
        """Write the stacks to the log and to a file of their own; return the file, or a hint to the log."""
        print(f"stacks of rank {self._world.rank}, innermost frame first", file=sys.stderr, flush=True)
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
        """Return the ranks that this one may be waiting for: those that report a hang, and those that are silent."""
        ranks = range(self._world.size)
        errors = read_errors(self._output, ranks)
        stuck = [
            error["message"] for error in errors.values() if error["kind"] == "hang" and "waits" not in error["facts"]
        ]
        silent = [f"rank {rank}" for rank in ranks if rank not in errors]
        found = {"stuck": "; ".join(stuck[:MOST_NAMED])} if stuck else {}
        if silent:
            found["silent"] = f"{', '.join(silent[:MOST_NAMED])}: stopped, unreachable, or holding Python's lock"
        return found


def _being_debugged(thread: int) -> bool:
    """Return whether a debugger traces the thread, or waits at its prompt in it."""
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None and frame.f_trace is None:
        frame = frame.f_back
    return frame is not None or sys.gettrace() is not None
