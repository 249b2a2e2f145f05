"""Time marks of a log: when each part was written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.backends.folder.log_files import LogClock, Mark, marks_beyond, offset_since


def grow(log: Path, text: str, seconds: float) -> None:
    """Append text at a given time."""
    with log.open("a") as stream:
        stream.write(text)
    os.utime(log, (seconds, seconds))


def marks(log: Path) -> list[Mark]:
    return list(marks_beyond(log, 0))


def test_growth_is_marked_with_time_of_the_last_write(tmp_path: Path) -> None:
    log, other, clock = tmp_path / "rank-0.log", tmp_path / "agent-0.log", LogClock(tmp_path, pace_seconds=0.0)
    clock.note()
    grow(log, "12345", 100.0)
    clock.note()
    clock.note()  # the log has not grown
    grow(log, "678", 107.5)
    grow(other, "x", 103.25)
    clock.note()
    assert marks(log) == [Mark(100.0, 5), Mark(107.5, 8)]
    assert marks(other) == [Mark(103.25, 1)]
    assert log.with_suffix(".times").read_text() == "0000000100.000 0000000000000005\n0000000107.500 0000000000000008\n"
    assert log.read_text() == "12345678"


def test_marks_after_an_offset(tmp_path: Path) -> None:
    log, clock = tmp_path / "rank-0.log", LogClock(tmp_path, pace_seconds=0.0)
    for second in range(1, 50):
        grow(log, "0123456789", second)
        clock.note()
    assert list(marks_beyond(log, 470)) == [Mark(48.0, 480), Mark(49.0, 490)]
    assert list(marks_beyond(log, 479)) == [Mark(48.0, 480), Mark(49.0, 490)]
    assert list(marks_beyond(log, 490)) == []


@pytest.mark.parametrize(
    ("seconds", "offset"),
    [(0.0, 0), (100.0, 0), (100.5, 10), (110.0, 10), (110.001, 20), (130.0, 30), (135.0, 40), (140.0, 40), (140.5, 44)],
)
def test_offset_of_a_time(tmp_path: Path, seconds: float, offset: int) -> None:
    """Four marks, and four bytes without a mark, which count as written at the log's modification time."""
    log, clock = tmp_path / "rank-0.log", LogClock(tmp_path, pace_seconds=0.0)
    for moment in (100.0, 110.0, 120.0, 130.0):
        grow(log, "0123456789", moment)
        clock.note()
    grow(log, "0123", 140.0)
    assert offset_since(log, seconds) == offset


def test_log_without_marks_uses_modification_time(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    grow(log, "0123456789", 100.0)
    assert (offset_since(log, 100.0), offset_since(log, 101.0)) == (0, 10)
    assert marks(log) == []


def test_next_supervisor_resumes_and_dates_lost_attempt(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    grow(log, "12345", 100.0)
    LogClock(tmp_path, pace_seconds=0.0).note()
    grow(log, "678", 101.0)
    clock = LogClock(tmp_path, pace_seconds=0.0)
    clock.note()
    grow(log, "9", 5000.0)
    clock.note()
    assert marks(log) == [Mark(100.0, 5), Mark(101.0, 8), Mark(5000.0, 9)]


def test_mark_of_crashed_machine_overwritten(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    grow(log, "12345", 100.0)
    LogClock(tmp_path, pace_seconds=0.0).note()
    good = log.with_suffix(".times").read_bytes()
    for rubbish in (b"\0" * 64, b"0000000101.0", b"\0" * 40):
        log.with_suffix(".times").write_bytes(good + rubbish)
        assert marks(log) == [Mark(100.0, 5)]
    grow(log, "678", 102.0)
    LogClock(tmp_path, pace_seconds=0.0).note()
    assert marks(log)[:2] == [Mark(100.0, 5), Mark(102.0, 8)]


def test_truncated_log_starts_new_marks(tmp_path: Path) -> None:
    log, clock = tmp_path / "rank-0.log", LogClock(tmp_path, pace_seconds=0.0)
    for moment in (100.0, 110.0):
        grow(log, "0123456789", moment)
        clock.note()
    log.write_text("abc")
    os.utime(log, (120.0, 120.0))
    clock.note()
    assert marks(log) == [Mark(120.0, 3)]


def test_time_never_runs_backward(tmp_path: Path) -> None:
    log, clock = tmp_path / "rank-0.log", LogClock(tmp_path, pace_seconds=0.0)
    grow(log, "12345", 100.0)
    clock.note()
    grow(log, "678", 90.0)  # the clock was changed
    clock.note()
    assert marks(log) == [Mark(100.0, 5), Mark(100.0, 8)]


def test_one_mark_per_second_unwritable_disk_ignored(tmp_path: Path) -> None:
    log, clock = tmp_path / "rank-0.log", LogClock(tmp_path, pace_seconds=0.0)
    log.with_suffix(".times").mkdir()  # even root cannot write here
    grow(log, "12345", 100.0)
    clock.note()
    log.with_suffix(".times").rmdir()
    clock = LogClock(tmp_path, pace_seconds=3600.0)
    clock.note()
    grow(log, "678", 101.0)
    clock.note()  # within the interval of the previous call
    assert marks(log) == [Mark(100.0, 5)]
    LogClock(tmp_path / "gone").note()
