"""Ranks whose supervisor and launcher were killed together: they end, or status, cancel, prune and resume find them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.backends.folder.cgroup import enter_cgroup, kill_members, make_cgroup, members, remove_cgroup
from orchestrator.backends.local import rank_process
from tests.conftest import Console, last_step, processes_of, rank_pid, wait_for, write_endless_spec
from tests.run_folders import run_script
from train_jobs.artifacts.host import process_started

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("untracked")]


@pytest.fixture
def orphans(console: Console, corpus: Path) -> tuple[str, Path]:
    """Start a run of two ranks, stop rank 1, and kill supervisor, launcher and the parents of the ranks."""
    name = submit(console, corpus)
    folder = console.folder(name)
    pid = rank_pid(folder, 1)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # it does not answer to SIGTERM
    kill_all_but_ranks(folder)
    wait_for(lambda: rank_pid(folder, 0) is None or not_training(folder), what="the end of the training")
    assert pid in processes_of(folder)
    return name, folder


def submit(console: Console, corpus: Path) -> str:
    write_endless_spec(console.cwd / "job.yaml", corpus)
    words = ("submit", "pretrain", "-f", "job.yaml", "--processes", "2", "-d", "-o", "json")
    name = str(console(*words).json["name"])
    wait_for(lambda: last_step(console.folder(name)) >= 4, what="step 4")
    return name


def kill_all_but_ranks(folder: Path) -> None:
    """Kill supervisor, launcher and the parents of the ranks, all with SIGKILL."""
    ranks = {rank_pid(folder, rank) for rank in range(2)}
    state = (folder / "state.json").read_text()
    supervisor = int(state.partition('"pid": ')[2].partition(",")[0])
    for pid in (supervisor, *(pid for pid in processes_of(folder) if pid not in ranks)):
        os.kill(pid, signal.SIGKILL)


def not_training(folder: Path) -> bool:
    step = last_step(folder)
    time.sleep(0.5)
    return last_step(folder) == step


def test_ranks_save_and_end_with_killed_launcher(console: Console, corpus: Path) -> None:
    name = submit(console, corpus)
    folder = console.folder(name)
    kill_all_but_ranks(folder)
    wait_for(lambda: not processes_of(folder), seconds=20, what="the end of the ranks")
    assert list((folder / "outputs" / "checkpoints").glob("*/COMMIT.json"))
    warning = console("status", name, "-o", "json").json["warning"]
    assert "orchestrator cancel" not in (warning or ""), "no rank is left"


def test_other_ranks_explain_a_killed_one_without_traceback(console: Console, corpus: Path) -> None:
    name = submit(console, corpus)
    pid = rank_pid(console.folder(name), 1)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert console("wait", name).code != 0
    assert "rank 1 was killed by signal SIGKILL" in console("status", name, "-o", "json").json["reason"]
    log = console("logs", name, "--rank", "0").out
    assert "error[peer]: rank 0 lost the connection to another process of the job" in log
    assert "Traceback" not in log


def test_status_and_debug_show_surviving_rank(console: Console, orphans: tuple[str, Path]) -> None:
    name, folder = orphans
    status = console("status", name, "-o", "json").json
    assert status["state"] == "failed"
    assert str(rank_pid(folder, 1)) in status["warning"]
    assert f"orchestrator cancel {name}" in status["warning"]
    shown = console("debug", name, "--rank", "1")
    assert "stopped by a signal" in shown.out, shown.err
    cancelled = console("cancel", name)
    assert cancelled.code == 0
    assert "whose supervisor was lost" in cancelled.err
    assert not processes_of(folder)


def test_prune_ends_surviving_rank_first(console: Console, orphans: tuple[str, Path]) -> None:
    _, folder = orphans
    pruned = console("prune", "--state", "failed", "--yes", "-o", "json")
    assert pruned.code == 0, pruned.err
    assert not processes_of(folder)
    assert not folder.exists()


def test_resume_ends_surviving_rank_first(console: Console, orphans: tuple[str, Path]) -> None:
    name, folder = orphans
    pid = rank_pid(folder, 1)
    resumed = console("resume", name, "-d")
    assert resumed.code == 0, resumed.err
    assert pid not in processes_of(folder)
    wait_for(lambda: rank_pid(folder, 1) is not None, what="the new rank")
    assert console("cancel", name).code == 0


def test_detached_process_ends_with_its_run(console: Console, tmp_path: Path) -> None:
    """A process in another session, with another parent and an empty environment is found by its control group."""
    probe = make_cgroup(tmp_path)
    if probe is None:
        pytest.skip("no writable cgroup v2 with cgroup.kill on this machine")
    remove_cgroup(tmp_path)
    assert not probe.exists()
    pid_file = tmp_path / "pid"
    name = run_script(console.home, f"env -i setsid sleep 600 & echo $! >> {pid_file}; sleep 0.5; exit 3")
    assert console("wait", name).code == 3
    pids = [int(line) for line in pid_file.read_text().split()]
    assert pids
    assert [pid for pid in pids if process_started(pid) is not None] == []
    assert not (console.folder(name) / "cgroup").exists()


def test_missing_cgroup_is_no_error(tmp_path: Path) -> None:
    """The path of a group that does not exist, as after a reboot of the machine."""
    (tmp_path / "cgroup").write_text(f"{tmp_path}/missing\n")
    enter_cgroup(tmp_path / "missing")
    assert members(tmp_path) == set()
    kill_members(tmp_path)
    remove_cgroup(tmp_path)


ADOPTER = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER, as `systemd --user` does
command = f"sleep 0.3; exec {sys.executable} -I -S {sys.argv[1]} sleep 60"
variables = {"RANK": "0", "RUN_EXITS": sys.argv[2], "RUN_LOGS": sys.argv[2]}
subprocess.run(["sh", "-c", f"({command}) & exit 0"], env={**os.environ, **variables})
os.wait()
"""


def test_rank_ends_whose_launcher_died_before_it_started(tmp_path: Path) -> None:
    """Its parent is then not init but a process that adopts orphans, such as the one of a desktop session."""
    variables = {key: value for key, value in os.environ.items() if key != "RUN_EXITS"}
    command = [sys.executable, "-c", ADOPTER, rank_process.__file__, str(tmp_path)]
    subprocess.run(command, env=variables, check=True, timeout=20, start_new_session=True)
    assert (tmp_path / "rank-0").read_text() == "-15\n"
