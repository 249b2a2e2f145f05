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
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.runs.tracked_run import Synced, exit_code_of, is_copied, run_lock, start, sync
from train_jobs.artifacts.redaction import redact_output


def sync_run(run: RunFolder, to: str | None = None) -> Synced:
    """Make the MLflow run of a run equal to its folder.

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
