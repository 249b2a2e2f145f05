"""Two commands that change one run at the same moment: the second one decides from what the first one did."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from orchestrator.backends.folder import backend as folder_backend
from orchestrator.backends.folder import served_models
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.runs.status import Handle, RunState
from orchestrator.support.errors import ConflictError, NotFoundError
from tests.overtaking import overtake
from tests.run_folders import make_run, write_local_request


@pytest.fixture(autouse=True)
def no_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalBackend, "_supervise", lambda self, run: Handle("local", run.name))


def failed_run(home: Path) -> RunFolder:
    run = make_run(home, "one", RunState.FAILED)
    write_local_request(run)
    (run.outputs / "checkpoints").mkdir()
    return run


@pytest.mark.parametrize("verb", ["resume", "delete"])
def test_run_that_was_just_resumed_refuses(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, backend = failed_run(tmp_path), LocalBackend(tmp_path)
    second = overtake(monkeypatch, folder_backend.FolderBackend, "_requeue", lambda: getattr(backend, verb)("one"))
    backend.resume("one")
    with pytest.raises(ConflictError, match=f"cannot {verb} run one: it is queued"):
        second()
    state = run.stored_state()
    assert (state.state, state.attempt) == (RunState.QUEUED, 2)


def test_run_is_not_resumed_while_it_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed_run(tmp_path)
    backend = LocalBackend(tmp_path)
    second = overtake(monkeypatch, folder_backend, "end_survivors", lambda: backend.resume("one"))
    backend.delete("one")
    with pytest.raises(NotFoundError, match="unknown run 'one'"):
        second()
    assert list((tmp_path / "runs").iterdir()) == []


def test_resumed_run_keeps_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, backend = failed_run(tmp_path), LocalBackend(tmp_path)
    second = overtake(
        monkeypatch, folder_backend.FolderBackend, "_requeue", lambda: backend.delete_weights("one", "pruned")
    )
    backend.resume("one")
    assert second() is False
    assert (run.outputs / "checkpoints").is_dir()
    assert run.stored_state().state == RunState.QUEUED


def test_run_is_resumed_after_its_weights_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state then has the warning and the new attempt."""
    run, backend = failed_run(tmp_path), LocalBackend(tmp_path)
    second = overtake(monkeypatch, RunFolder, "lock", lambda: backend.resume("one"))
    assert backend.delete_weights("one", "pruned")
    second()
    assert run.stored_state().state == RunState.QUEUED
    assert run.stored_state().warning == "pruned"


@pytest.mark.parametrize("command", ["deploy", "delete"])
def test_endpoint_that_starts_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    make_run(tmp_path, "one").model.mkdir()
    status, endpoints, started = LocalBackend(tmp_path).describe("one"), tmp_path / "endpoints", list[str]()

    def start(words: list[str], endpoint: str, log: Path) -> AbstractContextManager[tuple[int, int]]:
        started.append(endpoint)
        return nullcontext((os.getpid(), 1))

    def again() -> object:
        if command == "delete":
            (endpoints / "served.json").write_text("{}")  # of a server that died
            served_models.delete(tmp_path, "served")
            return None
        return served_models.deploy(tmp_path, status, "served")

    monkeypatch.setattr(served_models, "_start_server", start)
    second = overtake(monkeypatch, served_models, "_start_server", again)
    served_models.deploy(tmp_path, status, "served")
    with pytest.raises(ConflictError, match="another command changes it"):
        second()
    assert started == ["served"]
    assert [path.name for path in endpoints.iterdir()] == ["served.json"]
