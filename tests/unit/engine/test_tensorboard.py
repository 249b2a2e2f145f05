"""TensorBoard event files, read back as TFRecord records that each contain an Event."""

from __future__ import annotations

import json
import math
import struct
import sys
import time
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from tests.conftest import tmpfs
from train_jobs.config import SpecError
from train_jobs.engine.reporting.metrics import MetricsLog
from train_jobs.tools.mirror import TensorBoard, TensorBoardThread, require_tensorboard


def events_in(folder: Path) -> list[Event]:
    """Return the events of the single event file; a record is length, checksum, data and checksum."""
    (path,) = folder.iterdir()
    assert path.name.startswith("events.out.tfevents.")
    content, found = path.read_bytes(), []
    while content:
        length, check = struct.unpack("<QI", content[:12])
        assert masked_crc32c(content[:8]) == check
        data, content = content[12 : 12 + length], content[12 + length :]
        assert masked_crc32c(data) == struct.unpack("<I", content[:4])[0]
        content = content[4:]
        found.append(Event.FromString(data))
    assert found.pop(0).file_version == "brain.Event:2"
    return found


def values_of(event: Event) -> dict[str, float]:
    return {value.tag: value.simple_value for value in event.summary.value}


def steps_in(folder: Path, tag: str = "train_loss") -> list[int]:
    return [event.step for event in events_in(folder) for value in event.summary.value if value.tag == tag]


def has_steps(folder: Path, steps: list[int]) -> bool:
    """Return whether the event file, which a thread may be writing at this moment, has exactly `steps`."""
    try:
        return steps_in(folder) == steps
    except (OSError, ValueError, IndexError, struct.error):  # no file yet, or a record that is not whole yet
        return False


def write(path: Path, *steps: int, from_step: int = 0) -> None:
    """Report `steps` like a run that resumes at `from_step`."""
    log = MetricsLog(path)
    log.open(from_step=from_step)
    for step in steps:
        log.report(step, {"train_loss": step / 8, "learning_rate": 0.5})
    log.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tensorboard"


def test_events_contain_each_value_once_with_step_and_time(path: Path, folder: Path) -> None:
    write(path, 2, 4)
    board = TensorBoard(path, folder)
    assert board.catch_up() == 4
    assert board.catch_up() == 0
    write(path, 6, from_step=4)
    assert board.catch_up() == 2
    first, *_ = found = events_in(folder)
    assert [event.step for event in found] == [2, 4, 6]
    assert {value.tag: value.simple_value for value in first.summary.value} == {
        "train_loss": 0.25,
        "learning_rate": 0.5,
    }
    assert first.wall_time == json.loads(path.read_text().splitlines()[0])["time"]


def test_steps_repeated_by_resumed_run_appear_once(path: Path, folder: Path) -> None:
    write(path, 2, 4, 6)
    for _ in range(2):
        TensorBoard(path, folder).catch_up()
        assert steps_in(folder) == [2, 4, 6]
    write(path, 4, 6, 8, from_step=2)
    TensorBoard(path, folder).catch_up()
    assert steps_in(folder) == [2, 4, 6, 8]


def test_events_accept_non_finite_values(path: Path, folder: Path) -> None:
    log = MetricsLog(path)
    log.open(from_step=0)
    log.report(1, {"train_loss": math.nan, "gradient_norm": math.inf})
    log.close()
    board = TensorBoard(path, folder)
    assert board.catch_up() == 2
    (event,) = events_in(folder)
    values = values_of(event)
    assert math.isnan(values["train_loss"])
    assert values["gradient_norm"] == math.inf


def test_thread_mirrors_during_job_rest_at_end(path: Path, folder: Path) -> None:
    write(path, 2)
    thread = TensorBoardThread(path, folder, on=True, every_seconds=0.02)
    thread.start()
    limit = time.monotonic() + 30
    while not has_steps(folder, [2]):
        assert time.monotonic() < limit
        time.sleep(0.02)
    write(path, 4, from_step=2)
    thread.stop()
    assert steps_in(folder) == [2, 4]


def test_event_files_are_not_written_unless_enabled(path: Path, folder: Path) -> None:
    write(path, 2)
    thread = TensorBoardThread(path, folder, on=False, every_seconds=0.01)
    thread.start()
    thread.stop()
    assert not folder.exists()


def test_full_disk_warns_once_and_writes_later(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(path, *range(1, 400))
    with tmpfs(tmp_path / "disk", "64k") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(60 << 10))
        thread = TensorBoardThread(path, disk / "tensorboard", on=True, every_seconds=0.02)
        thread.start()
        shown, limit = "", time.monotonic() + 30
        while "warning" not in shown:
            assert time.monotonic() < limit
            time.sleep(0.02)
            shown += capsys.readouterr().err
        time.sleep(0.2)  # many more rounds fail
        ballast.unlink()
        thread.stop()
        shown += capsys.readouterr().err
        assert shown.count("warning: cannot write the event file") == 1
        assert steps_in(disk / "tensorboard") == list(range(1, 400))


def test_job_without_tensorboard_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require_tensorboard()
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(SpecError, match="tensorboardX is not installed") as caught:
        require_tensorboard()
    assert caught.value.fix is not None
    assert caught.value.fix.startswith("pip install tensorboardX")
