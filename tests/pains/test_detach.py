"""Pain 10: detaching from a running run and attaching again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.cli.ui.follow import ATTACH_LINES
from orchestrator.runs.status import RunState
from tests.conftest import Console, last_step, wait_for, write_spec
from tests.run_folders import live_run

NEXT_COMMANDS = ("orchestrator status ", "orchestrator logs ", "orchestrator cancel ")


@pytest.mark.long
def test_detached_run_can_be_attached_again(console: Console, untracked: None, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 5000, "log_every": 1})
    handle = console("submit", "pretrain", "-f", "job.yaml", "-d").out.strip()
    name = handle.removeprefix("local://")
    folder = console.folder(name)
    wait_for(lambda: last_step(folder) >= ATTACH_LINES + 5, what="more lines than are shown again")
    for words in (("attach", handle), ("logs", handle, "-f")):
        step = last_step(folder)
        following = console.start(*words)
        watched = following.stdout if words[0] == "logs" else following.stderr
        assert watched is not None
        wait_for(lambda watched=watched: "step" in watched.readline(), what="a line")
        following.send_signal(signal.SIGINT)
        out, err = following.communicate(timeout=30)
        assert following.returncode == 130
        assert "error[interrupted]: stopped following; the job continues" in err
        assert handle in err
        for command in NEXT_COMMANDS:
            assert command + name in err
        if words[0] == "attach":
            assert out == ""
            assert re.search("step +1/5000", err) is None  # not the log of a whole week again
        wait_for(lambda step=step: last_step(folder) > step, what="the job, going on")
    assert console("cancel", name, "-o", "json").json[0]["state"] == "cancelled"


def assert_leaves(following: subprocess.Popen[str], name: str) -> None:
    """Assert that Ctrl-C ends the command and prints how to attach again."""
    following.send_signal(signal.SIGINT)
    assert following.wait(timeout=30) == 130
    assert following.stderr is not None
    err = following.stderr.read()
    for command in NEXT_COMMANDS:
        assert command + name in err


def close(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()


@pytest.mark.parametrize("state", [RunState.QUEUED, RunState.STARTING])
def test_detach_before_run_has_started(console: Console, state: RunState) -> None:
    with live_run(console.home, "run", state) as run:
        run.rank_log(1).write_text("rank 1 is there\n")
        following = console.start("logs", "run", "-f", "--all-ranks")
        assert following.stdout is not None
        assert following.stdout.readline() == "[0:1] rank 1 is there\n"
        assert_leaves(following, "run")
        close(following)


def test_detach_with_stalled_reader(console: Console) -> None:
    with live_run(console.home, "run") as run:
        run.rank_log(0).write_text("step 1/1000\n" * 1_000_000)
        following = console.start("logs", "run", "-f")
        assert following.stdout is not None
        wait_for(lambda: os.read(following.stdout.fileno(), 1), what="the first line")
        assert_leaves(following, "run")
        close(following)


def test_reader_closing_pipe_ends_command_silently(console: Console) -> None:
    """`orchestrator logs RUN -f | head -1` for a run that no longer prints."""
    with live_run(console.home, "run") as run:
        run.rank_log(0).write_text("one\ntwo\n")
        following = console.start("logs", "run", "-f")
        assert following.stdout is not None
        assert following.stdout.readline() == "one\n"
        following.stdout.close()
        assert following.wait(timeout=30) == 0
        assert following.stderr is not None
        assert following.stderr.read() == ""
        following.stderr.close()


TWO_LINES = """
import pathlib, sys, time
print("hello", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
print("bye", flush=True)
sys.exit(3)
"""


def run_unread(console: Console, *words: str, stdout: int | None = None) -> tuple[int, str]:
    """Run a command whose stderr, and stdout unless another one is given, has no reader; return its code and stdout."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [*console.program, "-m", "orchestrator.cli.main", *words]
    done = subprocess.run(
        command,
        stdout=writing if stdout is None else stdout,
        stderr=writing,
        text=True,
        cwd=console.cwd,
        env=console.environ(),
        timeout=120,
        check=False,
    )
    os.close(writing)
    return done.returncode, done.stdout


@pytest.mark.long
def test_submit_without_a_reader_submits(console: Console, untracked: None) -> None:
    """`orchestrator submit ... 2>&1 | head -1`: plan and warnings are written before the submission."""
    (console.cwd / "job.py").write_text("import sys\n\nsys.exit(int(sys.argv[1]))\n")
    assert run_unread(console, "submit", "command", "-d", "--", "python", "job.py", "0") == (0, None)
    (run,) = console("list", "-o", "json").json
    assert console("wait", run["name"]).code == 0
    (console.cwd / "job.py").write_text(TWO_LINES)
    go = console.cwd / "go"
    command = ("submit", "command", "-o", "json", "--", "python", "job.py", str(go))
    words = [*console.program, "-m", "orchestrator.cli.main", *command]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=console.cwd, env=console.environ(), **streams) as submit:  # type: ignore[call-overload]
        wait_for(lambda: "hello" in submit.stderr.readline(), what="the first line of the job")
        submit.stderr.close()
        go.touch()
        document = json.loads(submit.stdout.read())
    assert (submit.returncode, document["state"]) == (3, "failed"), "only stderr has no reader"


@pytest.mark.parametrize("busy", [False, True])
def test_follower_without_a_reader_leaves(console: Console, busy: bool) -> None:
    """`orchestrator attach RUN 2>&1 | head -1`, which writes to stderr until the run has finished."""
    with live_run(console.home, "run") as run:
        run.rank_log(0).write_text("one\ntwo\n")
        ended = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(print_often, run.rank_log(0), ended) if busy else None
            try:
                assert run_unread(console, "attach", "run") == (0, None)
            finally:
                ended.set()
        assert job is None or job.result() > 0


def print_often(log: Path, ended: threading.Event) -> int:
    """Append lines, a hundred times a second; return their number."""
    lines = 0
    with log.open("a") as file:
        while not ended.wait(0.01):
            lines += file.write("line\n")
            file.flush()
    return lines
