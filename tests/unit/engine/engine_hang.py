"""One process of a job that hangs or appears to hang; test_engine_watchdog runs it as a script.

    python engine_hang.py FOLDER HOW [HOW ...]

Rank 0 trains. In the third step every other rank performs its HOW; a single process performs all of them. The watchdog
limit is five seconds: on a busy machine, a first step may take more than two.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch
from engine_toy import ToyTask, make_loop, run

from train_jobs.config import WatchdogConfig
from train_jobs.engine.runtime import distributed
from train_jobs.engine.runtime.diagnostics import Watchdog

LIMIT = 5.0
STEP = 2  # batches are counted from 0


def hang(how: str) -> None:
    """Block for a long time or forever."""
    if how == "sleep":
        time.sleep(600)
    elif how == "lock":
        ctypes.PyDLL(None).sleep(600)  # a C function that runs while the GIL is held
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "debugger":
        breakpoint()


def main(folder: Path, *ways: str) -> None:
    """Train under a watchdog."""
    world = distributed.start("cpu", hang_seconds=LIMIT)
    mine = list(ways if world.size == 1 else ways[world.rank - 1 : world.rank])

    def trouble(batch: int, loss: torch.Tensor) -> torch.Tensor:
        if "slow" in ways:
            time.sleep(0.3 * LIMIT)
        while batch == STEP and mine:
            hang(mine.pop(0))
        return loss

    loop = make_loop(ToyTask(world, trouble=trouble), folder)
    with Watchdog(WatchdogConfig(hang_minutes=LIMIT / 60), world, folder, grace_seconds=1.0, last_resort_seconds=8.0):
        run(loop)
    print("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
