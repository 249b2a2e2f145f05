"""A sweep in MLflow: a run that the runs of its trials are nested below."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.runs.status import RunState
from orchestrator.runs.tracked_run import TrackingRequest, default_uri, open_run
from orchestrator.support.errors import ServiceError
from orchestrator.sweeps.design.sweep_record import SweepRecord
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from train_jobs.artifacts.files import write_text
from train_jobs.config.reported import flatten

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

NESTED = "mlflow.parentRunId"
WARM_START = "orchestrator.warm_start"
DECISION = "orchestrator.decision"
STATUS = {RunState.COMPLETED: "FINISHED", RunState.FAILED: "FAILED"}  # cancelled and preempted: KILLED
LEFT_OUT = ("trial", "recipe", "kind")  # of the sweep: the runs have the trial's settings


class ParentRun:
    """The parent of a sweep's runs; never opened where the backend itself keeps MLflow's runs.

    Args:
        folder: of the sweep; tracking.json in it says to the mirror which MLflow run it is.
        record: what was asked for.
        home: the home folder.
    """

    def __init__(self, folder: SweepFolder, record: SweepRecord, home: Path) -> None:
        self._folder, self._record = folder, record
        tracking = record.trial["tracking"]
        self._uri = str(tracking["uri"] or default_uri(home))
        self._experiment = str(tracking["experiment"])
        self._run_id: str | None = None

    def open(self, run_id: str | None) -> str | None:
        """Opens it, or sets it going again; returns its id.

        Raises:
            ServiceError: MLflow refused.
        """
        told = {key: value for key, value in self._record.sweep.items() if key not in LEFT_OUT}
        request = TrackingRequest(
            uri=self._uri,
            experiment=self._experiment,
            run_name=self._record.name,
            params=flatten(told),
            tags={**self._told, "orchestrator.snapshot": self._record.snapshot},
            run_id=run_id,
        )
        self._run_id = open_run(request)
        write_text(self._tracking_file, json.dumps({"tracking_uri": self._uri, "run_id": self._run_id}))
        return self._run_id

    def tags(self) -> dict[str, str]:
        """Of each trial's run."""
        nested = {NESTED: self._run_id} if self._run_id else {}
        return {**self._told, **nested}

    @property
    def _told(self) -> dict[str, str]:
        begun = "; ".join(earlier.text for earlier in self._record.earlier)
        return {"orchestrator.sweep": self._record.name, **({WARM_START: begun} if begun else {})}

    def note(self, run_id: str | None, decision: str) -> None:
        """Puts the decision that stopped a trial at its run; failing at it fails nothing else."""
        if run_id is not None and self._run_id is not None:
            self._tell(lambda client: client.set_tag(run_id, DECISION, decision))

    def end(self, state: RunState) -> None:
        """Copies metrics and decisions and ends it truthfully; failing at it fails nothing else."""
        run_id, decisions = self._run_id, self._folder.decided
        if run_id is None:
            return
        if decisions.exists():
            self._tell(lambda client: client.log_artifact(run_id, str(decisions)))
        command = [sys.executable, "-m", "train_jobs.tools.mirror", str(self._folder.metrics)]
        environ: dict[str, Any] = {
            **os.environ,
            "ORCHESTRATOR_TRACKING": str(self._tracking_file),
            "MLFLOW_TRACKING_URI": self._uri,
            "MLFLOW_EXPERIMENT_NAME": self._experiment,
        }
        subprocess.run([*command, "--status", STATUS.get(state, "KILLED")], env=environ, check=False)

    def _tell(self, what: Callable[[MlflowClient], None]) -> None:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        try:
            what(MlflowClient(tracking_uri=self._uri))
        except (MlflowException, OSError) as problem:
            print(ServiceError("MLflow did not take a decision", facts={"says": problem}), file=sys.stderr, flush=True)

    @property
    def _tracking_file(self) -> Path:
        return self._folder.path / "tracking.json"
