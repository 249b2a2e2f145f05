"""Copies metrics.jsonl to MLflow, so that a metric has one path wherever the job runs.

As a thread of rank 0 while the job runs, and once more as a process after its end, to catch up on what a killed job
left and to end the run truthfully:

    python -m train_jobs.tools.mirror RUN/outputs/metrics.jsonl --status KILLED

Idempotent by (key, step): what MLflow holds is never logged again, so that a resumed run may repeat steps.

Which run, tells the environment: MLFLOW_TRACKING_URI and MLFLOW_RUN_ID, as on a platform that opens and ends the run
itself; or ORCHESTRATOR_TRACKING, a JSON file {tracking_uri, run_id} that may appear while the job runs. Whoever sets
that one lets a job that completes end its run, which leaves word of it beside the metrics: mirrored.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_jobs.artifacts.files import write_text
from train_jobs.artifacts.lineage import LINEAGE_FILE, read_lineage
from train_jobs.config import UserError
from train_jobs.config.base import Config
from train_jobs.config.names import in_shell
from train_jobs.config.reported import batches, flatten
from train_jobs.config.telemetry import no_telemetry
from train_jobs.engine.reporting.metrics import read_reports
from train_jobs.engine.reporting.sinks import SinkThread

BATCH = 1000  # MLflow takes no more metrics in one request
SERVICE = 7  # exit code: the tracking server failed, not the job
FILE_VARIABLE = "ORCHESTRATOR_TRACKING"
WORD = "mirrored.json"
STATUSES = ("FINISHED", "FAILED", "KILLED")
LINEAGE_TAG = "orchestrator.lineage"
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class Destination:
    """An MLflow run."""

    tracking_uri: str
    run_id: str


def announced(environ: Mapping[str, str]) -> bool:
    """True if the environment names an MLflow run, or a file that will."""
    return bool(environ.get(FILE_VARIABLE) or (environ.get("MLFLOW_RUN_ID") and environ.get("MLFLOW_TRACKING_URI")))


def destination(environ: Mapping[str, str]) -> Destination | None:
    """The MLflow run that the environment names, or None as long as its file is not there."""
    if file := environ.get(FILE_VARIABLE):
        try:
            found = json.loads(Path(file).read_text())
        except FileNotFoundError:
            return None
        return Destination(found["tracking_uri"], found["run_id"])
    if environ.get("MLFLOW_RUN_ID") and environ.get("MLFLOW_TRACKING_URI"):
        return Destination(environ["MLFLOW_TRACKING_URI"], environ["MLFLOW_RUN_ID"])
    return None


class Mirror:
    """One metrics file and the MLflow run that it is copied to.

    Args:
        metrics_file: the metrics.jsonl of a job.
        to: the run.
        parameters: what the run is told of the job's configuration; nothing where whoever opened it has done so.
    """

    def __init__(self, metrics_file: Path, to: Destination, parameters: Mapping[str, str] = NOTHING) -> None:
        no_telemetry()
        # mlflow takes two seconds to import and is not needed by a job without a tracking server
        from mlflow.tracking import MlflowClient

        self._file = metrics_file
        self._run_id = to.run_id
        self._client: Any = MlflowClient(tracking_uri=to.tracking_uri)
        self._mirrored: dict[str, set[int]] = {}
        self._offset = 0
        self._tell(parameters)

    def _tell(self, parameters: Mapping[str, str]) -> None:
        """Logs parameters. MLflow changes none that it has, and Azure may take fewer: neither is worth a metric."""
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        try:
            for batch in batches(parameters):
                self._client.log_batch(self._run_id, params=[Param(name, value) for name, value in batch.items()])
        except MlflowException as problem:
            print(f"warning: MLflow did not take all parameters: {problem}", file=sys.stderr)

    def catch_up(self) -> int:
        """Copies what MLflow does not hold yet; returns how many values that were."""
        from mlflow.entities import Metric

        if not self._file.exists():
            return 0
        fresh = []
        seen = self._offset
        for behind, report in read_reports(self._file, self._offset):
            seen = behind
            step, stamp = int(report["step"]), int(report["time"] * 1000)
            for key, value in report["metrics"].items():
                steps = self._steps_of(key)
                if step not in steps:
                    steps.add(step)
                    fresh.append(Metric(key, float(value), stamp, step))
        for start in range(0, len(fresh), BATCH):
            self._client.log_batch(self._run_id, metrics=fresh[start : start + BATCH])
        self._offset = seen
        return len(fresh)

    def end(self, status: str) -> None:
        """Ends the run as FINISHED, FAILED or KILLED, and leaves word of how much it holds."""
        self._tag_lineage()
        self._client.set_terminated(self._run_id, status)
        word = {"run_id": self._run_id, "status": status, "bytes": self._offset}
        write_text(self._file.with_name(WORD), json.dumps(word))

    def _tag_lineage(self) -> None:
        """Tags the run with the hash of its lineage, which lies beside the metrics, if it is there and verifies."""
        try:
            lineage = read_lineage(self._file.with_name(LINEAGE_FILE))
        except UserError as problem:
            print(problem, file=sys.stderr)
            return
        if lineage is not None:
            self._client.set_tag(self._run_id, LINEAGE_TAG, lineage.head.hash)

    def _steps_of(self, key: str) -> set[int]:
        if key not in self._mirrored:
            history = self._client.get_metric_history(self._run_id, key)
            self._mirrored[key] = {metric.step for metric in history}
        return self._mirrored[key]


class MirrorThread(SinkThread[Mirror]):
    """Mirrors in the background while the job trains.

    Args:
        metrics_file: the metrics.jsonl of the job.
        config: its configuration, which a run that the platform opened is told of. None: nobody is.
        every_seconds: how often it catches up.
    """

    def __init__(self, metrics_file: Path, config: Config | None = None, *, every_seconds: float = 5.0) -> None:
        parameters = flatten(config.model_dump(mode="json")) if config is not None else NOTHING
        super().__init__(
            "mlflow-mirror",
            lambda: from_environment(metrics_file, parameters),
            trouble=f"MLflow is not reachable, metrics wait in {metrics_file}",
            every_seconds=every_seconds,
        )
        self._file = metrics_file

    def start(self) -> None:
        """Starts mirroring if there is or will be an MLflow run; does nothing otherwise."""
        self._file.with_name(WORD).unlink(missing_ok=True)
        if announced(os.environ):
            super().start()

    def close(self, *, completed: bool = False, timeout: float = 60.0) -> None:
        """Copies the rest and stops; ends the run of a job that completed, if that is the job's to do."""
        ends = completed and bool(os.environ.get(FILE_VARIABLE))
        self.stop(timeout, finish=(lambda mirror: mirror.end("FINISHED")) if ends else None)


def from_environment(metrics_file: Path, parameters: Mapping[str, str]) -> Mirror | None:
    """The mirror of `metrics_file` to the run that the environment names; None as long as it names none.

    Args:
        metrics_file: the metrics.jsonl of a job.
        parameters: of the job, told to a run that the platform opened: any other has been told by who opened it.
    """
    found = destination(os.environ)
    if found is None:
        return None
    return Mirror(metrics_file, found, NOTHING if os.environ.get(FILE_VARIABLE) else parameters)


def main(argv: list[str] | None = None) -> int:
    """Catches up, and ends the run if a status is given."""
    parser = argparse.ArgumentParser(prog="train_jobs.tools.mirror", description="Copy metrics.jsonl to MLflow.")
    parser.add_argument("metrics", type=Path, help="the metrics.jsonl of a job")
    parser.add_argument("--status", choices=STATUSES, help="end the run with this status")
    arguments = parser.parse_args(argv)
    to = destination(os.environ)
    if to is None:
        missing = [name for name in ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI") if not os.environ.get(name)]
        print(f"error[usage]: {' and '.join(missing)} not set: which MLflow run is it?", file=sys.stderr)
        return 2
    try:
        mirror = Mirror(arguments.metrics, to)
        mirror.catch_up()
        if arguments.status:
            mirror.end(arguments.status)
    except Exception as problem:  # MLflow raises what its stores and the network raise
        print(
            f"error[service]: MLflow is not reachable\n  where  {to.tracking_uri}\n  says   {problem}", file=sys.stderr
        )
        print(f"  fix    python -m train_jobs.tools.mirror {in_shell(arguments.metrics)}, once it is", file=sys.stderr)
        return SERVICE
    return 0


if __name__ == "__main__":
    sys.exit(main())
