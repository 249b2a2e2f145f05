"""Preparation with a worker pool on text large enough for it: the job or one worker is killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.corpus.small_corpora import SYLLABLES, contents, documents_of

pytestmark = pytest.mark.slow
MEGABYTES = 36  # usually leaves at least two parts to distribute
WORKERS = 2
MOMENTS = 10


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one file of different documents, a few parts long."""
    folder = tmp_path_factory.mktemp("text")
    documents = documents_of(0, 1000)
    size = 0
    with (folder / "text.txt").open("w") as stream:
        while size < MEGABYTES << 20:
            size += sum(stream.write(f"{document} Text {size}.\n\n") for document in documents)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "text", *SYLLABLES, *"0123456789"]
    pieces += [f"##{piece}" for piece in pieces[7:]]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    return folder


def command(text: Path, folder: Path) -> list[str]:
    sets = [
        f"data.text={json.dumps([str(text / 'text.txt')])}",
        f"data.vocabulary={text / 'vocab.txt'}",
        f"data.workers={WORKERS}",
        f"store={folder / 'store'}",
    ]
    return [
        *(sys.executable, "-m", "train_jobs.prepare", "--config", "uncased"),
        *(word for assignment in sets for word in ("--set", assignment)),
        *("--output", str(folder / "out"), "--cache", str(folder / "cache")),
    ]


def start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def uninterrupted(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], float]:
    """Return the expected store and the seconds that it took."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    began = time.monotonic()
    subprocess.run(command(text, folder), check=True, capture_output=True)
    return contents(folder / "store"), time.monotonic() - began


def workers_of(job: subprocess.Popen[str]) -> list[int]:
    """Return the processes that a job has started."""
    children = [path.read_text().split() for path in Path(f"/proc/{job.pid}/task").glob("*/children")]
    return [
        int(child)
        for found in children
        for child in found
        if b"train_jobs.corpus.executors.worker" in command_of(child)
    ]


def command_of(pid: int | str) -> bytes:
    """Return the command line of a process, empty if it has exited."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def parts_of(parts: Path, pattern: str) -> set[str]:
    """Return the numbers of the parts that have a matching file."""
    return {path.name.split("-")[1].split(".")[0] for path in parts.glob(pattern)}


def runs(text: Path, folder: Path, longest: float, seed: int) -> Iterator[subprocess.Popen[str]]:
    """Yield the same job repeatedly, each at a random moment; after a completed one the folder is cleared."""
    draw, kills = random.Random(seed), 0
    while kills < MOMENTS:
        job = start(command(text, folder))
        time.sleep(draw.uniform(0.1, 0.9) * longest)
        if job.poll() is None:
            kills += 1
            yield job
        else:
            out, err = job.communicate()
            assert job.returncode == 0, out + err
            shutil.rmtree(folder / "store")


def assert_rest_is_made(text: Path, folder: Path, uninterrupted: dict[str, bytes]) -> None:
    job = start(command(text, folder))
    out, err = job.communicate(timeout=300)
    assert job.returncode == 0, out + err
    assert contents(folder / "store") == uninterrupted


def test_killed_job_loses_only_parts_in_progress(
    text: Path, uninterrupted: tuple[dict[str, bytes], float], tmp_path: Path
) -> None:
    store, longest = uninterrupted
    parts, most = tmp_path / "store" / "parts", 0
    for job in runs(text, tmp_path, longest, seed=1):
        workers = workers_of(job)
        most = max(most, len(workers))
        job.kill()
        job.communicate()
        assert wait_until_gone(workers)
        if (tmp_path / "store" / "manifest.json").is_file():
            continue  # it had only to remove the parts, whose records are deleted first
        for step in ("documents", "tokens"):
            files = parts_of(parts, "documents-*.arrow") if step == "documents" else parts_of(parts.parent, "shard-*")
            assert len(files - parts_of(parts, f"{step}-*.json")) <= WORKERS
    assert most == WORKERS
    assert_rest_is_made(text, tmp_path, store)


def test_killed_worker_ends_job_and_keeps_finished_parts(
    text: Path, uninterrupted: tuple[dict[str, bytes], float], tmp_path: Path
) -> None:
    store, longest = uninterrupted
    parts, killed = tmp_path / "store" / "parts", 0
    for number, job in enumerate(runs(text, tmp_path, longest, seed=2)):
        workers = workers_of(job)
        if workers:
            os.kill(workers[number % len(workers)], signal.SIGKILL)
        out, err = job.communicate(timeout=300)
        if job.returncode == 0:  # the worker was not started yet or had no work left
            assert contents(tmp_path / "store") == store
            (tmp_path / "store" / "manifest.json").unlink()
            continue
        killed += 1
        assert job.returncode == 1, out + err
        assert err.startswith("error[memory]: a worker ended with SIGKILL")
        assert wait_until_gone(workers)
        torn = parts_of(parts, "documents-*.arrow") - parts_of(parts, "documents-*.json")
        assert len(torn) <= WORKERS
    assert killed >= MOMENTS // 2
    assert_rest_is_made(text, tmp_path, store)


def wait_until_gone(pids: list[int]) -> bool:
    """Return whether these processes exit within a few seconds."""
    patience = time.monotonic() + 10
    while any(b"train_jobs.corpus.executors.worker" in command_of(pid) for pid in pids):
        if time.monotonic() > patience:
            return False
        time.sleep(0.05)
    return True
