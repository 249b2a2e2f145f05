"""Runs that hang: inspected while they hang, ended by the watchdog, and completed by a second attempt."""

from __future__ import annotations

import json
import os
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event

from tests.conftest import Console, last_step, processes_of, rank_pid, wait_for, write_spec

pytestmark = pytest.mark.usefixtures("untracked")

HANG = """\"\"\"Found on PYTHONPATH by every Python of the run: the first attempt's rank 1 hangs after step 7.\"\"\"
import os, sys, time
from pathlib import Path

marker = Path(__file__).with_name("hung")

def hanging_here(path):
    path.touch()
    time.sleep(600)

if os.environ.get("RANK") == "1" and not marker.exists():
    sys.path.insert(0, os.getcwd())  # the snapshot; python -m adds it too, and later
    from train_jobs.engine.loop.loop import Loop

    step = Loop._step

    def step_or_hang(self):
        if self.state.step == 7 and not marker.exists():
            hanging_here(marker)
        return step(self)

    Loop._step = step_or_hang
"""


def steps_in_events(folder: Path) -> list[int]:
    """Return the steps of the training loss in the only event file of a run."""
    (path,) = folder.iterdir()
    content, steps = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        event = Event.FromString(content[12 : 12 + length])
        steps += [event.step for value in event.summary.value if value.tag == "train_loss"]
        content = content[16 + length :]
    return steps


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> tuple[Console, str, dict[str, Any], dict[str, Any]]:
    """Return a run of two ranks, one of which hung once: console, name, stacks during the hang, final status."""
    from tests.conftest import write_corpus

    folder = tmp_path_factory.mktemp("hung")
    console = Console(home=folder / "home", cwd=folder)
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(HANG)
    write_spec(
        folder / "job.yaml",
        data={"text": [str(write_corpus(folder / "corpus.txt"))]},
        watchdog={"hang_minutes": 0.2},
    )
    started = console(
        *("submit", "pretrain", "-f", "job.yaml", "--processes", "2", "--max-restarts", "1", "-d", "-o", "json"),
        *("--profile", "2", "--tensorboard", "--env", f"PYTHONPATH={folder / 'hook'}"),
    )
    assert started.code == 0, started.err
    name = started.json["name"]
    wait_for(lambda: (folder / "hook" / "hung").exists(), what="the hang")
    looked = console("debug", name, "-o", "json")
    assert looked.code == 0, looked.err
    done = console("wait", name, "--timeout", "3m", "-o", "json")
    assert done.code == 0, done.err
    assert not processes_of(console.folder(name))
    return console, name, looked.json, done.json


Hung = tuple[Console, str, dict[str, Any], dict[str, Any]]


@pytest.mark.slow
def test_debug_shows_stacks_of_live_run(hung: Hung) -> None:
    _, name, looked, _ = hung
    assert looked["run"] == f"local://{name}"
    assert list(looked["stacks"]) == ["0", "1"]
    assert " in hanging_here\n" in looked["stacks"]["1"]
    assert " in all_reduce\n" in looked["stacks"]["0"]
    assert "most recent call first" in looked["stacks"]["0"]


@pytest.mark.slow
def test_hanging_rank_exits_76_and_restart_completes(hung: Hung) -> None:
    console, name, _, status = hung
    assert (status["state"], status["attempt"], status["step"]) == ("completed", 2, 12)
    exits = {path.name: path.read_text() for path in (console.folder(name) / "exits" / "attempt-1").glob("rank-*")}
    assert exits == {"rank-0": "76\n", "rank-1": "76\n"}
    log = (console.folder(name) / "logs" / "supervisor.log").read_text()
    assert "attempt 1 failed: error[hang]: rank 1 made no progress for 12 s (last: optimizer of step 7)" in log
    logs = [(console.folder(name) / "logs" / f"rank-{rank}.log").read_text() for rank in (0, 1)]
    assert " in hanging_here\n" in logs[1]
    assert " in all_reduce\n" in logs[0]
    assert "resumed at step 6" in logs[0]


@pytest.mark.slow
def test_profile_is_in_status_and_report(hung: Hung) -> None:
    console, name, _, status = hung
    assert Path(status["trace"]).is_file()
    assert f"trace       {status['trace']}" in console("status", name).out
    page = Path(console("report", name, "-o", "json").json["report"]).read_text()
    assert "<h2>Profile</h2>" in page
    assert "aten::" in page
    assert status["trace"] in page


@pytest.mark.slow
def test_event_files_contain_each_step_once(hung: Hung) -> None:
    console, name, _, status = hung
    assert steps_in_events(Path(status["tensorboard"])) == [2, 4, 6, 8, 10, 12]
    assert f"tensorboard --logdir {status['tensorboard']}" in console("status", name).err


@pytest.mark.slow
def test_debug_of_finished_run_names_stacks_of_last_hang(hung: Hung) -> None:
    console, name, _, _ = hung
    refused = console("debug", name)
    assert refused.code == 1
    assert refused.out == ""
    assert refused.err.startswith(f"error[conflict]: cannot show the stacks of run {name}: it is completed")
    hang = console.folder(name) / "outputs" / "stacks" / "hang-rank-1.txt"
    assert str(hang) in refused.err
    assert " in hanging_here\n" in hang.read_text()


@pytest.mark.slow
def test_reattach_creates_no_run_ignored_options_reported(hung: Hung) -> None:
    console, name, _, _ = hung
    again = console(
        *("submit", "pretrain", "-f", "job.yaml", "--processes", "2", "--max-restarts", "1", "-o", "json"),
        *("--profile", "5", "--tensorboard", "--env", f"PYTHONPATH={console.cwd / 'hook'}"),
    )
    assert again.json["name"] == name
    (warning,) = [line for line in again.err.splitlines() if line.startswith("warning: ")]
    assert warning == ("warning: profile.steps=5 has no effect on the existing run; --new starts another run")


@pytest.mark.slow
def test_stopped_rank_ends_attempt_and_is_killed(console: Console, corpus: Path) -> None:
    """A stopped rank cannot report and the launcher waits half a minute for it; the other rank reports the hang."""
    write_spec(
        console.cwd / "job.yaml",
        data={"text": [str(corpus)]},
        train={"steps": 400},
        checkpoint={"every": 50},
        validation={"every": 400},
        watchdog={"hang_minutes": 0.2},
    )
    words = ("submit", "pretrain", "-f", "job.yaml", "--processes", "2", "--max-restarts", "1", "-d", "-o", "json")
    name = console(*words).json["name"]
    folder = console.folder(name)
    wait_for(lambda: last_step(folder) >= 6, what="step 6")
    pid = rank_pid(folder, 1)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    stacks = wait_for(
        lambda: (shown := console("debug", name, "--rank", "1").out) and "stopped by a signal" in shown and shown,
        what="a rank that is stopped",
    )
    assert stacks == f"rank 1\nprocess {pid} is stopped by a signal (kill -CONT {pid} resumes it)\n"
    wait_for(lambda: console("status", name, "-o", "json").json["attempt"] == 2, what="the second attempt")
    log = (folder / "logs" / "supervisor.log").read_text()
    assert "attempt 1 failed: error[hang]: rank 0 made no progress for 12 s (last: " in log
    assert "silent  rank 1: stopped" in log
    assert pid not in processes_of(folder)
    done = console("wait", name, "--timeout", "3m", "-o", "json")
    assert done.code == 0, done.err
    assert json.loads((folder / "exits" / "attempt-1" / "rank-0").read_text()) == 76
