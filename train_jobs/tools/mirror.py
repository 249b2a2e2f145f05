"""Mirrors of metrics.jsonl: MLflow, and TensorBoard on request. The file is the source of truth for both.

The MLflow mirror is a thread of rank 0 while the job runs. A store that is missing, broken or away delays the job by
at most a second at its end: what the mirror could not copy, `orchestrator mlflow sync` copies later. A job that ends
while its thread imports MLflow also waits for the rest of the import, some seconds whatever the store does. On a
platform that opens the run, nothing copies the rest later, so the job waits at most a minute.

The environment names the run. MLFLOW_TRACKING_URI and MLFLOW_RUN_ID are set by a platform that opens and ends the run
itself. ORCHESTRATOR_TRACKING is a JSON file {tracking_uri, run_id} that may appear while the job runs; with it, a
completed job ends its run and writes mirrored.json next to the metrics.

The event file for `tensorboard --logdir OUTPUT/tensorboard` is rewritten from metrics.jsonl at each start of a job, so
a step that a resumed run repeats occurs in it once. It needs tensorboardX, but neither TensorFlow nor TensorBoard.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.artifacts.tracking.mlflow_copy import MIRRORED_FILE, NOTHING, Destination, Mirror, flatten
from train_jobs.config import Config, SpecError
from train_jobs.engine.reporting.metrics import SinkThread

FILE_VARIABLE = "ORCHESTRATOR_TRACKING"
EVENTS = "events.out.tfevents.*"  # names of event files, as TensorBoard looks for them
STORE_SECONDS = 1.0  # a sick store must not delay the end of a job; `orchestrator mlflow sync` copies the rest
PLATFORM_SECONDS = 60.0  # on a platform that opens the run, nothing copies the rest later
IMPORTING = threading.Lock()


def destination(environ: Mapping[str, str]) -> Destination | None:
    """Return the MLflow run that the environment names; None without one, or while its file does not exist.

    Args:
        environ: environment variables.
    """
    if file := environ.get(FILE_VARIABLE):
        try:
            found = json.loads(Path(file).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return Destination(found["tracking_uri"], found["run_id"])
    uri, run_id = environ.get("MLFLOW_TRACKING_URI"), environ.get("MLFLOW_RUN_ID")
    return Destination(uri, run_id) if uri and run_id else None


class MirrorThread(SinkThread[Mirror]):
    """A thread that mirrors metrics to MLflow while the job trains.

    Args:
        metrics_file: metrics.jsonl of the job.
        config: configuration to log to a run that the platform opened. None: log none.
        every_seconds: interval between copies.
    """

    def __init__(self, metrics_file: Path, config: Config | None = None, *, every_seconds: float = 5.0) -> None:
        parameters = flatten(config.model_dump(mode="json")) if config is not None else NOTHING
        file = os.environ.get(FILE_VARIABLE)
        repair = f" (orchestrator mlflow sync {Path(file).parent.name} copies them)" if file else ""
        super().__init__(
            "mlflow-mirror",
            lambda: from_environment(metrics_file, parameters),
            failure=f"the copy in MLflow is behind, metrics are kept in {metrics_file}{repair}",
            every_seconds=every_seconds,
        )
        self._file = metrics_file

    def start(self) -> None:
        """Start mirroring if the environment names an MLflow run or the file that will name one."""
        self._file.with_name(MIRRORED_FILE).unlink(missing_ok=True)
        if os.environ.get(FILE_VARIABLE) or destination(os.environ):
            super().start()

    def close(self, *, completed: bool = False) -> None:
        """Copy the remaining metrics and stop; end the run of a completed job unless the platform does.

        Args:
            completed: whether the job completed.
        """
        ours = bool(os.environ.get(FILE_VARIABLE))
        self.stop(
            STORE_SECONDS if ours else PLATFORM_SECONDS,
            finish=(lambda mirror: mirror.end("FINISHED")) if ours and completed else None,
            busy=IMPORTING.locked,
        )


def from_environment(metrics_file: Path, parameters: Mapping[str, str]) -> Mirror | None:
    """Return a mirror to the MLflow run that the environment names; None while it names none.

    Args:
        metrics_file: metrics.jsonl of a job.
        parameters: configuration of the job, logged only to a run that the platform opened; any other already has it.
    """
    found = destination(os.environ)
    if found is None:
        return None
    with IMPORTING:  # takes seconds, whatever the store does
        import mlflow.tracking  # noqa: F401
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
