"""Code that torch compiles for local jobs: in the private home folder, and deleted by `prune --stores`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.backends.folder import served_models
from orchestrator.backends.local import launch
from orchestrator.client import Orchestrator
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ServiceError
from tests.run_folders import make_run

CPU: Any = SimpleNamespace(device="cpu", threads=1, variables={})
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


@pytest.mark.parametrize(
    ("callers", "expected"),
    [
        (None, "{home}/cache/torch"),
        ("/mine", "/mine"),
        ("{temporary}/torchinductor_root", "{home}/cache/torch"),  # torch sets its default in a process that imports it
    ],
)
def test_rank_compiles_into_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callers: str | None, expected: str
) -> None:
    places = {"home": tmp_path, "temporary": tempfile.gettempdir()}
    monkeypatch.delenv(VARIABLE, raising=False)
    if callers is not None:
        monkeypatch.setenv(VARIABLE, callers.format(**places))
    run = make_run(tmp_path, "one")
    assert launch._variables(run, CPU, run.exits(1))[VARIABLE] == expected.format(**places)


def test_endpoint_compiles_into_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    shell = tmp_path / "python"
    shell.write_text(f'#!/bin/sh\necho "${VARIABLE}" >&2\nexit 3\n')
    shell.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(shell))
    log = tmp_path / "endpoints" / "one.log"
    log.parent.mkdir()
    with pytest.raises(ServiceError), served_models._start_server([], "one", log):
        pass
    assert log.read_text() == f"{tmp_path}/cache/torch\n"


def test_prune_of_stores_deletes_compiled_code(tmp_path: Path) -> None:
    """It is kept while a run is active, which may be compiling."""
    kernel = tmp_path / "cache" / "torch" / "ab" / "kernel.so"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"x" * 5000)
    orchestrator = Orchestrator(home=tmp_path, environ={})
    assert orchestrator.pruning(keep_last=1).leftovers == []
    pruning = orchestrator.pruning(keep_last=1, stores=True)
    assert [(item.name, (item.bytes or 0) >= 5000) for item in pruning.leftovers] == [("cache/torch", True)]
    run = make_run(tmp_path, "one", RunState.QUEUED)
    assert orchestrator.pruning(keep_last=1, stores=True).leftovers == []
    assert orchestrator.prune(pruning).deleted == []
    assert kernel.exists()
    run.write_state(run.state().model_copy(update={"state": RunState.CANCELLED}))
    assert [item.name for item in orchestrator.prune(pruning).deleted] == ["cache/torch"]
    assert not kernel.parent.parent.exists()
