"""The start of an endpoint's server on this machine: whatever interrupts it, no server is left without a record."""

from __future__ import annotations

import errno
import multiprocessing
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.folder import served_models
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.client import Orchestrator
from orchestrator.support.errors import ServiceError, StorageError
from tests.conftest import wait_for
from tests.run_folders import make_run

LISTENING = """echo '{"port": 1}'; exec sleep 600"""
LOADING = "exec sleep 600"
POPEN = subprocess.Popen


class Starts:
    """Deploys an endpoint whose server is a shell script, and keeps its process."""

    def __init__(self, home: Path, patch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.started: list[subprocess.Popen[bytes]] = []
        make_run(home, "one").model.mkdir()
        self._status = LocalBackend(home).describe("one")
        patch.setattr(sys, "executable", str(home / "python"))
        patch.setattr(subprocess, "Popen", self._start)

    def _start(self, *words: Any, **options: Any) -> subprocess.Popen[bytes]:
        self.started.append(process := POPEN(*words, **options))
        return process

    def deploy(self, script: str) -> None:
        (self.home / "python").write_text(f"#!/bin/sh\n{script}\n")
        (self.home / "python").chmod(0o700)
        served_models.deploy(self.home, self._status, "web")

    def require_ended(self) -> None:
        (process,) = self.started
        assert process.returncode == -signal.SIGKILL
        assert not (self.home / "endpoints" / "web.json").exists()


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starts]:
    starts = Starts(tmp_path, monkeypatch)
    yield starts
    for process in starts.started:
        process.kill()
        process.wait()


def test_interrupted_start_ends_the_server(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(select, "select", interrupted)
    with pytest.raises(KeyboardInterrupt):
        starts.deploy(LOADING)
    starts.require_ended()


def test_server_without_record_is_ended(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        if path.suffix == ".json":
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(served_models, "write_text", full)
    with pytest.raises(StorageError, match="cannot start endpoint web"):
        starts.deploy(LISTENING)
    starts.require_ended()


def test_silent_server_is_ended_at_the_limit(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_models, "START_SECONDS", 0.0)
    with pytest.raises(ServiceError, match="its server did not start"):
        starts.deploy(LOADING)
    starts.require_ended()


def test_run_of_a_loading_endpoint_is_not_pruned(starts: Starts, tmp_path: Path) -> None:
    """A deployment that was killed while its server loaded protects the run no more, and the next one succeeds."""
    orchestrator, begun = Orchestrator(home=tmp_path), tmp_path / "begun"
    script = f"echo $$ >{begun}.new; mv {begun}.new {begun}; {LOADING}"
    command = multiprocessing.get_context("fork").Process(target=starts.deploy, args=(script,))
    command.start()
    try:
        wait_for(begun.exists, what="the start of the server")
        assert "endpoint web" in orchestrator.pruning().kept["one"]
    finally:
        command.kill()
        command.join()
        os.kill(int(begun.read_text()), signal.SIGKILL)
    assert [item.name for item in orchestrator.pruning().runs] == [Path("runs", "one").name]
    starts.deploy(LISTENING)
    assert "endpoint web" in orchestrator.pruning().kept["one"]
    assert {path.name for path in (tmp_path / "endpoints").iterdir()} == {"web.json", "web.log"}
    served_models.delete(tmp_path, "web")
    assert orchestrator.pruning().kept == {}
