"""Where a job that trains ends: whatever came up to here becomes words that its user can do something with."""

from __future__ import annotations

import traceback
from pathlib import Path

from train_jobs.config import InternalError, UserError
from train_jobs.engine import distributed, memory, storage


def explained(problem: Exception, output: Path, rank: int) -> UserError:
    """The error in the house's form; a trace is printed of all but a disk that refuses, which has none to tell.

    Args:
        problem: what nobody caught; call this where it is handled.
        output: folder of the run.
        rank: of this process.
    """
    found = storage.explain(problem, output, "the run's output")
    if found is None:
        traceback.print_exc()
    found = found or memory.explain(problem) or distributed.explain(problem, rank)
    return found or InternalError(f"{type(problem).__name__}: {problem}")
