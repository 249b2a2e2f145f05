"""Copies metrics.jsonl to an event file for TensorBoard, on request:

    tensorboard --logdir OUTPUT/tensorboard

The event file is made anew from the whole of metrics.jsonl at each start of a job, so that a step that a resumed run
makes again is there once. tensorboardX has what its form is made of; neither TensorFlow nor TensorBoard is needed.
"""

from __future__ import annotations

import importlib.util
import socket
import struct
import time
from pathlib import Path

from train_jobs.config import SpecError
from train_jobs.engine.reporting.metrics import read_reports
from train_jobs.engine.reporting.sinks import SinkThread

EVENTS = "events.out.tfevents.*"


def require_tensorboard() -> None:
    """Refuses a job that could not write what it was asked for.

    Raises:
        SpecError: tensorboardX is not installed.
    """
    if importlib.util.find_spec("tensorboardX") is None:
        raise SpecError(
            "metrics.tensorboard is on, and the package tensorboardX is not installed",
            fix="pip install tensorboardX, or --set metrics.tensorboard=false",
        )


class TensorBoard:
    """One metrics file and the event file that it is copied to, which takes the place of earlier ones.

    Args:
        metrics_file: what is read.
        folder: what TensorBoard is pointed at.
    """

    def __init__(self, metrics_file: Path, folder: Path) -> None:
        # a second to import, and an optional package
        from tensorboardX.proto.event_pb2 import Event

        folder.mkdir(exist_ok=True)
        for earlier in folder.glob(EVENTS):
            earlier.unlink()
        now = time.time()
        self._metrics, self._offset = metrics_file, 0
        self._events = folder / EVENTS.replace("*", f"{int(now)}.{socket.gethostname()}")
        self._events.write_bytes(record(Event(wall_time=now, file_version="brain.Event:2").SerializeToString()))

    def catch_up(self) -> int:
        """Copies what was reported since; returns how many values that were."""
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
    """`data` as a TFRecord: its length, the checksum of that, itself, its checksum."""
    from tensorboardX.record_writer import masked_crc32c

    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


class TensorBoardThread(SinkThread[TensorBoard]):
    """Writes the event file in the background while the job trains.

    Args:
        metrics_file, folder: as of `TensorBoard`.
        on: whether it was asked for.
    """

    def __init__(self, metrics_file: Path, folder: Path, *, on: bool, every_seconds: float = 5.0) -> None:
        super().__init__(
            "tensorboard",
            lambda: TensorBoard(metrics_file, folder),
            trouble=f"the event file cannot be written, metrics are in {metrics_file}",
            every_seconds=every_seconds,
        )
        self._on = on

    def start(self) -> None:
        """Starts if it was asked for."""
        if self._on:
            super().start()
