"""The MLflow run of a run: opened beside the job's start, so that nobody waits for it, and ended after its end.

The ranks find it by the file that ORCHESTRATOR_TRACKING names, which is written once the run is open.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.folder.submission import FolderRequest
from orchestrator.runs.status import RunState
from orchestrator.runs.tracked_run import Opening, TrackingRequest
from train_jobs.artifacts.files import write_text
from train_jobs.config.reported import flatten

VARIABLE = "ORCHESTRATOR_TRACKING"
MLFLOW_STATUS = {RunState.COMPLETED: "FINISHED", RunState.FAILED: "FAILED"}  # cancelled and preempted: KILLED


class TrackedRun:
    """One MLflow run over all attempts.

    Args:
        run_id: the MLflow run of earlier attempts; None: there is none yet.
    """

    def __init__(self, run: RunFolder, request: FolderRequest, run_id: str | None) -> None:
        self._run, self._request = run, request
        self._known = run_id is not None
        self.run_id = run_id
        self._opening: Opening | None = None

    def open(self) -> None:
        """Begins to open the run, or to set an earlier one going again."""
        self._announce()
        self._opening = Opening(
            TrackingRequest(
                uri=self._request.tracking_uri,
                experiment=self._request.experiment,
                run_name=self._run.name,
                params=flatten(self._run.read_json("config.json")),
                tags=self._run.read_json("tags.json"),
                run_id=self.run_id,
            )
        )

    def open_now(self) -> None:
        """Opens the run and waits until it is open.

        Raises:
            ServiceError: MLflow refused.
        """
        self.open()
        if self._opening is not None:
            self._opening.wait()
        self.poll()

    def poll(self) -> bool:
        """True once, when a run that there was not before has been opened.

        Raises:
            ServiceError: MLflow refused. Not for a run that it knows already: its metrics can wait in their file.
        """
        if self._opening is None or not self._opening.done:
            return False
        opening, self._opening = self._opening, None
        if self._known:
            opening.complain()
            return False
        self.run_id, self._known = opening.result(), True
        self._announce()
        return True

    def variables(self) -> dict[str, str]:
        """What the ranks' environment says of it."""
        return {
            VARIABLE: str(self._run.tracking_file),
            "MLFLOW_TRACKING_URI": self._request.tracking_uri,
            "MLFLOW_EXPERIMENT_NAME": self._request.experiment,
        }

    def end(self, state: RunState) -> None:
        """Copies what a killed job left and ends the MLflow run truthfully; failing at it fails nothing else.

        A job that completed has done both itself, and left word of it beside its metrics.
        """
        if self._opening is not None:
            self._opening.wait()
            self.poll()
        if self.run_id is None:
            return
        status = MLFLOW_STATUS.get(state, "KILLED")
        if self._run.mirrored() == {"run_id": self.run_id, "status": status, "bytes": _size(self._run)}:
            return
        command = [sys.executable, "-m", "train_jobs.tools.mirror", str(self._run.metrics), "--status", status]
        environ = {**os.environ, **self.variables()}
        with (self._run.logs / "mirror.log").open("ab") as log:
            subprocess.run(command, env=environ, stdout=log, stderr=log, check=False)

    def _announce(self) -> None:
        """Tells the ranks, once there is something to tell."""
        if self.run_id is None:
            self._run.tracking_file.unlink(missing_ok=True)
            return
        found = {"tracking_uri": self._request.tracking_uri, "run_id": self.run_id}
        write_text(self._run.tracking_file, json.dumps(found))


def _size(run: RunFolder) -> int:
    return run.metrics.stat().st_size if run.metrics.exists() else 0
