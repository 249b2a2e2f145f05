"""A home folder that was moved or copied: paths in its documents, and processes that belong to the original."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import purging
from orchestrator.backends.folder.run_folder import RUN_VARIABLE, RunFolder
from orchestrator.backends.folder.run_processes import processes_of
from orchestrator.backends.folder.served_models import delete
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.client import Orchestrator
from orchestrator.runs.status import RunState
from orchestrator.support.moved_home import FolderIdentity, MovedHome
from orchestrator.sweeps.design.sweep_record import SweepRecord
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from tests.run_folders import make_run
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.host import boot_id, process_started
from train_jobs.artifacts.tracking.mlflow_store import relocate_artifacts


def make_home_run(home: Path, name: str = "one", state: RunState = RunState.FAILED, **more: Any) -> RunFolder:
    """Create the folder of a run whose request has paths below the home, as a real one has."""
    run = make_run(home, name, state, **more)
    request = run.read_json("request.json") | {
        "tracking_uri": f"sqlite:///{home / 'mlflow.db'}",
        "token_stores": str(home / "token-stores"),
        "command": ["python", "--config", str(run.config), f"--output={run.outputs}", f"/{home.name}/elsewhere"],
    }
    (run.path / "request.json").write_text(json.dumps(request))
    run.config.write_text(json.dumps({"data": {"text": ["/data/text", f"{home}-other/text"]}}))
    return run


@contextmanager
def sleeping(**variables: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **variables}) as process:
        try:
            yield process
        finally:
            process.kill()


def supervisor(pid: int, folder: Path) -> dict[str, Any]:
    """Return the fields by which a state names its supervisor."""
    identity = {"pid": pid, "pid_started": process_started(pid), "boot_id": boot_id()}
    return {**identity, "folder": FolderIdentity.of(folder)}


def copied(home: Path) -> Path:
    return Path(shutil.copytree(home, home.with_name("copy"), symlinks=True))


def test_documents_of_moved_home_have_present_paths(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    make_home_run(home)
    home.rename(other)
    run = RunFolder(other / "runs" / "one")
    request = json.loads(LocalBackend(other).read("one", "request.json"))
    assert request == run.read_json("request.json")
    assert request["command"] == [
        *("python", "--config", str(run.config), f"--output={run.outputs}"),
        "/home/elsewhere",
    ]
    assert request["tracking_uri"] == f"sqlite:///{other}/mlflow.db"
    assert run.read_json("config.json")["data"]["text"] == ["/data/text", f"{home}-other/text"]
    assert LocalBackend(other).describe("one").tracking_uri == request["tracking_uri"]


def test_link_to_home_is_no_move(tmp_path: Path) -> None:
    home, link = tmp_path / "home", tmp_path / "link"
    make_home_run(home)
    link.symlink_to(home)
    assert RunFolder(link / "runs" / "one").moved_home() is None
    assert LocalBackend(link).describe("one").tracking_uri == f"sqlite:///{home}/mlflow.db"


def test_paths_through_link_follow_moved_home(tmp_path: Path) -> None:
    """Paths of a spec are stored without links, those of the home folder as the user named it."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    moved = real.rename(tmp_path / "moved")
    found = MovedHome.find([str(link), str(real)], moved)
    assert found is not None
    assert found.follow({"a": [f"{link}/x", f"{real}/y", 3]}) == {"a": [f"{moved}/x", f"{moved}/y", 3]}


def test_home_at_two_mount_points_is_no_move(tmp_path: Path) -> None:
    home, mount = tmp_path / "home", tmp_path / "mount"
    make_home_run(home)
    mount.mkdir()
    done = subprocess.run(["mount", "--bind", str(home), str(mount)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        assert RunFolder(mount / "runs" / "one").moved_home() is None
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_status_and_list_write_nothing_in_moved_home(tmp_path: Path) -> None:
    """Another machine may have the same folder at the former path, and runs there."""
    make_home_run(tmp_path / "home")
    other = (tmp_path / "home").rename(tmp_path / "other")
    documents = list((other / "runs").rglob("*"))
    before = {path: (path.stat().st_mtime_ns, path.is_file() and file_sha256(path)) for path in documents}
    assert [status.name for status in LocalBackend(other).list()] == ["one"]
    assert before == {path: (path.stat().st_mtime_ns, path.is_file() and file_sha256(path)) for path in documents}


def test_documents_are_replaced_once_below_former_path(tmp_path: Path) -> None:
    """A resume that was killed has replaced some documents: the next one must not replace their paths again."""
    home, now = tmp_path / "home", tmp_path / "home" / "copy"
    found = MovedHome.find([str(home)], now)
    assert found is not None
    once = found.follow({"path": f"{home}/runs/one", "uri": f"sqlite:///{home}/mlflow.db"})
    assert once == {"path": f"{now}/runs/one", "uri": f"sqlite:///{now}/mlflow.db"}
    assert found.follow(once) == once


def test_home_of_earlier_version_without_paths_works(tmp_path: Path) -> None:
    make_run(tmp_path / "home", "one")
    (tmp_path / "home").rename(tmp_path / "other")
    assert LocalBackend(tmp_path / "other").describe("one").state == RunState.COMPLETED


def test_prune_keeps_needed_run_of_moved_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    start = make_home_run(home, "start", RunState.COMPLETED, age=9, ended=1.0)
    make_home_run(home, "child", plan={"job": {"init_from": str(start.model), "train": {"steps": 100}}})
    other = home.rename(tmp_path / "other")
    pruning = Orchestrator(home=other, environ={}).pruning(keep_last=1)
    assert pruning.kept == {"start": "child needs its files"}


def test_sweep_of_moved_home_has_present_paths(tmp_path: Path) -> None:
    home = tmp_path / "home"
    folder = home / "sweeps" / "search"
    folder.mkdir(parents=True)
    names: dict[str, Any] = dict.fromkeys(("kind", "snapshot"), "x")
    record = {**names, "sweep": {}, "compute": {}, "changes": {}, "name": "search", "created": 1.0, "warnings": []}
    trial = {"init_from": f"{home}/runs/one/outputs/model"}
    SweepFolder(folder).write_record(SweepRecord.model_validate({**record, "trial": trial, "homes": [str(home)]}))
    other = home.rename(tmp_path / "other")
    found = SweepFolder(other / "sweeps" / "search").record()
    assert found.trial == {"init_from": f"{other}/runs/one/outputs/model"}


def test_copy_of_running_run_is_not_running(tmp_path: Path) -> None:
    """On a file system that does not enforce locks, only its process shows that a run is running."""
    home, link = tmp_path / "home", tmp_path / "link"
    run = make_home_run(home, state=RunState.RUNNING)
    run.write_state(run.stored_state().model_copy(update=supervisor(os.getpid(), run.path)))
    copy = RunFolder(copied(home) / "runs" / "one")
    link.symlink_to(home)
    assert run.state().state == RunState.RUNNING
    assert RunFolder(link / "runs" / "one").state().state == RunState.RUNNING
    assert copy.state().state == RunState.FAILED
    assert f"this folder is a copy of {run.path}" in str(copy.state().reason)
    renamed = home.rename(tmp_path / "renamed") / "runs" / "one"
    assert RunFolder(renamed).state().state == RunState.RUNNING
    assert copy.state().state == RunState.FAILED


def test_copy_of_earlier_version_is_not_running(tmp_path: Path) -> None:
    run = make_home_run(tmp_path / "home", state=RunState.RUNNING)
    run.write_state(run.stored_state().model_copy(update=supervisor(os.getpid(), run.path) | {"folder": None}))
    copy = RunFolder(copied(tmp_path / "home") / "runs" / "one")
    assert (run.state().state, copy.state().state) == (RunState.RUNNING, RunState.FAILED)


def test_cancel_of_copy_ends_no_process_of_original(tmp_path: Path) -> None:
    """The copied file `cgroup` names the control group of the original's processes."""
    home, group = tmp_path / "home", tmp_path / "orchestrator-0123456789abcdef"
    run = make_home_run(home, state=RunState.RUNNING)
    group.mkdir()
    with sleeping(**{RUN_VARIABLE: str(run.path)}) as rank:
        (group / "cgroup.procs").write_text(f"{rank.pid}\n")
        (run.path / "cgroup").write_text(f"{group}\n")
        run.write_state(run.stored_state().model_copy(update=supervisor(rank.pid, run.path)))
        other = copied(home)
        LocalBackend(other).cancel("one")
        assert rank.poll() is None
        assert processes_of(other / "runs" / "one") == []
        assert processes_of(run.path) == [rank.pid]


def test_processes_are_found_through_link_and_after_move(tmp_path: Path) -> None:
    home, link = tmp_path / "home", tmp_path / "link"
    run = make_home_run(home)
    run.code.mkdir()
    link.symlink_to(home)
    command = [sys.executable, "-c", "print(flush=True); input()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    variables = {**os.environ, RUN_VARIABLE: str(run.path)}
    with subprocess.Popen(command, cwd=run.code, env=variables, **pipes) as rank:
        assert rank.stdout is not None
        rank.stdout.readline()  # its environment is that of the new program from here on
        copy = copied(home)
        assert processes_of(link / "runs" / "one") == [rank.pid]
        moved = home.rename(tmp_path / "moved")
        assert processes_of(moved / "runs" / "one") == [rank.pid]
        assert processes_of(copy / "runs" / "one") == []


def test_endpoint_of_copy_does_not_end_server_of_original(tmp_path: Path) -> None:
    endpoints = tmp_path / "home" / "endpoints"
    endpoints.mkdir(parents=True)
    with sleeping() as server:
        identity = {"pid": server.pid, "started": process_started(server.pid), "boot": boot_id()}
        place = FolderIdentity.of(endpoints).model_dump()
        record = {"endpoint": "words", "uri": "http://127.0.0.1:1", "run": "one", **identity, "folder": place}
        (endpoints / "words.json").write_text(json.dumps(record))
        other = copied(tmp_path / "home")
        delete(other, "words")
        assert server.poll() is None
        assert not (other / "endpoints" / "words.json").exists()
        delete(tmp_path / "home", "words")
        assert server.wait(60) < 0


def locations(store: Path) -> list[str]:
    query = "SELECT artifact_location FROM experiments ORDER BY experiment_id"
    with closing(sqlite3.connect(store)) as database:
        return [place for (place,) in database.execute(query)]


@pytest.fixture
def tracked_home(tmp_path: Path, empty_store: Path) -> Path:
    """Return a home whose store has the first experiment of MLflow, one of ours and one with a place of the user's."""
    home = tmp_path / "the home"
    (home / "artifacts").mkdir(parents=True)
    shutil.copy(empty_store, home / "mlflow.db")
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        root = (home / "artifacts").as_uri()
        database.execute("UPDATE experiments SET artifact_location = ?", (f"{root}/0",))
        for number, place in ((7, root), (8, "file:///data/artifacts"), (9, f"{root}-other")):
            database.execute(
                "INSERT INTO experiments (experiment_id, name, artifact_location, lifecycle_stage, workspace)"
                " VALUES (?, ?, ?, 'active', 'default')",
                (number, f"experiment {number}", place),
            )
        database.commit()
    return home


@pytest.mark.parametrize("how", ["moved", "copied", "linked"])
def test_store_of_moved_home_has_artifacts_next_to_it(tracked_home: Path, how: str) -> None:
    before, other = locations(tracked_home / "mlflow.db"), tracked_home.with_name("other")
    if how == "linked":
        other.symlink_to(tracked_home)
    elif how == "copied":
        shutil.copytree(tracked_home, other)
    else:
        tracked_home.rename(other)
    relocate_artifacts(other / "mlflow.db")
    root = (other / "artifacts").as_uri()
    moved = [f"{root}/0", root, *before[2:]]
    assert locations(other / "mlflow.db") == (before if how == "linked" else moved)
    assert not tracked_home.exists() or locations(tracked_home / "mlflow.db") == before


def test_store_keeps_artifacts_on_a_disk_that_is_not_mounted(tracked_home: Path) -> None:
    """A user's own store, whose artifacts are elsewhere: neither it nor they were moved."""
    store = tracked_home.parent / "db" / "mlflow.db"
    store.parent.mkdir()
    shutil.copy(tracked_home / "mlflow.db", store)
    shutil.rmtree(tracked_home)
    before = locations(store)
    relocate_artifacts(store)
    assert locations(store) == before


def test_purge_of_copy_reads_no_store_of_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    run = make_home_run(home)
    addresses = [f"sqlite:///{home}/shared.db", "sqlite:////data/shared.db"]
    (run.path / "mlflow-copies.json").write_text(json.dumps({"uris": addresses}))
    copy = copied(home)
    read: list[str] = []
    monkeypatch.setattr(purging, "tracked_traces", lambda uri, *_: read.append(uri))
    Orchestrator(home=copy, environ={}).purging("one")
    assert {f"sqlite:///{copy}/shared.db", "sqlite:////data/shared.db"} <= {*read}
    assert not [uri for uri in read if uri.startswith(f"sqlite:///{home}/")]
