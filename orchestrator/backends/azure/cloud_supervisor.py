"""The job that a schedule of Azure ML starts: look at one run, restart it if it was evicted, and exit.

    python -m orchestrator.backends.azure.cloud_supervisor RUN

It remembers nothing: everything it knows is in the workspace and in the run's files there. Two that run at the same
time do no harm, because the names of attempts follow from the run's name and their number. With the run's end it
deletes its schedule.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.backends.azure.backend import AzureBackend
from orchestrator.backends.azure.options import AZURE
from orchestrator.backends.azure.runs.endings import seconds
from orchestrator.backends.azure.runs.observer import adopt
from orchestrator.backends.azure.runs.record import RecordFolder
from orchestrator.backends.azure.supervision import schedule_name
from orchestrator.support.errors import NotFoundError, UserError

NEVER_SUBMITTED_SECONDS = 3600.0  # age of a schedule from which a run without a job was never submitted
REFUSED_SECONDS = 24 * 3600.0  # time after the end of an attempt in which a refused restart is tried again


def look(run: str, home: Path, environ: Mapping[str, str]) -> str:
    """Restart a run if it needs it, or delete its schedule if it is over; return a line about it.

    Args:
        run: name of the run.
        home: an empty folder.
        environ: environment variables, which name the workspace.

    Raises:
        UserError: Azure refused, or cannot be reached; the next look tries again.
    """
    backend = AzureBackend(home, environ)
    wire, folder, schedule = backend.wire({}), RecordFolder(home / AZURE / run), schedule_name(run)
    try:
        adopt(wire, folder)
    except NotFoundError:
        created = seconds(((wire.schedule(schedule) or {}).get("systemData") or {}).get("createdAt"))
        if created is not None and time.time() - created < NEVER_SUBMITTED_SECONDS:
            return f"run {run} has no job yet"
        wire.delete_schedule(schedule)
        return f"run {run} does not exist: schedule {schedule} deleted"
    try:
        more = backend.restart_if_needed(run)
    except UserError:
        ended = folder.read().attempts[-1].ended or folder.read().created
        if time.time() - ended > REFUSED_SECONDS:
            wire.delete_schedule(schedule)
        raise
    record = folder.read()
    if more or record.last.ended is None:
        return f"run {run}: attempt {len(record.attempts)} is {record.last.state}"
    wire.delete_schedule(schedule)
    return f"run {run} is over, {record.last.state}: schedule {schedule} deleted"


def main(arguments: Sequence[str]) -> int:
    """Look once at the run that the command line names; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as home:
        try:
            print(look(arguments[0], Path(home), os.environ), flush=True)
        except UserError as problem:
            print(problem, file=sys.stderr, flush=True)
            return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
