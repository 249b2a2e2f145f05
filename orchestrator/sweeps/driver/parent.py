"""The MLflow run of a sweep, which is the parent of its trials' runs.

Tracking is best effort once the sweep runs: trials are expensive, and an error of MLflow must not stop them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.runs.status import RunState
from orchestrator.runs.tracked_run import TrackingRequest, default_uri, open_run
from orchestrator.support.errors import ServiceError
from orchestrator.sweeps.design.sweep_record import SweepRecord
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from train_jobs.artifacts.files import write_text
from train_jobs.config.reported import flatten

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

STATUS = {RunState.COMPLETED: "FINISHED", RunState.FAILED: "FAILED"}  # cancelled and preempted: KILLED
LOGGED_BY_TRIALS = ("trial", "recipe", "kind")  # keys of the sweep that its runs log themselves


class ParentRun:
    """The parent of a sweep's runs; not opened if the backend itself creates MLflow runs.

    Args:
        folder: the sweep's folder; its tracking.json names the MLflow run for the mirror.
        record: the sweep.
        home: the home folder.
    """

    def __init__(self, folder: SweepFolder, record: SweepRecord, home: Path) -> None:
        self._folder, self._record = folder, record
        tracking = record.trial["tracking"]
        self._uri = str(tracking["uri"] or default_uri(home))
        self._experiment = str(tracking["experiment"])
        self._run_id: str | None = None
        self._tracking_file = folder.path / "tracking.json"
        earlier = "; ".join(sweep.text for sweep in record.earlier)
        self._tags = {"orchestrator.sweep": record.name, **({"orchestrator.warm_start": earlier} if earlier else {})}

    def open(self, run_id: str | None) -> str | None:
        """Create the run, or set an existing one to running again; return its id.

        Args:
            run_id: the run of an earlier driver; None: create a run.

        Raises:
            ServiceError: MLflow refused.
        """
        self._run_id = open_run(
            TrackingRequest(
                uri=self._uri,
                experiment=self._experiment,
                run_name=self._record.name,
                params=flatten(
                    {key: value for key, value in self._record.sweep.items() if key not in LOGGED_BY_TRIALS}
                ),
                tags={**self._tags, "orchestrator.snapshot": self._record.snapshot},
                run_id=run_id,
            )
        )
        write_text(self._tracking_file, json.dumps({"tracking_uri": self._uri, "run_id": self._run_id}))
        return self._run_id

    def tags(self) -> dict[str, str]:
        """Return the tags of each trial's run."""
        return {**self._tags, **({"mlflow.parentRunId": self._run_id} if self._run_id else {})}

    def tag_decision(self, run_id: str | None, decision: str) -> None:
        """Tag a trial's run with the decision that stopped it; an error of MLflow is reported on stderr."""
        if run_id is not None and self._run_id is not None:
            with self._client() as client:
                client.set_tag(run_id, "orchestrator.decision", decision)

    def end(self, state: RunState) -> None:
        """Log metrics and decisions, and set the final status; an error of MLflow is reported on stderr."""
        if self._run_id is None:
            return
        if self._folder.decided.exists():
            with self._client() as client:
                client.log_artifact(self._run_id, str(self._folder.decided))
        command = [sys.executable, "-m", "train_jobs.tools.mirror", str(self._folder.metrics)]
        environ = {
            **os.environ,
            "ORCHESTRATOR_TRACKING": str(self._tracking_file),
            "MLFLOW_TRACKING_URI": self._uri,
            "MLFLOW_EXPERIMENT_NAME": self._experiment,
        }
        subprocess.run([*command, "--status", STATUS.get(state, "KILLED")], env=environ, check=False)

    @contextmanager
    def _client(self) -> Iterator[MlflowClient]:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        try:
            yield MlflowClient(tracking_uri=self._uri)
        except (MlflowException, OSError) as problem:
            error = ServiceError("cannot log a decision to MLflow", facts={"reason": problem})
            print(error, file=sys.stderr, flush=True)
