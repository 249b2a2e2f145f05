"""Runs whose copy in MLflow is missing because a process was killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.backends.folder.mlflow_sync import sync_run
from orchestrator.backends.folder.run_folder import FolderRequest
from orchestrator.backends.folder.supervision import TrackedRun
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.runs import tracked_run
from orchestrator.runs.status import RunState
from tests.mlflow_runs import ENDED, make_tracked_run
from train_jobs.artifacts.tracking import mlflow_store


@pytest.fixture
def home(tmp_path: Path, empty_store: Path) -> Path:
    """Return a home with an empty store."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return tmp_path


def test_copy_lost_with_the_supervisor_is_a_warning(home: Path) -> None:
    """A kill between the last state and the start of the copying process must not hide that the copy is missing."""
    run = make_tracked_run(home, state=RunState.RUNNING)
    TrackedRun(run, FolderRequest.model_construct(**run.read_json("request.json"))).begin()
    ended = run.stored_state().model_copy(update={"state": RunState.COMPLETED, "ended": ENDED})
    with run.lock():
        assert LocalBackend(home).describe("run").warning is None, "it is running"
    run.write_state(ended)
    found = "the copy in MLflow is behind: no process is making it; repair: orchestrator mlflow sync run"
    assert LocalBackend(home).describe("run").warning == found
    run.write_state(ended.model_copy(update={"ended": ended.now()}))
    assert LocalBackend(home).describe("run").warning is None, "a process has some time to start"
    sync_run(run)
    assert not run.behind_file.exists()


@pytest.mark.parametrize("where", ["before", "after"])
def test_note_about_replaced_store_survives_a_kill(home: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The kill is before or after the new store was created."""
    (home / "mlflow.db").write_bytes(b"no database" * 1000)
    run = make_tracked_run(home)

    def kill(path: Path, **_: object) -> None:
        if where == "before":
            raise KeyboardInterrupt
        create(path)
        raise KeyboardInterrupt

    create = mlflow_store._create
    with monkeypatch.context() as patch:
        patch.setattr(mlflow_store, "_create", kill)
        with pytest.raises(KeyboardInterrupt):
            sync_run(run)
    (kept,) = home.glob("mlflow.db.broken-*")
    note = str(sync_run(run).note)
    assert f"it is now {kept.name}, and a new one was created" in note
    assert note in run.behind_file.read_text()
    assert sync_run(run).note is None


def test_copy_killed_at_its_artifacts_is_a_warning(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, warnings = make_tracked_run(home), list[str | None]()

    def kill(*_: object) -> None:
        warnings.append(LocalBackend(home).describe("run").warning)
        raise KeyboardInterrupt

    run.behind_file.write_text("the copy in MLflow is behind: no server; repair: orchestrator mlflow sync run")
    with monkeypatch.context() as patch:
        patch.setattr(tracked_run, "log_files", kill)
        with pytest.raises(KeyboardInterrupt):
            sync_run(run)
    assert warnings == [None], "the report, which is one of the artifacts, does not show it"
    assert "no process is making it" in str(LocalBackend(home).describe("run").warning)
    sync_run(run)
    assert not run.behind_file.exists()
