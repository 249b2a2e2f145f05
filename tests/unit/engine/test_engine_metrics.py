"""metrics.jsonl across crashes and resumes, and the progress line."""

from __future__ import annotations

import io
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.engine.reporting.metrics import MetricsLog, ProgressLine, clock


def write(path: Path, *steps: int, from_step: int = 0) -> None:
    """Report `steps` like a run that starts at `from_step`."""
    log = MetricsLog(path)
    log.open(from_step=from_step)
    for step in steps:
        log.report(step, {"train_loss": step / 8})
    log.close()


def read(path: Path, offset: int = 0) -> list[dict[str, Any]]:
    return [report for _, report in read_reports(path, offset)]


def steps_in(path: Path) -> list[int]:
    return [report["step"] for report in read(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_report_line_has_step_time_and_metrics(path: Path) -> None:
    before = time.time()
    log = MetricsLog(path)
    log.open(from_step=0)
    log.report(3, {"train_loss": 0.1 + 0.2, "train_mlm_loss": float("nan")})
    (line,) = path.read_text().splitlines()  # immediately, not when the file is closed
    report = json.loads(line)
    assert report["step"] == 3
    assert before <= report["time"] <= time.time()
    assert report["metrics"]["train_loss"] == 0.1 + 0.2
    assert report["metrics"]["train_mlm_loss"] != report["metrics"]["train_mlm_loss"]
    log.sync()
    log.close()


def test_process_without_file_reports_nothing(tmp_path: Path) -> None:
    log = MetricsLog(None)
    log.open(from_step=0)
    log.report(1, {"train_loss": 1.0})
    log.sync()
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_resumed_run_truncates_repeated_reports(path: Path) -> None:
    write(path, 2, 4, 4, 6, 8)
    first = path.read_text().splitlines()[0]
    write(path, 6, 8, 10, from_step=4)
    assert steps_in(path) == [2, 4, 4, 6, 8, 10]
    assert path.read_text().splitlines()[0] == first, "times are those of the first report"
    assert [found.name for found in path.parent.iterdir()] == ["metrics.jsonl"]


def test_run_from_step_zero_starts_new_file(path: Path) -> None:
    write(path, 2, 4)
    write(path, 1)
    assert steps_in(path) == [1]


@pytest.mark.parametrize(
    "torn", [b'{"step": 6, "time": 17', b'{"step": 6, "time": 1.5, "metrics": {}', b"\0\0\0\0", b"\xff", b"[" * 100_000]
)
def test_partial_last_line_awaited_then_truncated(path: Path, torn: bytes) -> None:
    write(path, 2, 4)
    path.write_bytes(path.read_bytes() + torn)
    assert steps_in(path) == [2, 4]
    write(path, 6, from_step=4)
    assert steps_in(path) == [2, 4, 6]
    assert len(path.read_text().splitlines()) == 3


def test_complete_last_line_without_its_end_is_read_once(path: Path) -> None:
    write(path, 2)
    path.write_text(path.read_text() + '{"step": 4, "loss": 1.0}')
    found = list(read_reports(path))
    assert [report["step"] for _, report in found] == [2, 4]
    path.write_text(path.read_text() + '\n{"step": 6, "loss": 1.0}')
    assert [report["step"] for report in read(path, found[-1][0])] == [6]
    write(path, 8, from_step=6)
    assert steps_in(path) == [2, 4, 6, 8]


@pytest.mark.parametrize("garbage", [b'{"step": 3, "ti', b'{"step": 3, {"step": 3}', b"\0" * 512, b"\xff\xfe", b""])
def test_garbage_between_lines_is_skipped(path: Path, garbage: bytes) -> None:
    write(path, 2, 4)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + garbage + b"\n" + lines[1])
    assert steps_in(path) == [2, 4]
    write(path, 6, from_step=4)
    assert steps_in(path) == [2, 4, 6]
    assert len(path.read_text().splitlines()) == 3


def test_reading_continues_at_last_offset(path: Path) -> None:
    write(path, 2, 4)
    found = list(read_reports(path))
    assert [report["step"] for _, report in found] == [2, 4]
    assert found[-1][0] == path.stat().st_size
    assert [report["step"] for report in read(path, found[0][0])] == [4]
    assert read(path, found[-1][0]) == []
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:10])
    assert read(path, found[-1][0]) == [], "not before the line is whole"
    path.write_bytes(whole + whole[: found[0][0]])
    assert [report["step"] for report in read(path, found[-1][0])] == [2]


def test_offset_includes_garbage(path: Path) -> None:
    write(path, 2)
    path.write_bytes(b"garbage\n" + path.read_bytes())
    ((offset, _),) = read_reports(path)
    assert offset == path.stat().st_size


METRICS = {"train_loss": 6.81234, "learning_rate": 1.5e-3, "sequences_per_second": 812.34}


def test_progress_on_pipe_prints_line_per_report() -> None:
    stream = io.StringIO()
    progress = ProgressLine(2000, stream)
    progress.step(10, METRICS, seconds_left=3723)
    progress.line("validation at step 10: loss 6.7")
    progress.step(2000, METRICS, seconds_left=0)
    assert stream.getvalue().splitlines() == [
        "step   10/2000  loss 6.8123  lr 1.50e-03  812.3 sequences/s  eta 1:02:03",
        "validation at step 10: loss 6.7",
        "step 2000/2000  loss 6.8123  lr 1.50e-03  812.3 sequences/s  eta 0:00",
    ]
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_progress_on_terminal_is_rewritten_in_place() -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as stream:
        progress = ProgressLine(20, stream)
        progress.step(1, METRICS, seconds_left=60)
        progress.step(2, METRICS, seconds_left=50)
        progress.line("validation")
        progress.line("again")
        progress.step(3, METRICS, seconds_left=40)
    shown = b""
    with suppress(OSError):  # end of file on a pseudo-terminal is an error
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    assert shown.decode().replace("\r\n", "\n").split("\r\x1b[K") == [
        "",
        "step  1/20  loss 6.8123  lr 1.50e-03  812.3 sequences/s  eta 1:00",
        "step  2/20  loss 6.8123  lr 1.50e-03  812.3 sequences/s  eta 0:50\nvalidation\nagain\n",
        "step  3/20  loss 6.8123  lr 1.50e-03  812.3 sequences/s  eta 0:40",
    ]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-3, "0:00"), (0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3599, "59:59"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_duration_format(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown
