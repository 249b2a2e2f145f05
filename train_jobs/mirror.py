"""Copies metrics.jsonl to MLflow, so that a metric has one path wherever the job runs.

As a thread of rank 0 while the job runs, and once more as a process after its end, to catch up on what a killed job
left and to end the run truthfully:

    python -m train_jobs.mirror RUN/outputs/metrics.jsonl --status KILLED

Idempotent by (key, step): what MLflow holds is never logged again, so that a resumed run may repeat steps.
Reads MLFLOW_TRACKING_URI and MLFLOW_RUN_ID, which whoever submitted the job has set.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path
from typing import Any

from train_jobs.config import UserError
from train_jobs.config.lineage import LINEAGE_FILE, read_lineage
from train_jobs.engine.metrics import read_reports

BATCH = 1000  # MLflow takes no more metrics in one request
SERVICE = 7  # exit code: the tracking server failed, not the job
STATUSES = ("FINISHED", "FAILED", "KILLED")
LINEAGE_TAG = "orchestrator.lineage"


class Mirror:
    """One metrics file and the MLflow run that it is copied to."""

    def __init__(self, metrics_file: Path, *, run_id: str, tracking_uri: str) -> None:
        # mlflow takes two seconds to import and is not needed by a job without a tracking server
        from mlflow.tracking import MlflowClient

        self._file = metrics_file
        self._run_id = run_id
        self._client: Any = MlflowClient(tracking_uri=tracking_uri)
        self._mirrored: dict[str, set[int]] = {}
        self._offset = 0

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
        """Ends the run as FINISHED, FAILED or KILLED."""
        self._tag_lineage()
        self._client.set_terminated(self._run_id, status)

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


class MirrorThread:
    """Mirrors in the background while the job trains; a tracking server that fails never stops the job."""

    def __init__(self, metrics_file: Path, *, every_seconds: float = 5.0) -> None:
        self._file = metrics_file
        self._every = every_seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow-mirror", daemon=True)

    def start(self) -> None:
        """Starts mirroring if the environment names an MLflow run; does nothing otherwise."""
        if os.environ.get("MLFLOW_RUN_ID") and os.environ.get("MLFLOW_TRACKING_URI"):
            self._thread.start()

    def close(self, timeout: float = 60.0) -> None:
        """Copies the rest and stops."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _work(self) -> None:
        mirror: Mirror | None = None
        warned = False
        while True:
            last = self._done.wait(self._every)
            try:
                mirror = mirror or from_environment(self._file)
                mirror.catch_up()
                warned = False
            except Exception as problem:  # whatever the store or the network does, training goes on
                mirror = None  # what reached the server is read from it again
                if not warned:
                    print(f"warning: MLflow is not reachable, metrics wait in {self._file}: {problem}", file=sys.stderr)
                warned = True
            if last:
                return


def from_environment(metrics_file: Path) -> Mirror:
    """The mirror of `metrics_file` to the run that the environment names."""
    return Mirror(metrics_file, run_id=os.environ["MLFLOW_RUN_ID"], tracking_uri=os.environ["MLFLOW_TRACKING_URI"])


def main(argv: list[str] | None = None) -> int:
    """Catches up, and ends the run if a status is given."""
    parser = argparse.ArgumentParser(prog="train_jobs.mirror", description="Copy metrics.jsonl to MLflow.")
    parser.add_argument("metrics", type=Path, help="the metrics.jsonl of a job")
    parser.add_argument("--status", choices=STATUSES, help="end the run with this status")
    arguments = parser.parse_args(argv)
    missing = [name for name in ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI") if not os.environ.get(name)]
    if missing:
        print(f"error[usage]: {' and '.join(missing)} not set: which MLflow run is it?", file=sys.stderr)
        return 2
    try:
        mirror = from_environment(arguments.metrics)
        mirror.catch_up()
        if arguments.status:
            mirror.end(arguments.status)
    except Exception as problem:  # MLflow raises what its stores and the network raise
        where = os.environ["MLFLOW_TRACKING_URI"]
        print(f"error[service]: MLflow is not reachable\n  where  {where}\n  says   {problem}", file=sys.stderr)
        print(f"  fix    python -m train_jobs.mirror {arguments.metrics}, once it is", file=sys.stderr)
        return SERVICE
    return 0


if __name__ == "__main__":
    sys.exit(main())
