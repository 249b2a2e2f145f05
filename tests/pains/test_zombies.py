"""Pain 20: workers that outlive their job, and a resume from an incomplete checkpoint."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import Console, last_step, processes_of, rank_pid, wait_for, write_spec

pytestmark = pytest.mark.usefixtures("untracked")


def submit(console: Console, corpus: Path, *words: str) -> str:
    write_spec(
        console.cwd / "job.yaml",
        data={"text": [str(corpus)]},
        train={"steps": 400},
        checkpoint={"every": 4, "keep_last": 2},
        validation={"every": 400},
    )
    return str(console("submit", "pretrain", "-f", "job.yaml", "-d", "-o", "json", *words).json["name"])


@pytest.mark.slow
def test_killed_launcher_ends_ranks_torn_checkpoint_skipped(console: Console, corpus: Path) -> None:
    name = submit(console, corpus, "--processes", "2")
    folder = console.folder(name)
    checkpoints = folder / "outputs" / "checkpoints"
    wait_for(lambda: len(list(checkpoints.glob("*/COMMIT.json"))) == 2, what="two checkpoints")
    for pid, command in processes_of(folder).items():
        if "loopback_agent.py" in command:
            os.kill(pid, signal.SIGKILL)
    failed = console("wait", name, "-o", "json")
    assert failed.json["state"] == "failed"
    assert processes_of(folder) == {}
    *_, older, newest = sorted(path.parent for path in checkpoints.glob("*/COMMIT.json"))
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])  # like an interrupted copy to a mounted store
    resumed = console("resume", name, "-o", "json")
    assert resumed.code == 0, resumed.err
    assert f"resumed at step {int(older.name.removeprefix('step-'))} " in resumed.err
    state = json.loads((folder / "state.json").read_text())
    assert [attempt["state"] for attempt in state["attempts"]] == ["failed", "completed"]


@pytest.mark.slow
def test_rank_that_ignores_sigterm_is_killed(console: Console, corpus: Path) -> None:
    name = submit(console, corpus)
    folder = console.folder(name)
    wait_for(lambda: last_step(folder) >= 4, what="step 4")
    pid = rank_pid(folder, 0)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    cancelled = console("cancel", name, "-o", "json")
    assert cancelled.json[0]["state"] == "cancelled"
    assert processes_of(folder) == {}
