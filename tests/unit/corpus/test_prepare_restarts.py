"""The preparation as a program: killed, stopped or distributed, it produces identical bytes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import tmpfs, wait_for
from tests.prepare_jobs import command, finished, start
from tests.unit.corpus.small_corpora import contents, sources

pytestmark = pytest.mark.long

PARTS = 4
MOMENTS = 20


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return sources of one part each, with enough text for a step to take a while."""
    return sources(tmp_path_factory.mktemp("text"), PARTS, documents=1200)


@pytest.fixture(scope="module")
def uninterrupted(text: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of the expected store."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    finished(command(text, folder))
    assert json.loads((folder / "out" / "result.json").read_text())["documents"] == 4200  # the others are duplicates
    return contents(folder / "store")


def interrupted_when(words: Sequence[str], path: Path, how: signal.Signals) -> subprocess.Popen[str]:
    """Run a job that receives a signal when a file appears."""
    process = start(words)
    wait_for(lambda: path.exists() or process.poll() is not None, what=path.name)
    process.send_signal(how)
    process.communicate(timeout=60)
    return process


def test_job_killed_in_each_step_gives_identical_store(
    text: list[str], uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    words, parts = command(text, tmp_path), tmp_path / "store" / "parts"
    for name in ("documents-00001.json", "tokens-00002.json"):
        killed = interrupted_when(words, parts / name, signal.SIGKILL)
        assert killed.returncode == -signal.SIGKILL
    out = finished(words)
    assert f"documents: {PARTS} of {PARTS} parts are done already" in out
    assert contents(tmp_path / "store") == uninterrupted
    assert not parts.exists()


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_stopped_job_reports_it_and_resumes(
    text: list[str], uninterrupted: dict[str, bytes], tmp_path: Path, how: signal.Signals, code: int
) -> None:
    words, parts = command(text, tmp_path), tmp_path / "store" / "parts"
    stopped = interrupted_when(words, parts / "documents-00000.json", how)
    assert stopped.returncode == code
    assert not (tmp_path / "store" / "manifest.json").exists()
    assert "parts are done already" in finished(words)
    assert contents(tmp_path / "store") == uninterrupted


def test_two_nodes_give_identical_store(text: list[str], uninterrupted: dict[str, bytes], tmp_path: Path) -> None:
    words = command(text, tmp_path)
    nodes = [start(words, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    outs = [node.communicate(timeout=240) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outs
    assert contents(tmp_path / "store") == uninterrupted
    assert finished(words, RANK="1", WORLD_SIZE="2") == ""  # the store exists


def test_full_disk_keeps_finished_parts(text: list[str], uninterrupted: dict[str, bytes], tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "700k") as disk:
        words = command(text, tmp_path, f"store={disk / 'store'}")
        process = start(words)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert err.startswith("error[storage]: cannot write the token store: the disk is full")
        assert "Traceback" not in err
        assert list((disk / "store" / "parts").glob("documents-*.json"))
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        assert "parts are done already" in finished(words)
        assert contents(disk / "store") == uninterrupted


def test_read_only_disk_is_reported(text: list[str], tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "1m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        process = start(command(text, tmp_path, f"store={disk / 'store'}"))
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert err.startswith("error[storage]: cannot write the token store: read-only file system")
        assert str(disk / "store") in err


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_job_killed_at_random_gives_identical_store(
    text: list[str], uninterrupted: dict[str, bytes], tmp_path: Path, workers: int
) -> None:
    words = command(text, tmp_path, f"data.workers={workers}")
    began = time.monotonic()
    finished(command(text, tmp_path / "measured", f"data.workers={workers}"))
    longest, draw = time.monotonic() - began, random.Random(workers)
    kills = 0
    while kills < MOMENTS:
        process = start(words)
        try:
            process.communicate(timeout=draw.uniform(0.3, 0.9) * longest)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
        else:  # it had finished: start from the beginning
            assert process.returncode == 0
            assert contents(tmp_path / "store") == uninterrupted
            (tmp_path / "store" / "manifest.json").unlink()
    finished(words)
    assert contents(tmp_path / "store") == uninterrupted
