"""The MLflow run of a sweep, which is the parent of its trials' runs.

The driver starts the process that syncs it and never waits for it: trials are expensive, and MLflow is a copy.

    python -m orchestrator.sweeps.driver.parent SWEEP_FOLDER HOME
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from orchestrator.runs.tracked_run import (
    RUNNING,
    STATUS,
    SWEEP_TAG,
    Synced,
    TrackingRequest,
    default_uri,
    exit_code_of,
    is_copied,
    run_lock,
    start,
    submitted_tag,
    sync,
)
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.driver.sweep_status import sweep_status
from train_jobs.artifacts.tracking.mlflow_copy import flatten

LOGGED_BY_TRIALS = ("trial", "recipe", "kind")  # keys of the sweep that its runs log themselves


class ParentRun:
    """The parent of a sweep's runs; not used if the backend itself creates MLflow runs.

    Args:
        folder: the sweep's folder.
        home: the home folder.
    """

    def __init__(self, folder: SweepFolder, home: Path) -> None:
        self._folder, self._record, self._home = folder, folder.record(), home

    def tags(self) -> dict[str, str]:
        """Return the tags of each trial's run; by the first of them it finds its parent."""
        earlier = "; ".join(sweep.text for sweep in self._record.earlier)
        return {SWEEP_TAG: self._record.name, **({"orchestrator.warm_start": earlier} if earlier else {})}

    def sync(self) -> Synced:
        """Make the MLflow run equal to the sweep's folder, and nest its trials below it.

        Raises:
            ServiceError: MLflow or its store refused, or another process syncs the same sweep.
        """
        with run_lock(self._folder.path):
            return sync(self.request())

    def start_sync(self) -> None:
        """Start a process that syncs it; the caller does not wait for it."""
        command = ["-m", "orchestrator.sweeps.driver.parent", str(self._folder.path), str(self._home)]
        start(command, self._folder.path / "driver.log")

    def is_behind(self, known: Callable[[str], frozenset[str] | None]) -> bool:
        """Return whether MLflow lacks something of the ended sweep.

        Args:
            known: returns the ids of the MLflow runs in a store; None: unknown.
        """
        folder, state = self._folder, self._folder.state().state
        run_id = folder.mlflow_run_id or folder.stored_state().mlflow_run_id
        return state.terminal and not is_copied(folder.metrics, run_id, state, known(self._uri))

    @property
    def _uri(self) -> str:
        return str(self._record.trial["tracking"]["uri"] or default_uri(self._home))

    def request(self) -> TrackingRequest:
        """Return the MLflow run that the sweep should have now."""
        state, record = self._folder.state(), self._record
        tracking, own = record.trial["tracking"], submitted_tag(record.created)
        rows = sweep_status(self._folder).rows if state.state.terminal else []
        return TrackingRequest(
            uri=self._uri,
            experiment=str(tracking["experiment"]),
            run_name=record.name,
            identity={SWEEP_TAG: record.name, **own},
            params=flatten({key: value for key, value in record.sweep.items() if key not in LOGGED_BY_TRIALS}),
            tags={**self.tags(), "orchestrator.snapshot": record.snapshot},
            folder=str(self._folder.path),
            metrics=str(self._folder.metrics),
            status=STATUS.get(state.state, "KILLED") if state.state.terminal else RUNNING,
            started=record.created,
            ended=state.ended if state.state.terminal else None,
            run_id=state.mlflow_run_id,
            decisions={run: row.why for row in rows if row.state == "stopped" and row.why for run in row.runs},
            artifact=str(self._folder.decided),
            secrets=record.trial.get("environment", {}).get("secrets", {}),
        )


def main() -> int:
    """Sync one sweep."""
    folder, home = Path(sys.argv[1]), Path(sys.argv[2])
    return exit_code_of(ParentRun(SweepFolder(folder), home).sync)


if __name__ == "__main__":
    sys.exit(main())
