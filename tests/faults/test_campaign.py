"""The campaign itself: one trial, and the page of its results."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest

from orchestrator.runs.supervised_folder import KILLED
from tests.conftest import Console, wait_for
from tests.faults.campaign import disks, trial
from tests.faults.campaign.__main__ import read_results, stamp, wanted
from tests.faults.campaign.faults import FAULTS, Fault
from tests.faults.campaign.interpreter import CLOCK, kill_at_call, make_interpreter
from tests.faults.campaign.page import page
from tests.faults.campaign.scene import Scene, Undisturbed, processes, signal_all
from tests.faults.campaign.trial import (
    Outcome,
    left_behind,
    left_in_temporary,
    one_mlflow_run_each,
    run_trial,
    undisturbed,
)

STAMP = {"commit": "0123abc", "date": "2026-11-23", "machine": "a processor, 2 cores"}


def outcome(**more: object) -> Outcome:
    held = {"same_bytes": True, "metrics_once": True, "mlflow_runs": True, "reason_true": True, "reason": ""}
    lists: dict[str, list[str]] = {"processes_left": [], "files_left": [], "commands": []}
    facts = {"fault": "kill-rank", "kind": "pretrain", "seed": 0, "moment": 0.5, "noticed": 1.5}
    return Outcome.model_validate({**STAMP, **held, **lists, **facts, **more})


def test_preparation_whose_processes_are_killed_passes() -> None:
    """The one real trial of `make test`, of about 20 seconds, and therefore not marked as long."""
    whole = undisturbed("prepare")
    assert {"command", "supervisor"} <= whole.present.keys()
    assert all(0 < first <= last <= 1 for first, last in whole.present.values())
    trials = (run_trial("kill-all", "prepare", seed, whole, STAMP) for seed in range(10))
    found = next(trial for trial in trials if trial is not None and trial.commands)  # others hit a finished job
    assert found.passed, found


def test_moments_are_those_at_which_there_is_something_to_hit() -> None:
    present = {"rank": (0.5, 0.6), "agent": (0.9, 1.0)}
    job = Undisturbed(seconds=1, digest="", metrics=[], bytes=0, present=present)
    draw = Random(0)
    for roles, spans in ((("rank",), [(0.5, 0.6)]), (("rank", "agent"), [(0.5, 0.6), (0.9, 1.0)]), ((), [(0, 1)])):
        moments = [job.draw_moment(draw, roles) for _ in range(500)]
        inside = [sum(first <= moment <= last for moment in moments) for first, last in spans]
        assert sum(inside) == len(moments)
        assert min(inside) > len(moments) / len(spans) / 2
    assert min(moments) < 0.1 < 0.9 < max(moments), "no role: the whole run"


def test_moment_is_counted_from_what_can_be_hit(tmp_path: Path) -> None:
    """The processes of a busy machine start later than those of the undisturbed job."""
    scene = scene_of(tmp_path)
    scene.reference.present["other"], scene.moment = (0.2, 0.9), 0.2
    scene.wait_for_moment(("other",), over=lambda: True)  # a submission that ended has nothing more to hit
    assert not processes(tmp_path)
    environ = {"ORCHESTRATOR_HOME": str(tmp_path), "PATH": os.defpath}
    started: list[subprocess.Popen[bytes]] = []
    late = threading.Timer(0.5, lambda: started.append(subprocess.Popen(["sleep", "60"], env=environ)))
    late.start()
    scene.wait_for_moment(("other",), over=lambda: False)
    assert signal_all(tmp_path, "other") == [started[0].pid]
    started[0].wait()


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_interpreter_kills_one_process_at_a_system_call(tmp_path: Path) -> None:
    options = "-e trace=openat -e inject=openat:signal=KILL:when=40"
    program = make_interpreter(tmp_path / "environment", {"command": options}, once=True)
    command = [program, "-m", "orchestrator.cli.main", "--version"]
    codes = [subprocess.run(command, capture_output=True, check=False).returncode for _ in range(2)]
    assert codes == [-signal.SIGKILL, 0]
    (trace,) = (tmp_path / "environment").glob("command.*.calls")
    assert "killed by SIGKILL" in trace.read_text()


def test_repeated_trial_hits_the_same_system_call(tmp_path: Path) -> None:
    """The calls of a job are traced again in each campaign, and vary by what the disk already has."""
    scene = scene_of(tmp_path)
    scene.detail = "fsync 18 of a rank"
    with kill_at_call("rank")(scene):
        assert "inject=fsync:signal=KILL:when=18" in Path(scene.console.program[0]).read_text()
        assert scene.detail == "fsync 18 of a rank"


def test_interpreter_sets_the_clock(tmp_path: Path) -> None:
    (tmp_path / "clock").write_text("86400")
    program = make_interpreter(tmp_path / "environment", {}, hook=CLOCK.format(path=str(tmp_path / "clock")))
    script = "import sys, time; print(sys.executable); print(time.time())"
    done = subprocess.run([program, "-c", script], capture_output=True, text=True, check=True)
    executable, now = done.stdout.split()
    assert executable == program
    assert 86_000 < float(now) - time.time() < 87_000


@pytest.mark.slow
def test_killed_preparation_passes_a_trial() -> None:
    reference = undisturbed("prepare")
    found = next(
        one
        for seed in range(20)
        if (one := run_trial("kill-supervisor", "prepare", seed, reference, STAMP)) is not None
    )
    assert found.passed, found


KILLED_WHILE_WRITING = """\
import os, sqlite3, sys
store = sqlite3.connect(sys.argv[1], isolation_level=None)
store.execute("PRAGMA cache_size = 1")
store.execute("BEGIN")
store.executemany("INSERT INTO tags VALUES ('orchestrator.run', ?)", [("x" * 500,)] * 100)
os._exit(0)
"""


def test_check_of_mlflow_runs_changes_nothing(tmp_path: Path) -> None:
    """Opened for writing, SQLite rolls back the journal of a killed process, and creates a missing store."""
    assert not one_mlflow_run_each(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        store.execute("CREATE TABLE tags (key TEXT, value TEXT)")
    store.close()
    assert one_mlflow_run_each(tmp_path)
    subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(tmp_path / "mlflow.db")], check=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before["mlflow.db-journal"]
    assert not one_mlflow_run_each(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def scene_of(home: Path) -> Scene:
    reference = Undisturbed(seconds=0, digest="", metrics=[], bytes=0)
    return Scene(Console(home, home), "sweep", 0.0, reference, ("--version",), Random(0))


@pytest.mark.parametrize(("state", "hit"), [("completed", False), ("running", True)])
def test_files_of_a_completed_job_are_not_damaged(tmp_path: Path, state: str, hit: bool) -> None:
    """Only the copy to MLflow is killed then: no command of the user reads the store again."""
    run, shard = tmp_path / "runs/a", tmp_path / "token-stores/b/shard-00000-train.arrow"
    for path, text in ((run / "state.json", json.dumps({"state": state})), (shard, "content")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    with subprocess.Popen(["sleep", "60"], env={"ORCHESTRATOR_HOME": str(tmp_path), "PATH": os.defpath}):
        wait_for(lambda: bool(processes(tmp_path)), what="the process")
        assert disks.damage(disks.flip)(scene_of(tmp_path)) is hit
    assert (shard.read_bytes() != b"content") is hit


def test_reason_is_read_before_the_repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason that names a read-only disk is only known while the disk is read-only."""
    order: list[str] = []
    monkeypatch.setattr(trial, "_ended", lambda *_: (order.append("reason") or [], None))
    monkeypatch.setattr(trial, "_judged", lambda *_: {})
    hit = Fault("a fault", lambda _: True, after=lambda _: order.append("repair") is None)
    assert trial._hit_and_judge(scene_of(tmp_path), hit) == {}
    assert order == ["reason", "repair"]


def test_reason_of_a_lost_driver_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "sweeps/a"
    folder.mkdir(parents=True)
    for name, document in (("sweep.json", "{}"), ("state.json", '{"state": "running"}')):
        (folder / name).write_text(document)
    assert trial._ended(scene_of(tmp_path), time.monotonic())[0] == [f"driver lost: {KILLED}"]


def test_page_shows_failing_trials() -> None:
    text = page([outcome(), outcome(seed=1, same_bytes=False, noticed=3.0)])
    (row,) = [line for line in text.splitlines() if 'id="kill-rank-pretrain"' in line]
    assert row.endswith("| pretrain | 2 | 0 | **1** | 2 | 2 | 2 | - | 2.2 (at most 3.0) |")
    assert "- kill-rank, pretrain, seed 1 (at 50%): bytes differ" in text
    assert "Failing trials" not in page([outcome()])


def test_page_shows_seeds_that_failed_before() -> None:
    failing = outcome(same_bytes=False, commit="a1", in_history=False)
    other = outcome(seed=1, mlflow_runs=False, commit="b2")
    text = page([failing, other, outcome(commit="b2"), outcome(seed=1, commit="b2")])
    (row,) = [line for line in text.splitlines() if 'id="kill-rank-pretrain"' in line]
    assert row.endswith("| pretrain | 2 | 2 | 2 | 2 | 2 | 2 | - | 1.5 (at most 1.5) |")
    assert "Failing trials" not in text
    assert "seed 0 (at 50%): failed on a1 (not in the history), passes on b2: bytes differ\n- " in text
    assert (
        "seed 1 (at 50%): failed on b2, passes on b2: MLflow runs differ\n  **It failed and passed on the same commit"
        in text
    )
    assert "failed before and pass now" not in page([failing, outcome(seed=1)])


def test_page_shows_rows_that_are_not_tried() -> None:
    lines = page([outcome()]).splitlines()
    (row,) = [line for line in lines if 'id="network-100-nodes-2"' in line]
    assert row.endswith("| nodes-2 | 0 | - | - | - | - | - | - | - |")
    cells = {f'id="{name}-{kind}"' for name, fault in FAULTS.items() for kind in fault.kinds}
    assert not [cell for cell in cells if not any(cell in line for line in lines)]


def test_page_counts_true_reasons_of_trials_that_ended() -> None:
    ended, unnamed = outcome(seed=1, reason="signal 9"), outcome(seed=2, reason_true=False)
    assert "| 2 | 2 | 1 of 1 | 1.5 (at most 1.5) |" in page([outcome(), ended])
    assert "| 3 | 3 | **1 of 2** | 1.5 (at most 1.5) |" in page([outcome(), ended, unnamed])


def test_page_names_machines_of_the_trials() -> None:
    text = page([outcome(), outcome(seed=1), outcome(seed=2, machine="another processor")])
    assert "Trials by machine: 2 on a processor, 2 cores; 1 on another processor." in text


def test_page_counts_commits_outside_of_the_history() -> None:
    text = page([outcome(), outcome(seed=1, commit="4567def", in_history=False)])
    assert "Commits: `0123abc 4567def`." in text
    assert "The commit of 1 trial is not in the history of the project: 4567def." in text
    assert "not in the history" not in page([outcome()])


def test_page_counts_seeds_without_result() -> None:
    assert "3 more seeds" in page([outcome(seed=1), outcome(seed=4)])


def test_stamp_names_machine_and_changed_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    results = tmp_path / "tests/faults/campaign/results.jsonl"
    results.parent.mkdir(parents=True)
    for path in (results, tmp_path / "file"):
        path.write_text("1")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "first")):
        subprocess.run(["git", *words], check=True)
    assert re.fullmatch(r"[0-9a-f]{7,}", stamp()["commit"])
    assert ", torch " in stamp()["machine"]
    (tmp_path / "untracked").touch()
    results.write_text("2")
    assert not stamp()["commit"].endswith("+")
    (tmp_path / "file").write_text("2")
    assert stamp()["commit"].endswith("+")


@pytest.mark.parametrize(
    "name",
    [
        ".mlflow.db.draft-journal",
        "runs/a/.mlflow-17/spec.yaml",
        "runs/a/launcher/attempt_0/error.json",
        "cache/file.part",
        "token-stores/.a.building",
        "sweeps/a/study.journal.lock.1",
        "runs/a/outputs/predictions.jsonl.parts/0.jsonl",
    ],
)
def test_temporary_files_are_left_behind(tmp_path: Path, name: str) -> None:
    kept, path = tmp_path / "runs/a/outputs/metrics.jsonl", tmp_path / name
    for one in (kept, path):
        one.parent.mkdir(parents=True, exist_ok=True)
        one.touch()
    (found,) = left_behind(tmp_path)
    assert name.startswith(found)


def test_temporary_folder_must_be_empty(tmp_path: Path) -> None:
    (tmp_path / "torchinductor_root").mkdir()
    assert left_in_temporary(tmp_path) == []
    (tmp_path / "torchinductor_root/kernel").touch()
    (tmp_path / "orchestrator-1").mkdir()
    assert left_in_temporary(tmp_path) == ["TMPDIR/orchestrator-1", "TMPDIR/torchinductor_root/kernel"]


def test_slow_faults_are_wanted_ten_times() -> None:
    tried = [outcome(fault="network-100", kind="nodes-2", seed=seed) for seed in range(10)]
    assert wanted(tried[:9], ["network-100"], ["nodes-2"]) == [("network-100", "nodes-2")]
    assert wanted(tried, ["network-100"], ["nodes-2"]) == []


def test_repeated_trial_counts_once_with_its_last_outcome(tmp_path: Path) -> None:
    failing, other = outcome(same_bytes=False), outcome(seed=1)
    results = tmp_path / "results.jsonl"
    results.write_text("".join(f"{one.model_dump_json()}\n" for one in (failing, other, outcome())))
    assert read_results(results) == [outcome(), other]


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_each_fault_is_wanted_until_it_was_tried_often_enough(fault: str) -> None:
    kinds = list(FAULTS[fault].kinds)
    assert {kind for _, kind in wanted([], [fault], kinds)} == set(kinds)
    tried = [outcome(fault=fault, kind=kind, seed=seed) for kind in kinds for seed in range(100)]
    assert wanted(tried, [fault], kinds) == []
