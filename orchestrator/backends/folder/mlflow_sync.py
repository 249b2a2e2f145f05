"""The copy of a run in MLflow, made from the run's folder; the supervisor starts it as a process and never waits:

    python -m orchestrator.backends.folder.mlflow_sync RUN_FOLDER

It reads the state of the run after it has taken the run's lock, so the order of several such processes does not matter.
For a live run it opens the MLflow run and writes its id to tracking.json; for an ended run it copies the rest.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from orchestrator.backends.folder.mlflow_records import tracking_request
from orchestrator.backends.folder.run_folder import LocalState, RunFolder
from orchestrator.runs.tracked_run import (
    Synced,
    exit_code_of,
    is_copied,
    is_syncing,
    run_lock,
    start,
    sync,
    sync_command,
)
from train_jobs.artifacts.redaction import redact_output

START_SECONDS = 120.0  # after the end of a run, in which the process that copies it starts, on a busy machine too


def sync_run(run: RunFolder, to: str | None = None) -> Synced:
    """Make the MLflow run of a run equal to its folder; values that a resume discarded stay in the histories.

    Args:
        run: its folder.
        to: tracking URI. None: the run's own.

    Raises:
        ServiceError: MLflow or its store refused, or another process syncs the same run.
    """
    with run_lock(run.path):
        return sync(tracking_request(run).to(to))


def is_behind(run: RunFolder, known: frozenset[str] | None = None) -> bool:
    """Return whether MLflow lacks something of an ended run.

    Args:
        run: its folder.
        known: ids of the runs in its store; None: not checked.
    """
    state = run.state()
    ended = state.state.terminal and bool(state.attempts)
    return ended and not is_copied(run.metrics, run.mlflow_run_id, state.state, known)


def expect_copy(run: RunFolder) -> None:
    """Note, before the job starts, that MLflow is to get a copy of a run: an empty note, which a sync deletes.

    Whichever process is killed afterwards, `behind_warning` then finds that the copy is missing.
    """
    with suppress(OSError):  # a full disk
        run.behind_file.touch()


def forget_copy(run: RunFolder) -> None:
    """Delete the empty note of an ended run that is copied already; a reason stays."""
    with suppress(OSError):
        if not run.behind_file.read_text().strip():
            run.behind_file.unlink()


def behind_warning(run: RunFolder, state: LocalState) -> str | None:
    """Return why MLflow lacks something of a run; None: it does not, or a process is copying it.

    Args:
        run: its folder.
        state: its state.
    """
    try:
        reason = run.behind_file.read_text().strip()
    except FileNotFoundError:
        return None
    starting = state.ended is not None and state.now() - state.ended < START_SECONDS
    if reason or not state.state.terminal or starting or is_syncing(run.path) or not is_behind(run):
        return reason or None
    return f"the copy in MLflow is behind: no process is making it; repair: {sync_command(run.name)}"


def start_sync(run: RunFolder) -> None:
    """Start a process that syncs a run; the caller does not wait for it."""
    start(["-m", "orchestrator.backends.folder.mlflow_sync", str(run.path)], run.logs / "mirror.log")


def main() -> int:
    """Sync one run."""
    run = RunFolder(Path(sys.argv[1]))
    with suppress(FileNotFoundError):  # the run was deleted
        return exit_code_of(lambda: sync_run(run))
    return 0


if __name__ == "__main__":
    redact_output()
    sys.exit(main())
