"""error-RANK.json: why a process of the job ended, left in the output folder for whoever watches the job."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from train_jobs.config import UserError
from train_jobs.engine.runtime.storage import write_json


def leave(problem: UserError, output: Path, rank: int) -> None:
    """Writes `problem` as JSON and as text; not where the disk refuses, which may be the problem."""
    with suppress(OSError):
        write_json(_path(output, rank), {**problem.as_json(), "text": str(problem)})


def fail(problem: UserError, output: Path, rank: int) -> int:
    """Prints the error and leaves it; returns the exit code that a process ends with for it."""
    print(problem, file=sys.stderr, flush=True)
    leave(problem, output, rank)
    return problem.exit_code


def forget(output: Path, rank: int) -> None:
    """Removes what an earlier start of this process left."""
    with suppress(NotADirectoryError):  # a file is where the folder shall be: whoever writes there will say so
        _path(output, rank).unlink(missing_ok=True)


def read(output: Path, ranks: range) -> dict[int, dict[str, Any]]:
    """The errors that were left, by rank: {kind, message, facts, fix}."""
    found = {}
    for rank in ranks:
        with suppress(OSError, ValueError, KeyError):  # none; or, on a mounted blob store, not all of it
            found[rank] = json.loads(_path(output, rank).read_text())["error"]
    return found


def _path(output: Path, rank: int) -> Path:
    return output / f"error-{rank}.json"
