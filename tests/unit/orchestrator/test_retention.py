"""Retention: which runs and stores are deleted, and which are kept."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partialmethod
from pathlib import Path

import pytest

from orchestrator.backends.local.backend import LocalBackend
from orchestrator.backends.retention import expired, read_plans, tree_bytes, unused_stores
from orchestrator.client import Orchestrator
from orchestrator.runs.status import RunState, RunStatus
from orchestrator.support.errors import StorageError
from orchestrator.sweeps.design.sweep_record import SweepRecord, SweepState
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from tests.run_folders import make_run
from train_jobs.artifacts.files import checked_json

NOW = 10_000.0


def status(name: str, state: RunState, *, ended: float | None = None, created: float = 0.0) -> RunStatus:
    return RunStatus(name=name, handle=f"local://{name}", state=state, created=created, ended=ended, run_hash="")


RUNS = [  # newest first
    status("running", RunState.RUNNING, created=9_900),
    status("new", RunState.COMPLETED, ended=9_000),
    status("bad", RunState.FAILED, ended=8_000),
    status("older", RunState.COMPLETED, ended=5_000),
    status("queued", RunState.QUEUED),
    status("unended", RunState.FAILED, created=1_000),
    status("oldest", RunState.CANCELLED, ended=500),
]


@pytest.mark.parametrize(
    ("rule", "gone"),
    [
        ({}, ["oldest", "unended", "older", "bad", "new"]),
        ({"keep_last": 1}, ["oldest", "unended", "older", "bad"]),
        ({"keep_last": 9}, []),
        ({"older_than": 5_000.0}, ["oldest", "unended"]),  # a run that ended exactly then is kept
        ({"older_than": 4_999.0}, ["oldest", "unended", "older"]),
        ({"states": [RunState.FAILED]}, ["unended", "bad"]),
        ({"states": [RunState.FAILED, RunState.CANCELLED], "keep_last": 1}, ["oldest", "unended"]),
        ({"keep_last": 4, "older_than": 100.0}, ["oldest"]),
        ({"states": [RunState.RUNNING]}, []),
    ],
)
def test_run_expires_only_if_every_rule_matches(rule: dict[str, object], gone: list[str]) -> None:
    everything = {"keep_last": None, "older_than": None, "states": (), "now": NOW, **rule}
    assert [found.name for found in expired(RUNS, **everything)] == gone


def plan_of_text(sha256: str) -> dict[str, object]:
    return {"data": {"sha256": sha256}}


def make_store(home: Path, key: str, sha256: str) -> Path:
    store = home / "token-stores" / key
    store.mkdir(parents=True)
    (store / "manifest.json").write_text(json.dumps({"data": {"sha256": sha256}}))
    (store / "shard-0.arrow").write_bytes(b"x" * 1000)
    return store


def test_store_with_damaged_manifest_is_kept(tmp_path: Path) -> None:
    """A flipped bit in the hash of its text would make the store of a run look unused."""
    make_run(tmp_path, "one", plan=plan_of_text("text-1"))
    manifest = make_store(tmp_path, "a", "text-1") / "manifest.json"
    manifest.write_text(checked_json(plan_of_text("text-1"), indent=1))
    assert unused_stores(tmp_path, read_plans(tmp_path), []) == []
    manifest.write_text(manifest.read_text().replace("text-1", "text-0"))
    assert unused_stores(tmp_path, read_plans(tmp_path), []) == []
    manifest.write_text(checked_json(plan_of_text("text-0"), indent=1))
    assert unused_stores(tmp_path, read_plans(tmp_path), []) == [manifest.parent]


def test_unused_stores_are_those_of_no_run(tmp_path: Path) -> None:
    make_run(tmp_path, "one", plan=plan_of_text("text-1"))
    make_run(tmp_path, "two", plan=plan_of_text("text-2"))
    (tmp_path / "other-runs" / "three").mkdir(parents=True)  # from another backend
    (tmp_path / "other-runs" / "three" / "plan.json").write_text(json.dumps(plan_of_text("text-3")))
    for key, sha256 in (
        ("a", "text-1"),
        ("b", "text-2"),
        ("c", "text-3"),
        ("d", "text-4"),
        (".e.5.building", "text-5"),
    ):
        make_store(tmp_path, key, sha256)
    (tmp_path / "token-stores" / "half").mkdir()
    (tmp_path / "token-stores" / "half" / "manifest.json").write_text("{")

    def unused(*without: str) -> list[str]:
        folders = [tmp_path / name for name in without]
        return [path.name for path in unused_stores(tmp_path, read_plans(tmp_path), folders)]

    assert unused() == ["d"]
    assert unused("runs/two") == ["b", "d"]
    assert unused("runs/two", "other-runs/three") == ["b", "c", "d"]
    make_run(tmp_path, "unreadable", plan=plan_of_text("text-9")).path.joinpath("plan.json").write_text("{")
    assert unused() == []
    assert unused("runs/unreadable") == ["d"]


def test_size_of_a_run_includes_its_code(tmp_path: Path) -> None:
    """Its plan has the size of its code, so that a prune of thousands of runs reads no thousand files of each."""
    run = make_run(tmp_path, "old", ended=1.0, plan=plan_of_text("a") | {"snapshot": {"total_bytes": 3000}})
    (run.path / "code" / "package").mkdir(parents=True)
    (run.path / "code" / "package" / "a.py").write_bytes(b"x" * 2000)
    (run.path / "code" / "b.py").write_bytes(b"x" * 1000)
    (item,) = Orchestrator(home=tmp_path, environ={}).pruning(keep_last=0).runs
    assert item.bytes == tree_bytes(run.path)


def test_plan_of_prune_lists_the_deletions(tmp_path: Path) -> None:
    for age, name in enumerate(["new", "middle", "old"]):
        make_run(tmp_path, name, age=age, plan=plan_of_text(name), ended=100.0 - age)
    (tmp_path / "runs" / "old" / "outputs" / "big").write_bytes(b"x" * 50_000)
    for name in ("new", "middle", "old"):
        make_store(tmp_path, f"store-{name}", name)
    orchestrator = Orchestrator(home=tmp_path, environ={})
    kept_stores = orchestrator.pruning(keep_last=1)
    assert kept_stores.token_stores == []
    assert kept_stores.unused_store_bytes == sum(
        tree_bytes(tmp_path / "token-stores" / f"store-{name}") for name in ("middle", "old")
    )
    pruning = orchestrator.pruning(keep_last=1, stores=True)
    assert [item.name for item in pruning.items] == [
        "old",
        "middle",
        "token-stores/store-middle",
        "token-stores/store-old",
    ]
    assert (pruning.runs[0].state, pruning.runs[0].ended) == (RunState.COMPLETED, 98.0)
    assert (pruning.runs[0].bytes or 0) > 50_000 > (pruning.runs[1].bytes or 0)
    assert len(list((tmp_path / "runs").iterdir())) == 3
    before = tree_bytes(tmp_path)
    done = orchestrator.prune(pruning)
    assert done.freed_bytes == pruning.total_bytes == before - tree_bytes(tmp_path)
    assert done.deleted == pruning.items
    assert done.kept == {}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"new"}
    assert {path.name for path in (tmp_path / "token-stores").iterdir()} == {"store-new"}


def test_run_resumed_meanwhile_is_kept_with_its_store(tmp_path: Path) -> None:
    for age, name in enumerate(["one", "two"]):
        make_run(tmp_path, name, RunState.FAILED, age=age, plan=plan_of_text(name))
        make_store(tmp_path, f"store-{name}", name)
    orchestrator = Orchestrator(home=tmp_path, environ={})
    pruning = orchestrator.pruning(states=[RunState.FAILED], stores=True)
    with (tmp_path / "runs/two/lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = orchestrator.prune(pruning)
    assert list(done.kept) == ["two"]
    assert [item.name for item in done.deleted] == ["one", "token-stores/store-one"]
    assert (tmp_path / "token-stores/store-two/shard-0.arrow").exists()


def test_run_deleted_meanwhile_is_not_kept(tmp_path: Path) -> None:
    """Another command deletes a run after this one planned to."""
    for name in ("one", "two"):
        make_run(tmp_path, name)
    orchestrator = Orchestrator(home=tmp_path, environ={})
    pruning = orchestrator.pruning(states=[RunState.COMPLETED])
    LocalBackend(tmp_path).delete("one")
    done = orchestrator.prune(pruning)
    assert done.kept == {}
    assert [item.name for item in done.deleted] == ["two"]


def plan_from(run: Path) -> dict[str, object]:
    return plan_of_text("a") | {"job": {"init_from": str(run / "outputs" / "model"), "data": {"train": ["/x/a.csv"]}}}


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.FAILED, RunState.CANCELLED, RunState.PREEMPTED])
def test_prune_keeps_the_model_of_an_unfinished_run(tmp_path: Path, state: RunState) -> None:
    for age, name in ((9, "zero"), (8, "one")):
        make_run(tmp_path, name, age=age, plan=plan_from(tmp_path / "runs" / "zero"), ended=1.0)
    child = make_run(tmp_path, "child", state, plan=plan_from(tmp_path / "runs" / "one"))
    orchestrator = Orchestrator(home=tmp_path, environ={})
    with child.lock() if state == RunState.RUNNING else nullcontext():
        pruning = orchestrator.pruning(states=[RunState.COMPLETED])
        assert pruning.kept == {"one": "child needs its files"}
        assert [item.name for item in orchestrator.prune(pruning).deleted] == ["zero"]  # `one` is completed
    if state != RunState.RUNNING:  # the rule names the child too
        pruning = orchestrator.pruning(keep_last=0)
        assert [item.name for item in pruning.runs] == ["one", "child"]
        assert len(orchestrator.prune(pruning).deleted) == 2


def test_prune_keeps_the_model_of_a_run_submitted_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, name in ((9, "one"), (8, "two"), (7, "three")):
        make_run(tmp_path, name, age=age, plan=plan_of_text("a"), ended=1.0)
    orchestrator = Orchestrator(home=tmp_path, environ={})
    pruning = orchestrator.pruning(keep_last=0)
    make_run(tmp_path, "child", RunState.QUEUED, plan=plan_from(tmp_path / "runs" / "two"))
    delete = LocalBackend.delete

    def submit_and_delete(backend: LocalBackend, run: str) -> None:
        make_run(tmp_path, f"after-{run}", RunState.QUEUED, plan=plan_from(tmp_path / "runs" / "one"))
        delete(backend, run)

    monkeypatch.setattr(LocalBackend, "delete", submit_and_delete)
    done = orchestrator.prune(pruning)
    assert [item.name for item in done.deleted] == ["three"]
    assert done.kept == {"two": "child needs its files", "one": "after-three needs its files"}


def test_prune_keeps_the_model_of_a_resumed_run(tmp_path: Path) -> None:
    make_run(tmp_path, "one", age=9, plan=plan_of_text("a"))
    child = make_run(tmp_path, "child", RunState.FAILED, plan=plan_from(tmp_path / "runs" / "one"))
    orchestrator = Orchestrator(home=tmp_path, environ={})
    pruning = orchestrator.pruning(keep_last=0)
    with child.lock():
        done = orchestrator.prune(pruning)
    assert (done.deleted, done.kept["one"]) == ([], "child needs its files")


def test_prune_keeps_the_model_of_an_unfinished_sweep(tmp_path: Path) -> None:
    make_run(tmp_path, "one", plan=plan_of_text("a"))
    sweep = SweepFolder(tmp_path / "sweeps" / "search")
    sweep.path.mkdir(parents=True)
    (sweep.path / "lock").touch()
    sweep.write_record(
        SweepRecord.model_validate(
            dict.fromkeys(("kind", "snapshot"), "x")
            | {field: {} for field in ("sweep", "compute", "changes")}
            | {"name": "search", "created": 1.0, "warnings": [], "trial": plan_from(tmp_path / "runs" / "one")["job"]}
        )
    )
    orchestrator = Orchestrator(home=tmp_path, environ={})
    for state, kept in ((RunState.FAILED, {"one": "search needs its files"}), (RunState.COMPLETED, {})):
        sweep.write_state(SweepState(state=state))
        assert orchestrator.pruning(keep_last=0).kept == kept


def test_old_remains_of_interrupted_commands_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "one")
    for name in (".one.123", ".deleted.two.456"):
        (tmp_path / "runs" / name / "outputs").mkdir(parents=True)
        (tmp_path / "runs" / name / "outputs" / "weights").write_bytes(b"x" * 100)
    backend, orchestrator = LocalBackend(tmp_path), Orchestrator(home=tmp_path, environ={})
    assert backend.leftovers() == []
    assert orchestrator.pruning(keep_last=1).items == []
    # the change time cannot be set
    monkeypatch.setattr(LocalBackend, "leftovers", partialmethod(LocalBackend.leftovers, older_than=-1.0))
    assert [path.name for path in backend.leftovers()] == [".deleted.two.456", ".one.123"]
    pruning = orchestrator.pruning(keep_last=1)
    assert [(item.name, item.bytes) for item in pruning.leftovers] == [
        ("runs/.deleted.two.456", 100),
        ("runs/.one.123", 100),
    ]
    assert orchestrator.prune(pruning).freed_bytes == 200
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"one"}
    assert LocalBackend(tmp_path / "nowhere").leftovers() == []


def test_store_that_a_killed_prune_hid_is_pruned(tmp_path: Path) -> None:
    hidden = make_store(tmp_path, ".e.5.building", "text-5")
    orchestrator = Orchestrator(home=tmp_path, environ={})
    pruning = orchestrator.pruning(keep_last=1)
    assert [item.name for item in pruning.leftovers] == ["token-stores/.e.5.building"]
    orchestrator.prune(pruning)
    assert not hidden.exists()


def test_killed_prune_leaves_no_lock_of_a_store(tmp_path: Path) -> None:
    store = make_store(tmp_path, "e", "text-5")
    lock = store.with_name(".e.lock")
    lock.touch()
    if (child := os.fork()) == 0:

        def kill(event: str, _: object) -> None:
            if event == "os.rmdir":
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            orchestrator = Orchestrator(home=tmp_path, environ={})
            pruning = orchestrator.pruning(keep_last=1, stores=True)
            sys.addaudithook(kill)
            orchestrator.prune(pruning)
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    orchestrator = Orchestrator(home=tmp_path, environ={})
    orchestrator.prune(orchestrator.pruning(keep_last=1, stores=True))
    assert list((tmp_path / "token-stores").iterdir()) == []


@pytest.mark.parametrize("held", [False, True])
def test_lock_of_a_hidden_store_goes_unless_held(tmp_path: Path, held: bool) -> None:
    make_store(tmp_path, ".e.5.building", "text-5")
    lock = tmp_path / "token-stores" / ".e.lock"
    lock.touch()
    with lock.open() as stream:
        if held:
            fcntl.flock(stream, fcntl.LOCK_EX)
        orchestrator = Orchestrator(home=tmp_path, environ={})
        orchestrator.prune(orchestrator.pruning(keep_last=1))
    assert lock.exists() == held


def test_remains_are_kept_for_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / ".one.123").mkdir(parents=True)
    now = time.time()
    for passed, found in ((3500, 0), (3700, 1)):
        monkeypatch.setattr(time, "time", lambda passed=passed: now + passed)
        assert len(LocalBackend(tmp_path).leftovers()) == found


def test_failed_deletion_is_reported(tmp_path: Path) -> None:
    make_run(tmp_path, "one")
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    (tmp_path / "runs").mkdir()
    mounted = subprocess.run(
        ["mount", "--bind", "-o", "ro", str(tmp_path / "elsewhere"), str(tmp_path / "runs")],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("cannot mount a file system")
    try:
        orchestrator = Orchestrator(home=tmp_path, environ={})
        with pytest.raises(StorageError, match="cannot delete run one: read-only file system"):
            orchestrator.prune(orchestrator.pruning(states=[RunState.COMPLETED]))
    finally:
        subprocess.run(["umount", str(tmp_path / "runs")], check=True)
    assert (tmp_path / "elsewhere" / "one" / "state.json").exists()
