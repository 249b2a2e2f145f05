"""The MLflow store and the MLflow run, made before a job starts.

MLflow takes seconds to import, so whoever needs it for a moment runs this module as a process:

    python -m orchestrator.runs.tracked_run < request.json

Prints the run's id. Many processes that meet a missing SQLite file each try to create its tables and leave it broken
for good (seen with MLflow 3.17), so the file is made here, under a lock, before any other process knows of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from orchestrator.support.errors import ServiceError
from train_jobs.artifacts.file_lock import hold
from train_jobs.config.base import Config
from train_jobs.config.reported import batches

SQLITE = "sqlite:///"


class TrackingRequest(Config):
    """The MLflow run that a job shall report to."""

    uri: str
    """Tracking URI; an SQLite file by absolute path."""
    experiment: str
    """Experiment name; made if missing."""
    run_name: str
    """The run's name."""
    params: dict[str, str]
    """Parameters under their dotted names."""
    tags: dict[str, str]
    """Tags."""
    run_id: str | None = None
    """An existing MLflow run to set going again, instead of a new one."""


def default_uri(home: Path) -> str:
    """The store of this user's home folder."""
    return f"{SQLITE}{home / 'mlflow.db'}"


class Opening:
    """Store, experiment and run being made, or an existing run being set going again, by a process of its own."""

    def __init__(self, request: TrackingRequest) -> None:
        self._uri = request.uri
        self._process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.runs.tracked_run"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "GIT_PYTHON_REFRESH": "quiet"},
        )
        self._answer: tuple[str, str] | None = None
        assert self._process.stdin is not None
        self._process.stdin.write(request.model_dump_json())
        self._process.stdin.close()
        self._process.stdin = None  # or communicate() would flush it once more

    @property
    def done(self) -> bool:
        """True once there is a result."""
        return self._process.poll() is not None

    def wait(self) -> None:
        """Waits until there is a result."""
        self._answer = self._answer or self._process.communicate()

    def result(self) -> str:
        """The run's id; waits for it.

        Raises:
            ServiceError: MLflow refused, with its own words.
        """
        self.wait()
        assert self._answer is not None
        out, err = self._answer
        if self._process.returncode != 0:
            words = (err.strip() or "no message").splitlines()[-1]
            raise ServiceError(
                "MLflow could not open a run", facts={"where": self._uri, "says": words}, fix="--set tracking.uri=URI"
            )
        run_id: str = json.loads(out.strip().splitlines()[-1])["run_id"]
        return run_id

    def complain(self) -> None:
        """Prints the error that `result` would raise, if there is one."""
        try:
            self.result()
        except ServiceError as problem:
            print(f"warning: {problem}", file=sys.stderr, flush=True)


def open_run(request: TrackingRequest) -> str:
    """Makes store, experiment and run, or sets an existing run going again; returns the run's id.

    Raises:
        ServiceError: MLflow refused, with its own words.
    """
    return Opening(request).result()


def _make_store(uri: str) -> None:
    """Creates a missing SQLite store and its tables, one process at a time."""
    from mlflow.tracking import MlflowClient

    if not uri.startswith(SQLITE):
        return
    path = Path(uri.removeprefix(SQLITE))
    path.parent.mkdir(parents=True, exist_ok=True)
    with hold(path.with_suffix(".lock")):
        MlflowClient(tracking_uri=uri).search_experiments(max_results=1)


def _make_run(request: TrackingRequest) -> str:
    from mlflow.entities import Param, RunTag
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=request.uri)
    if request.run_id is not None:
        client.update_run(request.run_id, status="RUNNING")
        return request.run_id
    run = client.create_run(_experiment_id(client, request), run_name=request.run_name)
    run_id: str = run.info.run_id
    for batch in batches(request.params):
        client.log_batch(run_id, params=[Param(name, value) for name, value in batch.items()])
    client.log_batch(run_id, tags=[RunTag(name, value) for name, value in request.tags.items()])
    return run_id


def _experiment_id(client: Any, request: TrackingRequest) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(request.experiment)
    if found is None:
        # MLflow would put artifacts under the working folder, which differs from process to process
        place = None
        if request.uri.startswith(SQLITE):
            place = (Path(request.uri.removeprefix(SQLITE)).parent / "artifacts").as_uri()
        try:
            made: str = client.create_experiment(request.experiment, artifact_location=place)
            return made
        except MlflowException:  # another process made it in between
            found = client.get_experiment_by_name(request.experiment)
            if found is None:
                raise
    experiment_id: str = found.experiment_id
    return experiment_id


def main() -> int:
    """Reads a request from stdin, answers with the run's id."""
    request = TrackingRequest.model_validate_json(sys.stdin.read())
    _make_store(request.uri)
    print(json.dumps({"run_id": _make_run(request)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
