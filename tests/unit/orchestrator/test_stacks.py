"""Python stacks of ranks: real processes receive the real signal; others must never receive it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.folder.run_folder import LocalState, RunFolder
from orchestrator.backends.folder.stacks import ranks_stacks
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.client import Orchestrator
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError, NotFoundError
from train_jobs.artifacts.host import boot_id, process_started, process_state

REPOSITORY = Path(__file__).resolve().parents[3]
RANK = """
import signal, sys, time
from pathlib import Path
from train_jobs.engine.runtime.diagnostics import stacks_on_request

def step_in_hand():
    print("up", flush=True)
    sys.stdin.readline()

with stacks_on_request(Path(sys.argv[1]), int(sys.argv[2])):
    step_in_hand()
print("left", flush=True)
sys.stdin.readline()
"""
BLOCKED = """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    print("up", flush=True)
    time.sleep(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
"""
LATE = RANK.replace('\n    print("up", flush=True)\n', BLOCKED)


class Ranks:
    """Processes that respond like those of a job."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, rank: int, program: str = RANK) -> subprocess.Popen[str]:
        """Start a process and wait until it handles the signal."""
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(self.run.outputs), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        self.processes[rank] = process
        self.expect(rank, "up")
        return process

    def advance(self, rank: int) -> None:
        """Let the rank continue to its next line."""
        stdin = self.processes[rank].stdin
        assert stdin is not None
        stdin.write("\n")
        stdin.flush()

    def expect(self, rank: int, line: str) -> None:
        stdout = self.processes[rank].stdout
        assert stdout is not None
        assert stdout.readline() == line + "\n"

    def identity(self, rank: int) -> dict[str, Any]:
        """Return the identity file of a rank."""
        document: dict[str, Any] = json.loads((self.run.stacks / f"rank-{rank}.json").read_text())
        return document

    def pretend(self, rank: int, **changes: Any) -> None:
        """Change the identity file of a rank."""
        (self.run.stacks / f"rank-{rank}.json").write_text(json.dumps({**self.identity(rank), **changes}))


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    """Create a run of two ranks that have not started."""
    run = RunFolder(tmp_path / "runs" / "one")
    run.outputs.mkdir(parents=True)
    (run.path / "request.json").write_text(json.dumps({"nodes": 1, "processes_per_node": 2}))
    (run.path / "lock").touch()
    run.write_state(LocalState(state=RunState.RUNNING, created=1000.0))
    ranks = Ranks(run)
    yield ranks
    for process in ranks.processes.values():
        process.kill()
        process.communicate()


def test_each_rank_prints_its_stacks_repeatedly(ranks: Ranks) -> None:
    for rank in (0, 1):
        ranks.start(rank)
    for _ in range(2):
        found = ranks_stacks(ranks.run, range(2))
        assert list(found) == [0, 1]
        for text in found.values():
            assert text.count(" in step_in_hand\n") == 1
            assert text.startswith("Current thread ")
            assert "most recent call first" in text
            assert text.endswith(" in <module>")
    ranks.advance(0)
    ranks.expect(0, "left")


def test_stopped_rank_is_reported_as_stopped(ranks: Ranks) -> None:
    process = ranks.start(0)
    process.send_signal(signal.SIGSTOP)
    while process_state(process.pid) != "T":
        time.sleep(0.01)
    found = ranks_stacks(ranks.run, range(2))
    assert found[0] == f"process {process.pid} is stopped by a signal (kill -CONT {process.pid} resumes it)"
    assert found[1] == "not up yet: it is still loading its packages"
    process.send_signal(signal.SIGCONT)
    assert " in step_in_hand\n" in ranks_stacks(ranks.run, range(1))[0]
    # no signal was sent while it was stopped
    assert (ranks.run.stacks / "rank-0.txt").read_text().count(" in step_in_hand\n") == 1


def test_late_answer_is_read(ranks: Ranks) -> None:
    ranks.start(0, LATE)
    assert " in step_in_hand\n" in ranks_stacks(ranks.run, range(1))[0]


def test_rank_without_answer_times_out(ranks: Ranks) -> None:
    process = ranks.start(0)
    ranks.advance(0)
    ranks.expect(0, "left")  # it ignores the signal and has not ended
    found = ranks_stacks(ranks.run, range(1), seconds=0.2)
    assert found[0] == f"no answer within 0.2 s: process {process.pid} is in state S"
    assert process.poll() is None  # the late signal has not killed it
    ranks.advance(0)
    assert process.wait(30) == 0


@pytest.mark.parametrize("lie", [{"started": 1}, {"boot": "another"}])
def test_other_process_gets_no_signal(ranks: Ranks, lie: dict[str, Any]) -> None:
    innocent = subprocess.Popen(["sleep", "600"])  # SIGUSR2 would kill it
    try:
        ranks.start(0)
        ranks.pretend(0, pid=innocent.pid, started=process_started(innocent.pid))
        ranks.pretend(0, **lie)
        assert f"its process {innocent.pid} no longer exists" in ranks_stacks(ranks.run, range(1))[0]
        time.sleep(0.1)
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_ended_rank_no_longer_exists(ranks: Ranks) -> None:
    process = ranks.start(0)
    process.kill()
    process.wait()
    assert ranks_stacks(ranks.run, range(1))[0].startswith(f"its process {process.pid} no longer exists")


def test_rank_on_another_machine_names_its_host(ranks: Ranks) -> None:
    ranks.start(0)
    ranks.pretend(0, host="node-7")
    assert ranks_stacks(ranks.run, range(1))[0].endswith("of node-7: run the command there")


def test_backend_reads_stacks_of_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    ranks.start(1)
    with (ranks.run.path / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        run = Orchestrator(home=tmp_path, environ={}).attach("one")
        assert list(run.stacks()) == [0, 1]
        assert list(run.stacks(rank=1)) == [1]
        assert " in step_in_hand\n" in run.stacks(rank=1)[1]
        with pytest.raises(NotFoundError, match="no rank 2") as caught:
            run.stacks(rank=2)
    assert caught.value.facts == {"ranks": "0 to 1"}


def test_ended_run_has_no_stacks_except_last_hang(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run.write_state(LocalState(state=RunState.FAILED, created=1000.0))
    backend = LocalBackend(tmp_path)
    with pytest.raises(ConflictError, match="cannot show the stacks of run one: it is failed") as caught:
        backend.stacks("one")
    assert caught.value.facts == {}
    assert caught.value.fix == "orchestrator status one"
    ranks.run.stacks.mkdir()
    for rank in (1, 0):
        (ranks.run.stacks / f"hang-rank-{rank}.txt").write_text("here")
    with pytest.raises(ConflictError) as caught:
        backend.stacks("one")
    first, second = (ranks.run.stacks / f"hang-rank-{rank}.txt" for rank in (0, 1))
    assert caught.value.facts == {"last hang": f"{first}, {second}"}
    assert caught.value.fix == f"less {first}"


def test_process_is_identified_by_its_start() -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        started = process_started(child.pid)
        assert started is not None
        assert started >= (process_started(os.getpid()) or 0) > 0
        assert process_state(child.pid) in {"S", "R", "D"}
    finally:
        child.kill()
        while process_state(child.pid) != "Z":
            time.sleep(0.01)
        assert process_started(child.pid) is None  # only a zombie
        child.wait()
    assert process_started(child.pid) is None
    assert process_state(child.pid) is None
    assert boot_id() == boot_id() != ""
