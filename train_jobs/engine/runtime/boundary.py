"""The end of every job: an exception becomes an error in the house's form, a file of it, and an exit code.

Nothing here loads torch: a preparation runs without it.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from train_jobs.config import InternalError, UserError
from train_jobs.engine.runtime import last_words, storage
from train_jobs.engine.runtime.rank_stacks import stacks_on_request
from train_jobs.engine.runtime.stop import CTRL_C, Preempted

PREEMPTED = 75  # sysexits' EX_TEMPFAIL: the same command again goes on
INTERRUPTED = 130
SAVED = "a checkpoint is committed, the same command goes on from it"


def run(job: Callable[[], object], output: Path, *, kept: str = SAVED) -> int:
    """Runs a job to its end, and turns what went wrong into words and an exit code.

    Args:
        job: reads its configuration, and does all the rest.
        output: folder of the run.
        kept: what is there, and what to do, if SIGTERM or the first Ctrl-C ended it.
    """
    rank = int(os.environ.get("RANK", "0"))
    try:
        last_words.forget(output, rank)
        with stacks_on_request(output, rank):
            job()
    except Preempted as ending:
        print(f"stopped by {ending.by}; {ending.kept or kept}", flush=True)
        return INTERRUPTED if ending.by == CTRL_C else PREEMPTED
    except KeyboardInterrupt:  # before anything listened to it, or the second one
        print("ended by Ctrl-C; the same command goes on from what was saved before", flush=True)
        return INTERRUPTED
    except UserError as problem:
        return last_words.fail(problem, output, rank)
    except Exception as problem:
        return last_words.fail(_explained(problem, output, rank), output, rank)
    return 0


def leave(code: int) -> NoReturn:
    """Ends the process with this exit code.

    The interpreter takes a second to go away, with handlers gone: a launcher that ends the peers of a rank that was
    faster must not turn "saved" into "killed".
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(code)


def _explained(problem: Exception, output: Path, rank: int) -> UserError:
    """The error in the house's form; a trace is printed of all but a disk that refuses, which has none to tell.

    Args:
        problem: what nobody caught; call this where it is handled.
        output: folder of the run.
        rank: of this process.
    """
    if (refused := storage.explain(problem, output, "the run's output")) is not None:
        return refused
    traceback.print_exc()
    found: UserError | None = None
    if "torch" in sys.modules:
        from train_jobs.engine.runtime import distributed, out_of_memory

        found = out_of_memory.explain(problem) or distributed.explain(problem, rank)
    return found or InternalError(f"{type(problem).__name__}: {problem}")
