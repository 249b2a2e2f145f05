"""A sweep in MLflow: a run that the runs of its trials are nested below."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from orchestrator.errors import ServiceError
from orchestrator.runs import RunState
from orchestrator.specs.azure import AZURE
from orchestrator.sweeps.folder import SweepFolder, SweepRecord
from orchestrator.tracking import TrackingRequest, default_uri, flatten, open_run
from train_jobs.config.files import write_text

NESTED = "mlflow.parentRunId"
DECISION = "orchestrator.decision"
STATUS = {RunState.COMPLETED: "FINISHED", RunState.FAILED: "FAILED"}  # cancelled and preempted: KILLED
LEFT_OUT = ("trial", "recipe", "kind")  # of the sweep: the runs have the trial's settings


class Parent:
    """The parent of a sweep's runs. On Azure, where the workspace keeps MLflow's runs, there is none.

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
        if self._record.trial["backend"] == AZURE:
            return None
        told = {key: value for key, value in self._record.sweep.items() if key not in LEFT_OUT}
        request = TrackingRequest(
            uri=self._uri,
            experiment=self._experiment,
            run_name=self._record.name,
            params=flatten(told),
            tags={"orchestrator.sweep": self._record.name, "orchestrator.snapshot": self._record.snapshot},
            run_id=run_id,
        )
        self._run_id = open_run(request)
        write_text(self._tracking_file, json.dumps({"tracking_uri": self._uri, "run_id": self._run_id}))
        return self._run_id

    def tags(self) -> dict[str, str]:
        """Of each trial's run."""
        nested = {NESTED: self._run_id} if self._run_id else {}
        return {"orchestrator.sweep": self._record.name, **nested}

    def note(self, run_id: str | None, decision: str) -> None:
        """Puts the decision that stopped a trial at its run; failing at it fails nothing else."""
        if run_id is None or self._run_id is None:
            return
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        try:
            MlflowClient(tracking_uri=self._uri).set_tag(run_id, DECISION, decision)
        except MlflowException as problem:
            print(ServiceError("MLflow did not take a decision", facts={"says": problem}), file=sys.stderr, flush=True)

    def end(self, state: RunState) -> None:
        """Copies metrics.jsonl and ends it truthfully; failing at it fails nothing else."""
        if self._run_id is None:
            return
        command = [sys.executable, "-m", "train_jobs.mirror", str(self._folder.metrics)]
        environ: dict[str, Any] = {
            **os.environ,
            "ORCHESTRATOR_TRACKING": str(self._tracking_file),
            "MLFLOW_TRACKING_URI": self._uri,
            "MLFLOW_EXPERIMENT_NAME": self._experiment,
        }
        subprocess.run([*command, "--status", STATUS.get(state, "KILLED")], env=environ, check=False)

    @property
    def _tracking_file(self) -> Path:
        return self._folder.path / "tracking.json"
