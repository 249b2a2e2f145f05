"""Asynchronous checkpoints: their contents and the reporting of their failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_disk import Disk
from engine_toy import busy_writer

from train_jobs.artifacts.commit import finish
from train_jobs.config import StorageError
from train_jobs.engine.checkpoint.background import NICE, StagingMemory, Work, writer_thread
from train_jobs.engine.checkpoint.checkpoints import CheckpointStore, Committed

REPOSITORY = Path(__file__).parents[3]
NO_STATE: dict[str, Any] = {"state": {}, "param_groups": []}


def store_in(folder: Path, **options: Any) -> CheckpointStore:
    return CheckpointStore(folder / "checkpoints", **{"keep_last": 5, "asynchronous": True, **options})


def save(store: CheckpointStore, step: int, weight: torch.Tensor | None = None) -> None:
    weight = torch.full((50, 50), float(step)) if weight is None else weight
    store.save(step, weights={"weight": weight}, optimizer=NO_STATE, state={})


def values_of(store: CheckpointStore) -> dict[int, float]:
    """Return step -> fill value of its weight for every valid checkpoint, read by another store."""
    other = CheckpointStore(store.root, keep_last=1)
    weights = {step: found.weights()["weight"] for step in range(20) if (found := other.at(step))}
    assert all(weight.amin() == weight.amax() for weight in weights.values())
    return {step: weight.flatten()[0].item() for step, weight in weights.items()}


def test_changes_after_save_not_in_checkpoint(tmp_path: Path) -> None:
    store, weight, state = store_in(tmp_path), torch.full((50, 50), 4.0), {"cursor": {"batch": 1}}
    with busy_writer(store):
        store.save(4, weights={"weight": weight}, optimizer=NO_STATE, state=state)
        weight.zero_()
        state["cursor"]["batch"] = 2
    saved = store.newest()
    assert saved is not None
    assert values_of(store) == {4: 4.0}
    assert saved.state()["cursor"] == {"batch": 1}


def test_commit_is_reported_once(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    assert store.collect(wait=True) is None
    with busy_writer(store):
        save(store, 4)
        assert store.writing
        assert store.collect(wait=False) is None
        assert values_of(store) == {}
    done = store.collect(wait=True)
    size = sum(path.stat().st_size for path in (store.root / "step-00000004").glob("[mos]*"))
    assert done == Committed(4, size, pytest.approx(done.seconds))
    assert done.seconds > 0
    assert not store.writing
    assert store.collect(wait=True) is None


def test_save_finishes_previous_checkpoint(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    with busy_writer(store):
        save(store, 4)
        save(store, 8)
        assert values_of(store) == {4: 4.0}
    assert store.collect(wait=True) is not None
    assert values_of(store) == {4: 4.0, 8: 8.0}


def test_waiting_caller_completes_write_itself(tmp_path: Path) -> None:
    """On a busy machine the writer thread may get no time at all."""
    store = store_in(tmp_path)
    with busy_writer(store):
        save(store, 4)
        done = store.collect(wait=True)
        assert done is not None
        assert values_of(store) == {4: 4.0}


def test_finding_newest_completes_it_and_deletes_nothing(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    with busy_writer(store):
        save(store, 4)
        found = store.newest()
        assert found is not None
        assert found.step == 4
        done = store.collect(wait=False)
    assert done is not None
    assert done.step == 4


def test_synchronous_save_is_committed_on_return(tmp_path: Path) -> None:
    store = store_in(tmp_path, asynchronous=False)
    with busy_writer(store):
        save(store, 4)
        assert not store.writing
        assert values_of(store) == {4: 4.0}
        done = store.collect(wait=False)
    assert done is not None
    assert done.step == 4


@pytest.mark.parametrize("again", ["collect", "save"])
def test_failed_write_is_reported_once_and_removed(disk: Disk, again: str) -> None:
    store = store_in(disk.folder)
    save(store, 4)
    store.collect(wait=True)
    save(store, 8, torch.zeros(2_000_000))  # the disk has 4 MiB
    with pytest.raises(StorageError, match="the checkpoint of step 8"):
        store.collect(wait=True) if again == "collect" else save(store, 12)
    assert [path.name for path in store.root.iterdir()] == ["step-00000004"]
    assert store.collect(wait=True) is None
    save(store, 12)
    store.collect(wait=True)
    assert values_of(store) == {4: 4.0, 12: 12.0}


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has no priority of its own")
def test_writer_thread_alone_has_lower_priority() -> None:
    found: list[tuple[str, int]] = []

    def record_priority() -> Generator[None, None, None]:
        found.append((threading.current_thread().name, priority()))
        yield
        done.set()

    done, before = threading.Event(), priority()
    writer_thread().submit(Work(record_priority()).run)
    assert done.wait(20)
    ((name, lowered),) = found
    assert name.startswith("checkpoint-writer")
    assert lowered == NICE > before == priority()


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_work_taken_over_runs_once_and_in_order() -> None:
    taken_over, did = threading.Event(), []

    def steps() -> Generator[None, None, str]:
        for number in range(200):
            did.append((number, threading.current_thread() is threading.main_thread()))
            if number == 2:
                threading.Timer(0.1, taken_over.set).start()
                go.set()
                taken_over.wait()
            yield
        return "done"

    go = threading.Event()
    work = Work(steps())
    writer_thread().submit(work.run)
    go.wait()  # the thread is in the middle of its third step
    assert not work.done
    work.finish()
    assert work.result() == "done"
    assert did == [(number, number > 2) for number in range(200)]


def test_error_in_thread_is_raised_by_result() -> None:
    def steps() -> Generator[None, None, None]:
        yield
        raise ConnectionError("the machine is gone")

    work = Work(steps())
    writer_thread().submit(work.run)
    work.finish()
    assert work.done
    for _ in range(2):
        with pytest.raises(ConnectionError):
            work.result()


def test_work_without_steps_returns_immediately() -> None:
    def steps() -> Generator[None, None, int]:
        return 3
        yield

    assert finish(steps()) == 3


SAVES_WITHOUT_MEMORY = """
import json, resource, sys
from pathlib import Path
import torch
from train_jobs.engine.checkpoint.checkpoints import CheckpointStore

warnings, writing = [], []
store = CheckpointStore(Path(sys.argv[1]), keep_last=5, asynchronous=True, warn=warnings.append)
weight = torch.full((64 << 20,), 4, dtype=torch.int8)

def save(step):
    store.save(step, weights={"weight": weight}, optimizer={"state": {}, "param_groups": []}, state={})
    writing.append(store.writing)

before = resource.getrlimit(resource.RLIMIT_AS)
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (32 << 20), before[1]))
save(4)
resource.setrlimit(resource.RLIMIT_AS, before)
save(8)
print(json.dumps({"warnings": warnings, "writing": writing}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is not kept elsewhere")
def test_without_memory_for_copy_saves_synchronously_and_warns(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    saved = subprocess.run(  # memory freed by other tests would be available for the copy
        [sys.executable, "-c", SAVES_WITHOUT_MEMORY, str(folder)], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert saved.returncode == 0, saved.stderr
    result = json.loads(saved.stdout)
    assert result["writing"] == [False, False]
    assert values_of(CheckpointStore(folder, keep_last=1)) == {4: 4.0, 8: 4.0}
    (warning,) = result["warnings"]
    assert warning.startswith(
        "warning: no memory for a copy of 64 MiB, so training waits while checkpoints are written"
    )


def test_copies_share_no_memory() -> None:
    tensors = {
        "half": torch.ones(3, dtype=torch.bfloat16),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "view": torch.arange(6.0).view(2, 3).T,
        "scalar": torch.tensor(2.0, dtype=torch.float64),
        "empty": torch.zeros(0),
        "trained": torch.nn.Parameter(torch.ones(2)),
    }
    expected = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    copies = StagingMemory().copy({"a": tensors, "b": {"half": torch.zeros(2)}})
    for tensor in tensors.values():
        tensor.data.zero_()
    copies["b"]["half"].fill_(9.0)
    torch.testing.assert_close(copies["a"], expected, rtol=0, atol=0)
    assert not any(copy.requires_grad for copy in copies["a"].values())


def test_copy_memory_is_reused_and_grows_if_needed() -> None:
    memory = StagingMemory()
    first = memory.copy({"a": {"x": torch.zeros(1000)}})["a"]["x"].data_ptr()
    assert memory.copy({"a": {"y": torch.ones(1000)}})["a"]["y"].data_ptr() == first
    assert memory.copy({"a": {"y": torch.ones(10)}})["a"]["y"].data_ptr() == first
    larger = memory.copy({"a": {"x": torch.full((3000,), 7.0)}})["a"]["x"]
    assert larger.eq(7).all()


WRITES_FOR_A_WHILE = """
import sys, torch
from pathlib import Path
from train_jobs.engine.checkpoint.checkpoints import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]), keep_last=1, asynchronous=True)
for step, size in ((4, 10), (8, 500_000_000)):
    weights = {"weight": torch.full((size,), step, dtype=torch.int8)}
    store.save(step, weights=weights, optimizer={"state": {}, "param_groups": []}, state={})
"""


@pytest.mark.long
def test_kill_during_write_loses_only_that_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITES_FOR_A_WHILE, str(tmp_path)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    begun = tmp_path / "step-00000008" / "model.safetensors"
    limit = time.monotonic() + 60
    while not begun.exists() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert begun.exists()
    assert not (begun.parent / "COMMIT.json").exists()
    store = CheckpointStore(tmp_path, keep_last=1)
    found = store.newest()
    assert found is not None
    assert found.step == 4
    save(store, 6)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000006"]


def test_exiting_program_finishes_pending_write(tmp_path: Path) -> None:
    program = WRITES_FOR_A_WHILE.replace("500_000_000", "50_000_000")
    command = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=True)
    found = CheckpointStore(tmp_path, keep_last=1).newest()
    assert found is not None
    assert found.step == 8
