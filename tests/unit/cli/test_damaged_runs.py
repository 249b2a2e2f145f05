"""Commands on runs and sweeps that are damaged, or deleted meanwhile.

An error names the damaged file, and processes that are left end.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from orchestrator.backends.folder.run_folder import RUN_VARIABLE
from orchestrator.client import Orchestrator
from orchestrator.run import Run
from orchestrator.runs.status import SWEEP_TAG, RunState
from orchestrator.sweep import Sweep, Sweeps
from tests.mlflow_runs import make_tracked_run
from tests.run_folders import make_run
from tests.unit.cli.conftest import Command
from tests.unit.sweeps.test_sweep_table import make

NO_SWEEP = ("sweep.json", None)  # a folder without it is that of no sweep
DAMAGES = [None, "", '{"state": "run', "null"]


def damage(path: Path, content: str | None) -> None:
    """Replace the content of a file; None deletes the file."""
    if content is None:
        path.unlink()
    else:
        path.write_text(content)


@pytest.mark.parametrize("content", DAMAGES)
def test_cancel_of_damaged_state_ends_survivors(home: Path, orchestrator: Command, content: str | None) -> None:
    run = make_run(home, "one", RunState.RUNNING, plan={"spec": {"kind": "finetune", "tags": {}}})
    damage(run.state_file, content)
    survivor = subprocess.Popen(["sleep", "600"], env={**os.environ, RUN_VARIABLE: str(run.path)})
    waiter = threading.Thread(target=survivor.wait)  # without a wait, a process that ended still exists
    waiter.start()
    try:
        done = orchestrator("cancel", "one", "-o", "json")
    finally:
        survivor.kill()
        waiter.join()
    assert survivor.returncode == -signal.SIGTERM
    assert done.code == 0
    (status,) = done.json
    assert (status["state"], status["kind"]) == ("failed", "finetune")
    assert "damaged" in status["reason"]
    assert "ended 1 processes of run one" in done.err


def test_cancel_of_damaged_state_asks_living_supervisor(home: Path, orchestrator: Command) -> None:
    run = make_run(home, "one", RunState.RUNNING)
    run.state_file.write_text("")
    with run.lock():
        assert orchestrator("cancel", "one", "--no-wait").code == 0
        assert run.cancel_file.exists()


@pytest.mark.parametrize("verb", ["debug", "preempt", "resume"])
@pytest.mark.parametrize("content", DAMAGES)
def test_damaged_state_is_a_storage_error(home: Path, orchestrator: Command, verb: str, content: str | None) -> None:
    run = make_run(home, "one", RunState.RUNNING)
    damage(run.state_file, content)
    done = orchestrator(verb, "one", *(["-o", "json"] if verb == "debug" else []))
    assert done.code == 1
    assert done.err.startswith("error[storage]: cannot read run one: it is damaged\n")
    assert "state.json" in done.err
    if verb == "debug":
        assert json.loads(done.out)["error"]["fix"] == "orchestrator status one"


@pytest.mark.parametrize("content", ["", "{", "{}"])
def test_damaged_request_is_a_storage_error(home: Path, orchestrator: Command, content: str) -> None:
    (make_run(home, "one", RunState.FAILED).path / "request.json").write_text(content)
    done = orchestrator("resume", "one")
    assert done.err.startswith("error[storage]: cannot read run one: it is damaged\n")
    assert "request.json" in done.err


@pytest.mark.parametrize("words", [("report", "one"), ("diff", "one", "two"), ("diff", "two", "one")])
@pytest.mark.parametrize("content", ['{"metrics": {"loss"', "[]", '"x"'])
def test_damaged_result_is_named(home: Path, orchestrator: Command, words: tuple[str, ...], content: str) -> None:
    make_run(home, "two")
    damaged = make_run(home, "one").outputs / "result.json"
    damaged.write_text(content)
    done = orchestrator(*words)
    assert done.code == 1
    assert done.err.startswith("error[storage]: cannot read run one: it is damaged\n")
    assert "result.json" in done.err
    assert str(damaged.parents[1]) in done.err


@pytest.mark.parametrize(
    ("name", "content"),
    [(name, content) for name in ("state.json", "sweep.json") for content in DAMAGES if (name, content) != NO_SWEEP],
)
def test_damaged_sweep_is_a_storage_error(home: Path, orchestrator: Command, name: str, content: str | None) -> None:
    damage(make(home, name="torn").folder.path / name, content)
    for words in (["sweep", "show"], ["cancel"], ["resume"]):
        done = orchestrator(*words, "torn")
        assert done.code == 1, done.err
        assert done.err.startswith("error[storage]: cannot read sweep torn: it is damaged\n")
        assert name in done.err


@pytest.mark.parametrize("name", ["state.json", "sweep.json"])
def test_damaged_sweep_does_not_hide_others(home: Path, orchestrator: Command, name: str) -> None:
    make(home, name="whole")
    (make(home, name="torn").folder.path / name).write_text("{")
    make_run(home, "torn-t0000", plan={"spec": {"kind": "pretrain", "tags": {SWEEP_TAG: "torn"}}})
    make_run(home, "one")
    listed = orchestrator("list")
    assert listed.code == 0, listed.err
    assert {line.split()[0]: line.split()[1] for line in listed.out.splitlines()[1:]} == {
        "torn": "damaged",
        "one": "completed",
    }
    sweeps = orchestrator("sweep", "list", "-o", "json")
    assert [sweep["name"] for sweep in sweeps.json] == ["whole"]
    assert "warning: cannot read sweep torn: it is damaged" in sweeps.err


@pytest.fixture
def with_deleted(home: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a run, and a newer one that is deleted as soon as a command has listed both."""
    shutil.copy(empty_store, "store.db")
    make_tracked_run(home, "kept", age=10, plan={"world_size": 2, "changes": {}})
    make_tracked_run(home, "gone")
    listed = Orchestrator.attach_all

    def deleting(self: Orchestrator) -> list[Run]:
        runs = listed(self)
        shutil.rmtree(home / "runs" / "gone", ignore_errors=True)
        return runs

    monkeypatch.setattr(Orchestrator, "attach_all", deleting)


@pytest.mark.usefixtures("with_deleted")
@pytest.mark.parametrize(
    "words", [("cost", "--all"), ("mlflow", "sync", "--all"), ("list", "--mlflow", "store.db"), ("wait", "@last")]
)
def test_run_deleted_meanwhile_is_left_out(orchestrator: Command, words: tuple[str, ...]) -> None:
    done = orchestrator(*words, "-o", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out)
    assert '"name": "kept"' in done.out
    assert "gone" not in done.out + done.err


@pytest.mark.usefixtures("with_deleted")
def test_deleted_run_does_not_count_as_failed_copy(orchestrator: Command) -> None:
    done = orchestrator("mlflow", "sync", "--all")
    assert (done.code, done.out.splitlines()[-1]) == (0, "1 of 1 in MLflow")


def test_sweep_deleted_meanwhile_is_left_out(
    home: Path, orchestrator: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(home, name="gone")
    listed = Sweeps.all

    def deleting(self: Sweeps) -> list[Sweep]:
        sweeps = listed(self)
        shutil.rmtree(home / "sweeps" / "gone")
        return sweeps

    monkeypatch.setattr(Sweeps, "all", deleting)
    done = orchestrator("mlflow", "sync", "--all", "-o", "json")
    assert (done.code, done.json) == (0, {"runs": [], "failed": 0})
