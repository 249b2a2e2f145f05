"""The end of a process of a job: it has the job's own exit code, whatever its threads do."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from train_jobs.config import TrainingError
from train_jobs.engine.runtime import boundary, distributed

ENDING = """
import atexit, sys, threading, time
from datetime import timedelta
from pathlib import Path
import torch
from train_jobs.engine.runtime.boundary import exit_process

def wait_in_store():
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    while True:
        try:
            store.wait(["never written"], timedelta(milliseconds=20))
        except torch.distributed.DistError:
            began.set()

began, place = threading.Event(), Path(sys.argv[1])
threading.Thread(target=wait_in_store, daemon=True).start()
assert began.wait(60)
threading.Thread(target=lambda: (time.sleep(0.5), (place / "thread").touch())).start()
atexit.register((place / "handler").touch)
print("written at the end", end="")
exit_process(75)
"""


def test_exit_code_survives_threads_in_other_code(tmp_path: Path) -> None:
    """With sys.exit, a daemon thread that returns from C++ meanwhile aborts the process: exit code -6."""
    command = [sys.executable, "-c", ENDING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (75, "written at the end"), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["handler", "thread"]


def fail() -> None:
    raise TrainingError("the loss is not finite")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """Join a process group of one, over gloo."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    distributed.stop()


@pytest.mark.usefixtures("group")
def test_failed_job_leaves_its_process_group(tmp_path: Path) -> None:
    """Otherwise threads of the group outlive the interpreter."""
    assert boundary.run(fail, tmp_path) == TrainingError.exit_code
    assert not dist.is_initialized()


@pytest.mark.usefixtures("group")
def test_failed_job_aborts_collectives_on_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their end would be waited for otherwise, and the other processes may never join them."""
    aborted: list[bool] = []
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", lambda: aborted.append(True))
    boundary.run(fail, tmp_path)
    assert aborted == [True]


@pytest.mark.usefixtures("group")
def test_failed_job_does_not_wait_for_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "ABANDON_SECONDS", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(dist, "destroy_process_group", lambda: time.sleep(30))
        started = time.monotonic()
        assert boundary.run(fail, tmp_path) == TrainingError.exit_code
        assert time.monotonic() - started < 15
