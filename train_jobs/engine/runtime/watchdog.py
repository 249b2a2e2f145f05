"""Ends a process that gets nowhere, once it has told where it stands. Each process watches itself, under any launcher.

A process that hangs takes its peers along: they wait for it in a collective. So each of them finds out, each leaves its
stacks in its log and in OUTPUT/stacks, and they end in an order that tells the cause first: one that is stuck in work
of its own before those that wait, which look for it and name it. All with exit code 76.

Only time in which the process ran counts: one that was stopped, by a debugger or with its container, is not guilty when
it goes on. One that holds Python's lock runs none of this: a timer in C dumps its stacks and ends it a little later,
with exit code 1, for another cannot be chosen there. (The timer's clock does not stop: it sets a limit to the first.)
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from train_jobs.config import HangError, WatchdogConfig
from train_jobs.engine.runtime import last_words
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.rank_stacks import hang_file

GRACE_SECONDS = 5.0  # that one more rank may need to find out that it hangs as well
LAST_RESORT_SECONDS = 4 * GRACE_SECONDS  # after all that is done in Python has had its time
LOOKS = 10  # at the activity, in the time that a hang takes; one a second at most
STDERR = 2
MOST_NAMED = 8  # ranks in a message


class Watchdog:
    """Watches the process while its `with` block runs.

    Args:
        config: how long a process may get nowhere.
        world: which process it is, among how many, and what it is doing.
        output: folder of the run.
    """

    def __init__(self, config: WatchdogConfig, world: World, output: Path) -> None:
        self._seconds = config.hang_seconds
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
            self._thread.join()  # one that is ending the process goes through with it
            faulthandler.cancel_dump_traceback_later()

    def _watch(self, limit: float, watched: int) -> None:
        every = min(1.0, limit / LOOKS)
        idle, seen, looked = 0.0, self._activity.beats, time.monotonic()
        while idle < limit:
            # goes off if this thread does not come by again in time
            faulthandler.dump_traceback_later(limit + LAST_RESORT_SECONDS, exit=True, file=STDERR)
            if self._done.wait(every):
                return
            now = time.monotonic()
            idle += min(now - looked, 2 * every)  # more went by if the process was stopped
            looked = now
            if self._activity.beats != seen or _being_debugged(watched):
                idle, seen = 0.0, self._activity.beats
        self._end(limit)

    def _end(self, limit: float) -> NoReturn:
        """Tells where this process stands, and ends it."""
        stage, rank = self._activity.stage, self._world.rank
        problem = HangError(
            f"rank {rank} made no progress for {limit:g} s (last: {stage})",
            facts={"waits": "for other ranks"} if stage.waits else None,
            fix="look in the stacks for what does not return, then resume the run",
        )
        stacks = self._write_stacks(problem)
        last_words.leave(problem, self._output, rank)
        time.sleep(2 * GRACE_SECONDS if stage.waits else GRACE_SECONDS)
        problem.facts |= {**(self._others() if stage.waits else {}), "stacks": stacks}
        last_words.leave(problem, self._output, rank)
        print(problem, file=sys.stderr, flush=True)
        os._exit(problem.exit_code)

    def _write_stacks(self, problem: HangError) -> Path | str:
        """To the log, before the error, and to a file of their own; returns where they are to be found."""
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
        """Whom a rank waits for: those that say that they are stuck themselves, and those that say nothing."""
        ranks = range(self._world.size)
        said = last_words.read(self._output, ranks)
        stuck = [word["message"] for word in said.values() if word["kind"] == "hang" and "waits" not in word["facts"]]
        silent = [f"rank {rank}" for rank in ranks if rank not in said]
        found = {}
        if stuck:
            found["stuck"] = "; ".join(stuck[:MOST_NAMED])
        if silent:
            found["silent"] = f"{', '.join(silent[:MOST_NAMED])}: stopped, out of reach, or holding Python's lock"
        return found


def _being_debugged(thread: int) -> bool:
    """True while a debugger traces the thread, or waits at its prompt in it."""
    if sys.gettrace() is not None:
        return True
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_trace is not None:
            return True
        frame = frame.f_back
    return False
