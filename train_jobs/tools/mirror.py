"""Mirrors of metrics.jsonl: MLflow, and TensorBoard on request. The file is the source of truth for both.

The MLflow mirror is a thread of rank 0 while the job runs. After the job it runs again as a process, which copies the
remaining metrics of a killed job and ends the run with its status:

    python -m train_jobs.tools.mirror RUN/outputs/metrics.jsonl --status KILLED

It is idempotent by (key, step): a value that MLflow already has is not logged again, so a resumed run may repeat steps.

The environment names the run. MLFLOW_TRACKING_URI and MLFLOW_RUN_ID are set by a platform that opens and ends the run
itself. ORCHESTRATOR_TRACKING is a JSON file {tracking_uri, run_id} that may appear while the job runs; with it, a
completed job ends its run and writes mirrored.json next to the metrics.

The event file for `tensorboard --logdir OUTPUT/tensorboard` is rewritten from metrics.jsonl at each start of a job, so
a step that a resumed run repeats occurs in it once. It needs tensorboardX, but neither TensorFlow nor TensorBoard.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_jobs.artifacts.files import write_text
from train_jobs.artifacts.host import disable_telemetry
from train_jobs.artifacts.lineage import LINEAGE_FILE, read_lineage
from train_jobs.config import Config, SpecError, UserError, in_shell
from train_jobs.config.reported import batches, flatten
from train_jobs.engine.reporting.metrics import SinkThread, read_reports

BATCH = 1000  # MLflow's limit of metrics per request
SERVICE = 7  # exit code: the tracking server failed, not the job
FILE_VARIABLE = "ORCHESTRATOR_TRACKING"
MIRRORED_FILE = "mirrored.json"
STATUSES = ("FINISHED", "FAILED", "KILLED")
LINEAGE_TAG = "orchestrator.lineage"
NOTHING: Mapping[str, str] = {}
EVENTS = "events.out.tfevents.*"  # names of event files, as TensorBoard looks for them


@dataclass(frozen=True)
class Destination:
    """An MLflow run."""

    tracking_uri: str
    """URI of the tracking server."""
    run_id: str
    """Id of the run."""


def destination(environ: Mapping[str, str]) -> Destination | None:
    """Return the MLflow run that the environment names; None without one, or while its file does not exist.

    Args:
        environ: environment variables.
    """
    if file := environ.get(FILE_VARIABLE):
        try:
            found = json.loads(Path(file).read_text())
        except FileNotFoundError:
            return None
        return Destination(found["tracking_uri"], found["run_id"])
    uri, run_id = environ.get("MLFLOW_TRACKING_URI"), environ.get("MLFLOW_RUN_ID")
    return Destination(uri, run_id) if uri and run_id else None


class Mirror:
    """A copy of a metrics file in an MLflow run.

    Args:
        metrics_file: metrics.jsonl of a job.
        to: MLflow run.
        parameters: configuration of the job to log; empty if the run already has it.
    """

    def __init__(self, metrics_file: Path, to: Destination, parameters: Mapping[str, str] = NOTHING) -> None:
        disable_telemetry()
        # Importing mlflow takes two seconds, and a job without a tracking server does not need it.
        from mlflow.tracking import MlflowClient

        self._file = metrics_file
        self._run_id = to.run_id
        self._client: Any = MlflowClient(tracking_uri=to.tracking_uri)
        self._mirrored: dict[str, set[int]] = {}
        self._offset = 0
        self._log(parameters)

    def _log(self, parameters: Mapping[str, str]) -> None:
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        # MLflow rejects a changed parameter, and Azure limits their number. Metrics must be mirrored nevertheless.
        try:
            for batch in batches(parameters):
                self._client.log_batch(self._run_id, params=[Param(name, value) for name, value in batch.items()])
        except MlflowException as problem:
            print(f"warning: MLflow rejected some parameters: {problem}", file=sys.stderr)

    def catch_up(self) -> int:
        """Copy all values that MLflow lacks; return their number."""
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
        # Only after all requests succeeded: after an error, the next call reads the same reports again.
        self._offset = seen
        return len(fresh)

    def end(self, status: str) -> None:
        """End the run and write mirrored.json, which records the mirrored bytes of the file.

        Args:
            status: FINISHED, FAILED or KILLED.
        """
        self._tag_lineage()
        self._client.set_terminated(self._run_id, status)
        mirrored = {"run_id": self._run_id, "status": status, "bytes": self._offset}
        write_text(self._file.with_name(MIRRORED_FILE), json.dumps(mirrored))

    def _tag_lineage(self) -> None:
        """Tag the run with the hash of the lineage next to the metrics, if it exists and verifies."""
        try:
            lineage = read_lineage(self._file.with_name(LINEAGE_FILE))
        except UserError as problem:
            print(problem, file=sys.stderr)
            return
        if lineage is not None:
            self._client.set_tag(self._run_id, LINEAGE_TAG, lineage.head.hash)

    def _steps_of(self, key: str) -> set[int]:
        # MLflow would store a repeated (key, step) as a second value, so the existing steps are read once per key.
        if key not in self._mirrored:
            history = self._client.get_metric_history(self._run_id, key)
            self._mirrored[key] = {metric.step for metric in history}
        return self._mirrored[key]


class MirrorThread(SinkThread[Mirror]):
    """A thread that mirrors metrics to MLflow while the job trains.

    Args:
        metrics_file: metrics.jsonl of the job.
        config: configuration to log to a run that the platform opened. None: log none.
        every_seconds: interval between copies.
    """

    def __init__(self, metrics_file: Path, config: Config | None = None, *, every_seconds: float = 5.0) -> None:
        parameters = flatten(config.model_dump(mode="json")) if config is not None else NOTHING
        super().__init__(
            "mlflow-mirror",
            lambda: from_environment(metrics_file, parameters),
            failure=f"cannot reach MLflow, metrics are kept in {metrics_file}",
            every_seconds=every_seconds,
        )
        self._file = metrics_file

    def start(self) -> None:
        """Start mirroring if the environment names an MLflow run or the file that will name one."""
        self._file.with_name(MIRRORED_FILE).unlink(missing_ok=True)
        if os.environ.get(FILE_VARIABLE) or destination(os.environ):
            super().start()

    def close(self, *, completed: bool = False, timeout: float = 60.0) -> None:
        """Copy the remaining metrics and stop; end the run of a completed job unless the platform does.

        Args:
            completed: whether the job completed.
            timeout: maximum seconds to wait.
        """
        ends = completed and bool(os.environ.get(FILE_VARIABLE))
        self.stop(timeout, finish=(lambda mirror: mirror.end("FINISHED")) if ends else None)


def from_environment(metrics_file: Path, parameters: Mapping[str, str]) -> Mirror | None:
    """Return a mirror to the MLflow run that the environment names; None while it names none.

    Args:
        metrics_file: metrics.jsonl of a job.
        parameters: configuration of the job, logged only to a run that the platform opened; any other already has it.
    """
    found = destination(os.environ)
    if found is None:
        return None
    return Mirror(metrics_file, found, NOTHING if os.environ.get(FILE_VARIABLE) else parameters)


def require_tensorboard() -> None:
    """Require the package tensorboardX.

    Raises:
        SpecError: the package is not installed.
    """
    if importlib.util.find_spec("tensorboardX") is None:
        raise SpecError(
            "cannot write event files for metrics.tensorboard: tensorboardX is not installed",
            fix="pip install tensorboardX, or --set metrics.tensorboard=false",
        )


class TensorBoard:
    """A copy of a metrics file as an event file of TensorBoard, which replaces earlier ones.

    Args:
        metrics_file: metrics.jsonl of a job.
        folder: folder of the event file.
    """

    def __init__(self, metrics_file: Path, folder: Path) -> None:
        # An optional package, which takes a second to import.
        from tensorboardX.proto.event_pb2 import Event

        folder.mkdir(exist_ok=True)
        for earlier in folder.glob(EVENTS):
            earlier.unlink()
        now = time.time()
        self._metrics, self._offset = metrics_file, 0
        self._events = folder / EVENTS.replace("*", f"{int(now)}.{socket.gethostname()}")
        self._events.write_bytes(record(Event(wall_time=now, file_version="brain.Event:2").SerializeToString()))

    def catch_up(self) -> int:
        """Copy new reports; return the number of values copied."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values, records = 0, []
        for behind, report in read_reports(self._metrics, self._offset):
            metrics = [Summary.Value(tag=name, simple_value=value) for name, value in report["metrics"].items()]
            event = Event(wall_time=report["time"], step=report["step"], summary=Summary(value=metrics))
            records.append(record(event.SerializeToString()))
            values += len(metrics)
            self._offset = behind
        if records:
            with self._events.open("ab") as stream:
                stream.write(b"".join(records))
        return values


def record(data: bytes) -> bytes:
    """Return data framed as a TFRecord: length, checksum of the length, data, checksum of the data."""
    from tensorboardX.record_writer import masked_crc32c

    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


class TensorBoardThread(SinkThread[TensorBoard]):
    """A thread that writes the event file while the job trains.

    Args:
        metrics_file: see `TensorBoard`.
        folder: see `TensorBoard`.
        on: value of `metrics.tensorboard`.
        every_seconds: interval between copies.
    """

    def __init__(self, metrics_file: Path, folder: Path, *, on: bool, every_seconds: float = 5.0) -> None:
        super().__init__(
            "tensorboard",
            lambda: TensorBoard(metrics_file, folder),
            failure=f"cannot write the event file, metrics are kept in {metrics_file}",
            every_seconds=every_seconds,
        )
        self._on = on

    def start(self) -> None:
        """Start if `metrics.tensorboard` is set."""
        if self._on:
            super().start()


def main(argv: list[str] | None = None) -> int:
    """Copy the remaining metrics of a file, end the run if a status is given, and return an exit code."""
    parser = argparse.ArgumentParser(prog="train_jobs.tools.mirror", description="Copy metrics.jsonl to MLflow.")
    parser.add_argument("metrics", type=Path, help="the metrics.jsonl of a job")
    parser.add_argument("--status", choices=STATUSES, help="end the run with this status")
    arguments = parser.parse_args(argv)
    to = destination(os.environ)
    if to is None:
        missing = [name for name in ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI") if not os.environ.get(name)]
        print(f"error[usage]: unknown MLflow run: {' and '.join(missing)} not set", file=sys.stderr)
        return 2
    try:
        mirror = Mirror(arguments.metrics, to)
        mirror.catch_up()
        if arguments.status:
            mirror.end(arguments.status)
    except Exception as problem:  # MLflow raises what its stores and the network raise
        print(f"error[service]: cannot reach MLflow\n  where  {to.tracking_uri}\n  reason {problem}", file=sys.stderr)
        print(f"  fix    python -m train_jobs.tools.mirror {in_shell(arguments.metrics)}, once it is", file=sys.stderr)
        return SERVICE
    return 0


if __name__ == "__main__":
    sys.exit(main())
