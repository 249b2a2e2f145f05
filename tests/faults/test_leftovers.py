"""Files that an attempt must not leave behind: of torchrun, and of processes that were killed while they wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Console
from tests.run_folders import run_script


def test_attempt_leaves_no_temporary_files(console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    name = run_script(console.home, 'touch "$ORCHESTRATOR_RUN/outputs/.metrics.jsonl.7.tmp"; exit 3')
    assert console("wait", name).code == 3
    folder = console.folder(name)
    assert list((folder / "outputs").glob(".*")) == []
    assert not (folder / "launcher").exists()
    assert [path.name for path in temporary.iterdir() if "torchelastic" in path.name] == []
