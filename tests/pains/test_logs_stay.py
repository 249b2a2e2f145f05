"""Pain 9: logs vanish after the end or a cancellation, or cannot be found by name."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from orchestrator.runs.status import RunState
from tests.conftest import Console, committed, rank_pid, wait_for, write_spec
from tests.run_folders import make_run

pytestmark = pytest.mark.usefixtures("untracked")


@pytest.mark.slow
def test_all_output_kept_after_kill_restart_and_cancel(console: Console, corpus: Path) -> None:
    """One follower reads to the end and prints exactly the stored log."""
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 5000})
    words = ("submit", "pretrain", "-f", "job.yaml", "--max-restarts", "1", "-d", "-o", "json")
    name = console(*words).json["name"]
    folder = console.folder(name)
    log = folder / "logs" / "rank-0.log"
    with (console.cwd / "followed").open("w") as stream:
        following = console.start("logs", name, "-f", stdout=stream)
    wait_for(lambda: committed(folder), what="a checkpoint")
    pid = rank_pid(folder, 0)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "resumed at step" in log.read_text(), what="the second attempt")
    assert console("cancel", name).code == 0
    _, err = following.communicate(timeout=60)
    assert err.endswith(f"cancelled  local://{name}\n")
    assert "stopped by SIGTERM" in log.read_text()
    assert (console.cwd / "followed").read_bytes() == log.read_bytes()
    for run in (name, name[:9], "@last", f"local://{name}"):
        assert console("logs", run).out == log.read_text()
    assert "attempt 1 failed" in console("logs", name, "--launcher").out


@pytest.mark.parametrize("state", list(RunState))
def test_logs_are_found_by_name_in_every_state(console: Console, state: RunState) -> None:
    run = make_run(console.home, "run", state, age=60)  # long enough for a queued run to be considered lost
    run.rank_log(0).write_text("the whole log\n")
    for words in ([], ["-f"], ["--tail", "1"]):
        printed = console("logs", "run", *words)
        assert (printed.code, printed.out) == (0, "the whole log\n"), printed.err


def test_logs_of_damaged_folder_are_printed(console: Console) -> None:
    run = make_run(console.home, "run")
    run.rank_log(0).write_text("the whole log\n")
    for name in ("state.json", "plan.json", "request.json"):
        (run.path / name).write_bytes(b"\0" * 100)
    assert console("status", "run", "-o", "json").json["state"] == "failed"
    for words in (["run"], ["@last"], ["run", "-f"], ["run", "-f", "--all-ranks"]):
        printed = console("logs", *words)
        assert printed.code == 0, printed.err
        assert printed.out.endswith("the whole log\n")
    assert json.loads(console("logs", "run", "-o", "json").out)[0]["text"] == "the whole log"
