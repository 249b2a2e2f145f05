"""The copy of a run in MLflow, made from the run's folder; the supervisor starts it as a process and never waits:

    python -m orchestrator.backends.folder.mlflow_sync RUN_FOLDER

It reads the state of the run after it has taken the run's lock, so the order of several such processes does not matter.
For a live run it opens the MLflow run and writes its id to tracking.json; for an ended run it copies the rest.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from orchestrator.backends.base import CONFIG, REQUEST, TAGS
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.run_progress import last_report
from orchestrator.runs.tracked_run import (
    RUNNING,
    STATUS,
    Synced,
    TrackingRequest,
    exit_code_of,
    is_copied,
    run_lock,
    start,
    submitted_tag,
    sync,
)
from train_jobs.artifacts.tracking.mlflow_copy import flatten

HANDLE_TAG = "orchestrator.handle"


def sync_run(run: RunFolder) -> Synced:
    """Make the MLflow run of a run equal to its folder.

    Raises:
        ServiceError: MLflow or its store refused, or another process syncs the same run.
    """
    with run_lock(run.path):
        return sync(tracking_request(run))


def tracking_request(run: RunFolder) -> TrackingRequest:
    """Return the MLflow run that a run should have now."""
    state, submission, tags = run.state(), run.read_json(REQUEST), run.read_json(TAGS)
    attempts = state.closed_attempts(last_report(run.metrics))
    ended = state.ended or (attempts[-1].ended if attempts else None)
    return TrackingRequest(
        uri=submission["tracking_uri"],
        experiment=submission["experiment"],
        run_name=run.name,
        identity={HANDLE_TAG: tags[HANDLE_TAG], **submitted_tag(state.created)},
        params=flatten(run.read_json(CONFIG)),
        tags=tags,
        folder=str(run.path),
        metrics=str(run.metrics),
        status=STATUS.get(state.state, "KILLED") if state.state.terminal else RUNNING,
        started=attempts[0].started if attempts else state.created,
        ended=ended if state.state.terminal else None,
        run_id=state.mlflow_run_id,
        secrets=submission.get("secrets", {}),
    )


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
    sys.exit(main())
