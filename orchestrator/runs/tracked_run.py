"""The MLflow store and the MLflow run, created before a job starts.

MLflow takes seconds to import, so this module runs as a process of its own:

    python -m orchestrator.runs.tracked_run < request.json

It prints the run's id. If several processes open a missing SQLite file together, each tries to create its tables, and
the file stays broken (seen with MLflow 3.17). Therefore it is created here, under a lock, before others open it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from orchestrator.support.errors import ServiceError
from train_jobs.artifacts.files import hold
from train_jobs.config.fields import Config
from train_jobs.config.reported import batches

SQLITE = "sqlite:///"


class TrackingRequest(Config):
    """The MLflow run that a job reports to."""

    uri: str
    """Tracking URI; an SQLite file by absolute path."""
    experiment: str
    """Experiment name; created if missing."""
    run_name: str
    """The run's name."""
    params: dict[str, str]
    """Parameters under their dotted names."""
    tags: dict[str, str]
    """Tags."""
    run_id: str | None = None
    """An existing MLflow run to reopen, instead of a new one."""


def default_uri(home: Path) -> str:
    """Return the URI of the store in the home folder."""
    return f"{SQLITE}{home / 'mlflow.db'}"


class Opening:
    """A process that creates store, experiment and run, or reopens an existing run, while the job starts.

    Args:
        request: the MLflow run.
    """

    def __init__(self, request: TrackingRequest) -> None:
        self._uri = request.uri
        self._process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.runs.tracked_run"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "GIT_PYTHON_REFRESH": "quiet"},  # MLflow imports GitPython, which warns without git
        )
        self._answer: tuple[str, str] | None = None
        assert self._process.stdin is not None
        self._process.stdin.write(request.model_dump_json())
        self._process.stdin.close()
        self._process.stdin = None  # communicate() would flush the closed stream again, and fail

    @property
    def done(self) -> bool:
        """Whether the process has finished."""
        return self._process.poll() is not None

    def wait(self) -> None:
        """Wait until the process has finished."""
        self._answer = self._answer or self._process.communicate()

    def result(self) -> str:
        """Return the run's id; wait for it.

        Raises:
            ServiceError: MLflow refused; with its message.
        """
        self.wait()
        assert self._answer is not None
        out, err = self._answer
        if self._process.returncode != 0:
            # of a traceback, the last line has the exception
            reason = (err.strip() or "no message").splitlines()[-1]
            raise ServiceError(
                "cannot open an MLflow run", facts={"where": self._uri, "reason": reason}, fix="--set tracking.uri=URI"
            )
        # the last line, in case a library prints to stdout too
        return str(json.loads(out.strip().splitlines()[-1])["run_id"])

    def warn(self) -> None:
        """Print the error that `result` would raise, if there is one."""
        try:
            self.result()
        except ServiceError as problem:
            print(f"warning: {problem}", file=sys.stderr, flush=True)


def open_run(request: TrackingRequest) -> str:
    """Create store, experiment and run, or reopen an existing run; return the run's id.

    Raises:
        ServiceError: MLflow refused; with its message.
    """
    return Opening(request).result()


def _make_run(request: TrackingRequest) -> str:
    from mlflow.entities import Param, RunTag
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=request.uri)
    if request.run_id is not None:
        # a restart reports to the same MLflow run; parameters are logged once, since MLflow refuses to change them
        client.update_run(request.run_id, status="RUNNING")
        return request.run_id
    run_id = str(client.create_run(_experiment_id(client, request), run_name=request.run_name).info.run_id)
    for batch in batches(request.params):  # MLflow accepts at most 100 parameters in one request
        client.log_batch(run_id, params=[Param(name, value) for name, value in batch.items()])
    client.log_batch(run_id, tags=[RunTag(name, value) for name, value in request.tags.items()])
    return run_id


def _experiment_id(client: Any, request: TrackingRequest) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(request.experiment)
    if found is None:
        # MLflow would put artifacts below the working folder, which differs from process to process
        database = request.uri.removeprefix(SQLITE)
        place = None if database == request.uri else (Path(database).parent / "artifacts").as_uri()
        try:
            return str(client.create_experiment(request.experiment, artifact_location=place))
        except MlflowException:  # another process has just created it
            found = client.get_experiment_by_name(request.experiment)
            if found is None:
                raise
    return str(found.experiment_id)


def main() -> int:
    """Read a request from stdin and print the run's id."""
    from mlflow.tracking import MlflowClient

    request = TrackingRequest.model_validate_json(sys.stdin.read())
    if request.uri.startswith(SQLITE):  # create a missing store and its tables, one process at a time
        path = Path(request.uri.removeprefix(SQLITE))
        path.parent.mkdir(parents=True, exist_ok=True)
        with hold(path.with_suffix(".lock")):
            MlflowClient(tracking_uri=request.uri).search_experiments(max_results=1)
    print(json.dumps({"run_id": _make_run(request)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
