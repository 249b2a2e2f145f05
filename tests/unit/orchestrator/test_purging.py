"""Purge: which traces of a run are deleted, and which are listed as remaining."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.client import Orchestrator
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError, NotFoundError
from tests.conftest import Console
from tests.run_folders import live_run, make_run
from train_jobs.artifacts.files import hold


def make_store(home: Path, key: str, sha256: str | None) -> Path:
    """Write a token store; without a hash, one whose preparation was interrupted."""
    store = home / "token-stores" / key
    (store / "parts").mkdir(parents=True)
    if sha256 is not None:
        (store / "manifest.json").write_text(json.dumps({"data": {"sha256": sha256}}))
    return store


def plan_of(sha256: str, **more: object) -> dict[str, object]:
    return {"data": {"sha256": sha256, "name": "notes.jsonl"}, **more}


def make_copy(home: Path, name: str, handle: str) -> Path:
    """Write a copy of version 1 of a registered model, with the lineage of a run."""
    copy = home / "cache" / "mlflow-models" / name / "1-0123456789abcdef"
    copy.mkdir(parents=True)
    lineage = {"version": 1, "links": [{"kind": "pretrain", "name": "x", "facts": {"run": handle}}]}
    (copy / "lineage.json").write_text(json.dumps(lineage))
    (copy.parent / ".1-fedcba9876543210.json").write_text(json.dumps({"folder": copy.name, "sha256": "0"}))
    return copy


@pytest.fixture
def orchestrator(tmp_path: Path) -> Orchestrator:
    make_run(tmp_path, "one", plan=plan_of("own", delivery=str(tmp_path / "out.jsonl")), ended=1.0)
    make_run(tmp_path, "two", plan=plan_of("shared"), ended=1.0)
    made = {"parent": {"facts": {"run": "local://one"}}}
    make_run(tmp_path, "three", plan=plan_of("shared", **made), ended=1.0)
    (tmp_path / "out.jsonl").write_text("{}\n")
    for key, sha256 in (("a", "own"), ("b", "shared"), ("c", "elsewhere"), ("d", None)):
        make_store(tmp_path, key, sha256)
    return Orchestrator(home=tmp_path, environ={})


def test_purge_deletes_stores_of_the_run_alone(orchestrator: Orchestrator, tmp_path: Path) -> None:
    purging = orchestrator.purging("one")
    assert [item.name for item in purging.token_stores] == ["token-stores/a", "token-stores/d"]
    remains = "\n".join(purging.remains)
    assert "the data of one: notes.jsonl" in remains
    assert f"predictions of one: rm {tmp_path / 'out.jsonl'}" in remains
    assert "run three, which started from local://one: purge three too" in remains
    assert "token-stores/c, of a text that no run uses: orchestrator prune --stores" in remains
    orchestrator.purge(purging)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["three", "two"]
    assert sorted(path.name for path in (tmp_path / "token-stores").iterdir()) == ["b", "c"]


def test_purge_deletes_stores_that_a_killed_prune_hid(orchestrator: Orchestrator, tmp_path: Path) -> None:
    make_store(tmp_path, ".e.5.building", "own")
    purging = orchestrator.purging("one")
    assert "token-stores/.e.5.building" in [item.name for item in purging.token_stores]


def test_purge_forgets_servers_that_never_listened(orchestrator: Orchestrator, tmp_path: Path) -> None:
    """The command of `web` was killed while its server loaded; that of `busy` still waits for its server."""
    (tmp_path / "endpoints").mkdir()
    for name in ("web", "busy"):
        model = str(tmp_path / "runs" / "one" / "model")
        (tmp_path / "endpoints" / f"{name}.starting").write_text(json.dumps({"model": model}))
    with hold(tmp_path / "endpoints" / "busy.lock", seconds=0, busy=ConflictError("busy")):
        orchestrator.purge(orchestrator.purging("one"))
        assert [path.name for path in (tmp_path / "endpoints").glob("*.starting")] == ["busy.starting"]


def test_purge_keeps_stores_that_are_used_meanwhile(orchestrator: Orchestrator, tmp_path: Path) -> None:
    lock = tmp_path / "token-stores" / ".d.lock"
    lock.touch()
    purging = orchestrator.purging("one")
    make_run(tmp_path, "four", plan=plan_of("own"))  # while the prompt waits
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = orchestrator.purge(purging)
    assert sorted(path.name for path in (tmp_path / "token-stores").iterdir()) == [".d.lock", "a", "b", "c", "d"]
    assert done.token_stores == []
    assert [line.partition(",")[0] for line in done.remains[:2]] == ["token-stores/a", "token-stores/d"]


def test_purge_refuses_run_that_was_resumed_meanwhile(orchestrator: Orchestrator, tmp_path: Path) -> None:
    purging = orchestrator.purging("one")
    run = RunFolder(tmp_path / "runs" / "one")
    with run.lock():
        run.write_state(run.state().model_copy(update={"state": RunState.RUNNING}))
        with pytest.raises(ConflictError, match="cannot purge run one"):
            orchestrator.purge(purging)
    assert (tmp_path / "token-stores" / "a").is_dir()


def test_shared_store_goes_with_its_last_run(orchestrator: Orchestrator) -> None:
    one = orchestrator.purging("two")
    assert "token-stores/b" not in [item.name for item in one.token_stores]
    assert any("purge three too" in line for line in one.remains)
    both = orchestrator.purging("two", "three")
    assert "token-stores/b" in [item.name for item in both.token_stores]


def test_purge_deletes_copy_of_model_on_a_server(orchestrator: Orchestrator, tmp_path: Path) -> None:
    mine, theirs = make_copy(tmp_path, "mine", "local://one"), make_copy(tmp_path, "theirs", "local://two")
    request = tmp_path / "runs" / "one" / "request.json"
    request.write_text(request.read_text().replace("sqlite:////x.db", "http://127.0.0.1:9"))
    purging = orchestrator.purging("one")
    assert any(line.startswith("MLflow runs and versions of models at http://127.0.0.1:9") for line in purging.remains)
    assert f"cache {mine.relative_to(tmp_path)}" in purging.records
    orchestrator.purge(purging)
    assert tree(mine.parent) == []
    assert tree(theirs.parent) == [".1-fedcba9876543210.json", theirs.name, f"{theirs.name}/lineage.json"]


@pytest.mark.parametrize("meanwhile", [False, True])
def test_purge_keeps_copy_that_a_resumable_run_needs(
    orchestrator: Orchestrator, tmp_path: Path, meanwhile: bool
) -> None:
    copy = make_copy(tmp_path, "mine", "local://one")
    purging = orchestrator.purging("one")
    make_run(tmp_path, "user", RunState.CANCELLED, plan=plan_of("own", job={"init_from": str(copy)}), ended=1.0)
    if not meanwhile:
        purging = orchestrator.purging("one")
        assert str(copy.relative_to(tmp_path)) not in purging.caches
    done = orchestrator.purge(purging)
    assert copy.is_dir()
    line = f"a copy of the model, which user needs: when that has completed, rm -r {copy}"
    assert [text for text in done.remains if text.startswith("a copy")] == [line]
    again = orchestrator.purging("user")
    assert str(copy.relative_to(tmp_path)) not in again.caches, "it is not the model of that run"


def purge_until_killed(orchestrator: Orchestrator, step: int) -> bool:
    """Purge run one in a child that kills itself before deletion `step`; return whether there was one."""
    if (child := os.fork()) == 0:
        steps = itertools.count(1)

        def kill(event: str, _: object) -> None:
            if event in ("os.remove", "os.rmdir", "os.rename") and next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            purging = orchestrator.purging("one")
            sys.addaudithook(kill)
            orchestrator.purge(purging)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_killed_purge_can_be_repeated(tmp_path: Path) -> None:
    def home(number: int) -> Path:
        place = tmp_path / str(number)
        make_run(place, "one", plan=plan_of("own"), ended=1.0)
        make_run(place, "two", plan=plan_of("shared"), ended=1.0)
        for key, sha256 in (("a", "own"), ("b", "shared"), ("d", None)):
            (make_store(place, key, sha256) / "shard-00000-train.arrow").write_text("text")
            (place / "token-stores" / f".{key}.lock").touch()
        (place / "token-stores" / "hashes.json").write_text("{}")
        make_copy(place, "mine", "local://one")
        return place

    undisturbed = home(0)
    Orchestrator(home=undisturbed, environ={}).purge(Orchestrator(home=undisturbed, environ={}).purging("one"))
    for step in itertools.count(1):
        place = home(step)
        if not purge_until_killed(Orchestrator(home=place, environ={}), step):
            break
        again = Orchestrator(home=place, environ={})
        again.purge(again.purging("one"))
        assert tree(place) == tree(undisturbed), f"killed at step {step}"
    assert step > 15


def test_repeated_purge_compacts_store_without_records(orchestrator: Orchestrator, tmp_path: Path) -> None:
    """The purge before it was killed after `mlflow gc` had deleted all of its records."""
    path = tmp_path / "mlflow.db"
    tables = {
        "runs": "run_uuid",
        "tags": "run_uuid, key, value",
        "model_versions": "name, version, run_id, current_stage",
        "model_version_tags": "name, version, key, value",
        "inputs": "input_uuid, source_type, source_id, destination_type, destination_id",
        "input_tags": "input_uuid, name, value",
        "datasets": "dataset_uuid, name",
    }
    with closing(sqlite3.connect(path)) as store, store:
        for name, columns in tables.items():
            store.execute(f"CREATE TABLE {name} ({columns})")
        store.execute("INSERT INTO datasets VALUES ('1', 'notes of ward 7')")
        store.execute("INSERT INTO inputs VALUES ('2', 'DATASET', '1', 'RUN', 'a deleted run')")
        store.execute("INSERT INTO tags VALUES ('a deleted run', 'note', 'ward 8'), ('another', 'note', 'office')")
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("PRAGMA secure_delete = OFF")
        store.execute("DELETE FROM tags WHERE run_uuid = 'a deleted run'")
    assert b"ward 8" in path.read_bytes()
    request = tmp_path / "runs" / "one" / "request.json"
    request.write_text(request.read_text().replace("/x.db", str(path)))
    purging = orchestrator.purging("one")
    assert (purging.tracking, purging.stores) == ([], [f"sqlite:///{path}"])
    orchestrator.purge(purging)
    assert b"ward" not in path.read_bytes()


def test_purge_refuses_running_and_unknown_runs(orchestrator: Orchestrator, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        orchestrator.purging("none")
    with live_run(tmp_path, "busy", plan=plan_of("own")), pytest.raises(ConflictError, match="cannot purge run busy"):
        orchestrator.purging("busy")


def test_purge_accepts_no_rules(console: Console) -> None:
    done = console("prune", "--purge", "one", "--keep-last", "3")
    assert done.code == 2
    assert "cannot combine --purge with rules" in done.err
