"""Two commands that change one run at the same moment: the second one decides from what the first one did."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.folder import backend as folder_backend
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.runs.status import Handle, RunState
from orchestrator.support.errors import ConflictError, NotFoundError
from tests.conftest import wait_for
from tests.run_folders import make_run, write_local_request

Command = Callable[[], object]


def overtake(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, command: Command) -> Command:
    """Run a second command when the first one calls a function, as far as it gets; return a call for its result."""
    original, pool, second = getattr(owner, name), ThreadPoolExecutor(1), list[Future[object]]()
    started: list[bool] = []

    def called(*arguments: object, **options: object) -> object:
        if not started:
            started.append(True)
            second.append(pool.submit(command))
            wait_for(lambda: waits or second[0].done(), what="the second command")
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, called)
    return lambda: second[0].result()


waits: list[bool] = []


@pytest.fixture(autouse=True)
def note_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a command that waits for another one count as having run as far as it gets."""
    flock = fcntl.flock
    waits.clear()

    def noted(handle: Any, how: int) -> None:
        try:
            flock(handle, how)
        except BlockingIOError:
            waits.append(True)
            raise

    monkeypatch.setattr(fcntl, "flock", noted)
    monkeypatch.setattr(LocalBackend, "_supervise", lambda self, run: Handle("local", run.name))


def failed_run(home: Path) -> RunFolder:
    run = make_run(home, "one", RunState.FAILED)
    write_local_request(run)
    (run.outputs / "checkpoints").mkdir()
    return run


def test_second_resume_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, backend = failed_run(tmp_path), LocalBackend(tmp_path)
    second = overtake(monkeypatch, folder_backend.FolderBackend, "_requeue", lambda: backend.resume("one"))
    backend.resume("one")
    with pytest.raises(ConflictError, match="cannot resume run one: it is queued"):
        second()
    assert run.stored_state().attempt == 2


def test_run_that_was_just_resumed_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, backend = failed_run(tmp_path), LocalBackend(tmp_path)
    second = overtake(monkeypatch, folder_backend.FolderBackend, "_requeue", lambda: backend.delete("one"))
    backend.resume("one")
    with pytest.raises(ConflictError, match="cannot delete run one: it is queued"):
        second()
    assert run.stored_state().state == RunState.QUEUED


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
