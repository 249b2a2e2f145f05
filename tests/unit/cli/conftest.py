"""The command line in this process, with a home of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from tests.conftest import Finished

Command = Callable[..., Finished]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder, not made yet; the current folder is beside it."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


@pytest.fixture
def orchestrator(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """`orchestrator WORD...`"""

    def run(*words: str) -> Finished:
        capsys.readouterr()
        code = main(words)
        return Finished(code, *capsys.readouterr())

    return run
