"""A log of gigabytes is printed, searched and followed with as little memory as one of two lines."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.backends.folder.run_folder import RunFolder
from tests.conftest import Console
from tests.run_folders import live_run, make_run

LINE = b"step %07d/9999999  loss 9.1234  lr 1.00e-04  300.5 sequences/s  eta 1:02:03\n"
LINES = b"".join(LINE % number for number in range(9000))
ROOT = Path(__file__).resolve().parents[2]
MEGABYTES = 4.0  # allowed difference of the peaks; blocks have 64 KiB
SIZES = [
    pytest.param(64 * 1024**2, id="64MB"),
    pytest.param(1024**3, id="1GB", marks=pytest.mark.slow),
]


def start(console: Console, *words: str, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start the command in a process that records its peak memory."""
    command = [sys.executable, str(ROOT / "tests" / "peak.py"), str(console.cwd / "peak"), *words]
    environ = console.environ(PYTHONPATH=str(ROOT))
    return subprocess.Popen(command, env=environ, cwd=console.cwd, stdout=stdout)


def peak(console: Console, process: subprocess.Popen[bytes]) -> float:
    """Wait for the process and return its peak memory in megabytes."""
    assert process.wait() == 0
    return float((console.cwd / "peak").read_text())


def assert_same_peak(console: Console, *words: str) -> None:
    """Assert that a command needs as much memory for the log of `large` as for that of `small`."""
    peaks = [peak(console, start(console, "logs", name, *words)) for name in ("large", "small")]
    assert peaks[0] < peaks[1] + MEGABYTES, words


def fill(run: RunFolder, size: int, *, rank: int = 0) -> None:
    with run.rank_log(rank).open("ab") as stream:
        while stream.tell() < size:
            stream.write(LINES)


@pytest.fixture(params=SIZES)
def size(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """Yield the size of a log in bytes if the disk has room; delete the log afterwards."""
    size: int = request.param
    if (free := shutil.disk_usage(tmp_path).free) < 3 * size:
        pytest.skip(f"{free >> 20} MB free, {3 * size >> 20} needed")
    yield size
    shutil.rmtree(tmp_path / "home")


@pytest.mark.long
def test_memory_is_independent_of_log_size(console: Console, size: int) -> None:
    for name, bytes_of_log in (("large", size), ("small", 1)):
        run = make_run(console.home, name)
        fill(run, bytes_of_log)
        fill(run, bytes_of_log // 8, rank=1)
    for words in (
        [],
        ["--all-ranks"],
        ["--tail", "5"],
        ["--tail", "100000"],
        ["--grep", "(?i)nan|error"],
        ["--grep", r"loss\s+9", "--tail", "3"],
        ["--since", "1h"],
        ["-f"],
    ):
        assert_same_peak(console, *words)


def test_memory_is_independent_of_line_length(console: Console, size: int) -> None:
    for name, length in (("large", size), ("small", 1)):
        log = make_run(console.home, name).rank_log(0)
        with log.open("wb") as stream:
            for _ in range(length // 2**20 + 1):
                stream.write(b"x" * 2**20)
            stream.write(b"\nthe end")
    for words in ([], ["--grep", "end"], ["--tail", "2", "--grep", "x|end"]):
        assert_same_peak(console, *words)


def test_memory_does_not_grow_while_following_log(console: Console, size: int) -> None:
    """The log grows whenever the follower has printed all of it."""
    peaks = []
    for name, bytes_of_log in (("large", size), ("small", 1)):
        with live_run(console.home, name) as run:
            process = start(console, "logs", name, "-f", stdout=subprocess.PIPE)
            assert process.stdout is not None
            printed = 0
            while printed < bytes_of_log:
                with run.rank_log(0).open("ab") as stream:
                    stream.write(LINES * 8)
                printed += len(process.stdout.read(len(LINES) * 8))
        peaks.append(peak(console, process))
        assert process.stdout.read() == b""
        process.stdout.close()
    assert peaks[0] < peaks[1] + MEGABYTES
