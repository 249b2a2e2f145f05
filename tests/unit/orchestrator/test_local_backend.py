"""What the local backend reads out of run folders, without running anything."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from orchestrator.backends.base import LogQuery
from orchestrator.backends.folder.backend import last_report
from orchestrator.backends.folder.files import QUEUED_SECONDS, LocalState, RunFolder
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.backends.local.supervisor import read_exits
from orchestrator.client import Orchestrator
from orchestrator.errors import ConflictError, NotFoundError, UsageError
from orchestrator.runs import Handle, RunState


def make_run(home: Path, name: str, state: RunState = RunState.COMPLETED, *, age: float = 0.0) -> RunFolder:
    """A run folder as submission leaves it, `age` seconds ago."""
    run = RunFolder(home / "runs" / name)
    run.outputs.mkdir(parents=True)
    run.logs.mkdir()
    plan = {"job": {"train": {"steps": 100}}, "run_hash": "0123abcd", "spec": {"tags": {"a": "b"}}}
    (run.path / "plan.json").write_text(json.dumps(plan))
    (run.path / "request.json").write_text(
        json.dumps({"tracking_uri": "sqlite:////x.db", "nodes": 1, "processes_per_node": 2})
    )
    (run.path / "lock").touch()
    run.write_state(LocalState(state=state, created=1000.0))
    for path in (run.path / "request.json", run.path / "state.json"):
        os.utime(path, (time.time() - age, time.time() - age))
    return run


def report(run: RunFolder, step: int, **metrics: float) -> None:
    with run.metrics.open("a") as stream:
        stream.write(json.dumps({"step": step, "time": 1.0, "metrics": metrics}) + "\n")


def test_status_has_the_newest_value_of_each_metric(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one")
    report(run, 10, train_loss=3.0, validation_loss=4.0)
    report(run, 20, train_loss=2.0, bad=float("nan"))
    with run.metrics.open("a") as stream:
        stream.write('{"step": 30, "ti')  # torn by a death
    status = LocalBackend(tmp_path).describe("one")
    assert (status.step, status.steps) == (20, 100)
    assert status.metrics == {"train_loss": 2.0, "validation_loss": 4.0}
    assert json.loads(json.dumps(status.as_dict(), allow_nan=False))["state"] == "completed"
    assert status.tags == {"a": "b"}


def checkpoint(run: RunFolder, step: int, loss: float | None) -> Path:
    folder = run.outputs / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "COMMIT.json").write_text(json.dumps({"format": 2, "step": step, "validation_loss": loss, "files": {}}))
    return folder


def test_status_has_the_checkpoint_of_lowest_validation_loss(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one")
    assert LocalBackend(tmp_path).describe("one").best_checkpoint is None
    checkpoint(run, 10, None)
    assert LocalBackend(tmp_path).describe("one").best_checkpoint is None
    for step, loss in ((20, 5.0), (30, 4.0), (40, 4.5), (50, 4.0)):
        checkpoint(run, step, loss)
    (checkpoint(run, 60, 1.0) / "COMMIT.json").write_text('{"format": 2, "st')
    (checkpoint(run, 70, 1.0) / "COMMIT.json").unlink()
    (checkpoint(run, 80, 1.0) / "COMMIT.json").write_text('{"format": 1, "step": 80}')
    best = LocalBackend(tmp_path).describe("one").best_checkpoint
    assert best is not None
    assert (best.step, best.validation_loss) == (30, 4.0)
    assert best.folder == str(run.outputs / "checkpoints" / "step-00000030")


def test_the_last_report_of_a_large_file_is_read_from_its_end(tmp_path: Path) -> None:
    run = make_run(tmp_path, "large")
    for step in range(5000):
        report(run, step, train_loss=float(step))
    assert last_report(run.metrics) == {"step": 4999, "metrics": {"train_loss": 4999.0}}
    assert last_report(tmp_path / "none") == {}


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.RUNNING])
def test_a_run_whose_lock_is_free_is_not_running(tmp_path: Path, state: RunState) -> None:
    run = make_run(tmp_path, "lost", state)
    status = LocalBackend(tmp_path).describe("lost")
    assert status.state == RunState.FAILED
    assert status.reason is not None
    assert status.reason.startswith("supervisor lost")
    with (run.path / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert LocalBackend(tmp_path).describe("lost").state == state


def test_a_queued_run_is_given_time_to_start(tmp_path: Path) -> None:
    make_run(tmp_path, "new", RunState.QUEUED)
    make_run(tmp_path, "old", RunState.QUEUED, age=QUEUED_SECONDS + 5)
    backend = LocalBackend(tmp_path)
    assert backend.describe("new").state == RunState.QUEUED
    assert backend.describe("old").state == RunState.FAILED


def test_a_damaged_folder_is_a_failed_run_and_does_not_hide_the_others(tmp_path: Path) -> None:
    make_run(tmp_path, "good", age=10)
    (make_run(tmp_path, "bad").path / "state.json").write_text("{")
    found = {status.name: status for status in LocalBackend(tmp_path).runs()}
    assert found["good"].state == RunState.COMPLETED
    assert found["bad"].state == RunState.FAILED
    assert "damaged" in str(found["bad"].reason)


def test_runs_are_found_by_name_beginning_handle_and_last(tmp_path: Path) -> None:
    for age, name in ((30, "alpha-1"), (20, "alpha-2"), (10, "beta-1")):
        make_run(tmp_path, name, age=age)
    orchestrator = Orchestrator(home=tmp_path, environ={})
    assert [status.name for status in orchestrator.runs()] == ["beta-1", "alpha-2", "alpha-1"]
    for text, name in (("beta", "beta-1"), ("alpha-2", "alpha-2"), ("@last", "beta-1"), ("local://alpha-1", "alpha-1")):
        assert orchestrator.attach(text).handle == Handle("local", name)
    with pytest.raises(NotFoundError, match="more than one run begins with alpha") as caught:
        orchestrator.attach("alpha")
    assert caught.value.facts["runs"] == "alpha-2, alpha-1"
    with pytest.raises(NotFoundError, match=r'did you mean "beta-1"'):
        orchestrator.attach("bela-1")
    with pytest.raises(UsageError, match="no backend named 'locl'"):
        orchestrator.attach("locl://beta-1")


def test_logs_of_a_rank_that_there_is_not(tmp_path: Path) -> None:
    run = make_run(tmp_path, "two")
    run.rank_log(1).write_text("one\ntwo\nhalf a li")
    backend = LocalBackend(tmp_path)
    expected = ["one", "two", "half a li"]
    assert [line.text for line in backend.logs("two", LogQuery(ranks=(1,)))] == expected
    assert [line.text for line in backend.logs("two", LogQuery(ranks=(1,), follow=True))] == expected
    assert list(backend.logs("two", LogQuery(ranks=(0,)))) == []
    with pytest.raises(NotFoundError, match="no rank 2"):
        backend.logs("two", LogQuery(ranks=(2,)))


def test_a_live_or_completed_run_is_not_resumed(tmp_path: Path) -> None:
    make_run(tmp_path, "done")
    stopped = make_run(tmp_path, "stopped", RunState.CANCELLED)
    backend = LocalBackend(tmp_path)
    with pytest.raises(ConflictError, match="is completed and cannot be resumed"):
        backend.resume("done")
    with (stopped.path / "lock").open() as held:  # its supervisor is about to have the last word
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConflictError):
            backend.resume("stopped")


def test_exit_codes_come_in_the_order_in_which_ranks_ended(tmp_path: Path) -> None:
    for rank, code, ended in ((0, 1, 20), (1, 137, 10), (2, 0, 30)):
        (tmp_path / f"rank-{rank}").write_text(f"{code}\n")
        os.utime(tmp_path / f"rank-{rank}", (ended, ended))
    (tmp_path / "rank-3").touch()  # the disk was full
    assert list(read_exits(tmp_path).items()) == [(1, 137), (0, 1), (2, 0)]
