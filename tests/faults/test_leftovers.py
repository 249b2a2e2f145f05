"""Files that an attempt must not leave behind: of torchrun, and of processes that were killed while they wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Console
from tests.run_folders import run_script

ROOT = Path(__file__).resolve().parents[2]


def test_attempt_leaves_no_temporary_files(console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    name = run_script(
        console.home, 'cd "$ORCHESTRATOR_RUN/outputs"; touch .metrics.jsonl.7.tmp .probe-7 .seen-7; exit 3'
    )
    assert console("wait", name).code == 3
    folder = console.folder(name)
    assert list((folder / "outputs").glob(".*")) == []
    assert not (folder / "launcher").exists()
    assert [path.name for path in temporary.iterdir() if "torchelastic" in path.name] == []


@pytest.mark.long
def test_finished_runs_leave_nothing_but_their_folders() -> None:
    """With a home, a HOME and a temporary folder of their own; the benchmark does the same with 200 runs."""
    command = [sys.executable, "-m", "benchmarks.load", "leftovers=2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert "outside these folders 0 files []" in done.stdout, done.stdout + done.stderr
