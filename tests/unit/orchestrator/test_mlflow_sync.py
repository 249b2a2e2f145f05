"""The copy of runs in MLflow: equal to their records after any death, and in whatever condition the store was."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from orchestrator.backends.folder.mlflow_records import tracking_request
from orchestrator.backends.folder.mlflow_sync import is_behind, sync_run
from orchestrator.backends.folder.run_folder import FolderRequest
from orchestrator.backends.folder.supervision import TrackedRun
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.cli.main import main
from orchestrator.doctor import project
from orchestrator.runs.status import RunState
from orchestrator.runs.tracked_run import default_uri, start, sync
from orchestrator.support.errors import ServiceError
from tests.conftest import tmpfs, wait_for
from tests.mlflow_runs import ENDED, STARTED, STEPS, make_tracked_run, stored, wait_for_copy
from train_jobs.artifacts.tracking.mlflow_copy import flatten
from train_jobs.artifacts.tracking.mlflow_store import Condition, examine, schema_versions
from train_jobs.artifacts.tracking.run_datasets import RunDataset

REPOSITORY = Path(__file__).parents[3]
WHOLE = ("run", "FINISHED", 80)


@pytest.fixture
def home(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home with an empty store."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # experiments that MLflow itself creates keep artifacts below the working folder
    return tmp_path


# One run, one copy


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (RunState.COMPLETED, "FINISHED"),
        (RunState.FAILED, "FAILED"),
        (RunState.CANCELLED, "KILLED"),
        (RunState.PREEMPTED, "KILLED"),
    ],
)
def test_sync_copies_everything_once(home: Path, state: RunState, status: str) -> None:
    run = make_tracked_run(home, state=state)
    assert is_behind(run)
    first = sync_run(run)
    assert (first.status, first.values, first.note) == (status, 80, None)
    assert sync_run(run) == type(first)(first.run_id, status, 0, None)
    assert not is_behind(run)
    client = MlflowClient(default_uri(home))
    found = client.get_run(first.run_id)
    assert (found.info.status, found.info.run_name) == (status, "run")
    assert (found.info.start_time, found.info.end_time) == (int(STARTED * 1000), int(ENDED * 1000))
    assert found.data.params == {"train.steps": "40", "optimizer.learning_rate": "0.1"}
    assert found.data.tags["team"] == "nlp"
    history = client.get_metric_history(first.run_id, "loss")
    assert sorted((one.step, one.timestamp) for one in history) == [
        (step, int((STARTED + step) * 1000)) for step in STEPS
    ]
    assert stored(home) == [("run", status, 80)]


def test_run_has_tags_of_its_code_and_of_its_phase(home: Path) -> None:
    """Code is a commit, with branch, remote and changes; a later phase names the earlier one and its MLflow run."""
    earlier = make_tracked_run(home, "phase-1")
    facts = {"run": "local://phase-1", "weights": "ab" * 32}
    plan = {
        "spec": {"kind": "pretrain", "recipe": "base", "code": {"entry": "mine.pretrain"}, "tags": {}},
        "snapshot": {
            "git": {"commit": "c0ffee11" * 5, "branch": "long", "remote": "https://example.org/x.git", "dirty": True}
        },
        "parent": {"kind": "pretrain", "name": "phase-1", "inputs": [], "facts": facts, "hash": "cd" * 32},
        "phase": {"step": 1200, "optimizer": "lamb", "weights": "ab" * 32, "moments": "ef" * 32},
    }
    later = make_tracked_run(home, "phase-2", plan=plan)
    tags = later.read_json("tags.json") | {"orchestrator.parent": "local://phase-1"}
    (later.path / "tags.json").write_text(json.dumps(tags))
    first, second = sync_run(earlier).run_id, sync_run(later).run_id
    found = MlflowClient(tracking_uri=default_uri(home)).get_run(second).data.tags
    expected = {
        "mlflow.source.name": "mine.pretrain",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": "c0ffee11" * 5,
        "mlflow.source.git.branch": "long",
        "mlflow.source.git.repoURL": "https://example.org/x.git",
        "mlflow.source.git.dirty": "true",
        "orchestrator.phase_from": "local://phase-1",
        "orchestrator.parent_run_id": first,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert "from `phase-1` after its step 1,200" in found["mlflow.note.content"]


@pytest.mark.parametrize("state", [RunState.PREEMPTED, RunState.COMPLETED])
def test_description_has_the_commands_that_apply(home: Path, state: RunState) -> None:
    """An interrupted run can be resumed; the model of a completed one can be served."""
    run = make_tracked_run(home, state=state, plan={"spec": {"kind": "pretrain", "recipe": "tiny", "tags": {}}})
    run.model.mkdir()
    note = MlflowClient(tracking_uri=default_uri(home)).get_run(sync_run(run).run_id).data.tags["mlflow.note.content"]
    completed = state == RunState.COMPLETED
    assert ("orchestrator resume run" in note) is not completed
    assert ("orchestrator report run" in note) is completed
    assert ("orchestrator model deploy run --endpoint NAME" in note) is completed


@pytest.mark.parametrize("amount", ["none", "light"])
def test_artifacts_are_as_many_as_the_spec_says(home: Path, amount: str) -> None:
    tracking = {"artifacts": amount}
    run = make_tracked_run(
        home, plan={"spec": {"kind": "pretrain", "recipe": "tiny", "tags": {}, "tracking": tracking}}
    )
    client = MlflowClient(tracking_uri=default_uri(home))
    paths = {file.path for file in client.list_artifacts(sync_run(run).run_id)}
    assert ({"plan.json", "request.json", "config.json"} <= paths) == (amount == "light")
    assert bool(paths) == (amount == "light")


def test_sync_deletes_half_written_records_of_a_killed_one(home: Path) -> None:
    run = make_tracked_run(home)
    for name in ("tracking.json", "mlflow-behind.txt"):
        (run.path / f".{name}.7.tmp").touch()
    sync_run(run)
    assert list(run.path.glob(".*")) == []


def test_deleted_store_is_rebuilt(home: Path) -> None:
    run = make_tracked_run(home)
    sync_run(run)
    (home / "mlflow.db").unlink()
    assert is_behind(run, examine(home / "mlflow.db", deep=True).runs)
    assert sync_run(run).values == 80
    assert stored(home) == [WHOLE]


def test_run_deleted_in_mlflow_is_behind_and_copied_again(home: Path) -> None:
    run = make_tracked_run(home)
    first = sync_run(run).run_id
    MlflowClient(default_uri(home)).delete_run(first)
    assert is_behind(run, examine(home / "mlflow.db", deep=True).runs)
    assert project.behind(home).fix == "orchestrator mlflow sync run"
    assert sync_run(run).run_id != first
    assert not is_behind(run, examine(home / "mlflow.db", deep=True).runs)


def test_deleted_experiment_has_the_command_that_restores_it(home: Path) -> None:
    run, client = make_tracked_run(home), MlflowClient(default_uri(home))
    first = sync_run(run).run_id
    client.delete_experiment("1")
    with pytest.raises(ServiceError) as refused:
        sync_run(run)
    assert refused.value.facts["reason"] == "experiment bert is deleted"
    restore = f"MLFLOW_TRACKING_URI={default_uri(home)} mlflow experiments restore -x 1"
    assert refused.value.fix == f"{restore}; then orchestrator mlflow sync run"
    client.restore_experiment("1")
    assert sync_run(run).run_id == first


def test_run_lost_supervisor_ends_as_failed_at_last_report(home: Path) -> None:
    run = make_tracked_run(home, state=RunState.RUNNING, pid=1)
    earlier = {"ended": STARTED + 1}  # of the attempt before a resume, as earlier versions kept it
    run.write_state(run.stored_state().model_copy(update=earlier))
    found = sync_run(run)
    info = MlflowClient(default_uri(home)).get_run(found.run_id).info
    assert (info.status, info.end_time) == ("FAILED", int((STARTED + 40) * 1000))


def test_live_run_is_opened_and_copied_at_its_end(home: Path) -> None:
    """While a run lives, its own mirror copies the metrics; two writers would be one too many."""
    run = make_tracked_run(home, state=RunState.RUNNING)
    with run.lock():
        found = sync_run(run)
    assert (found.status, found.values) == ("RUNNING", 0)
    assert json.loads(run.tracking_file.read_text())["run_id"] == found.run_id
    run.write_state(run.stored_state().model_copy(update={"state": RunState.COMPLETED, "ended": ENDED}))
    assert sync_run(run).run_id == found.run_id
    assert stored(home) == [WHOLE]


@pytest.mark.parametrize(("after", "begins"), [(None, False), ("60", False), ("0", True), ("no number", False)])
def test_mlflow_run_is_opened_after_some_seconds(
    home: Path, monkeypatch: pytest.MonkeyPatch, after: str | None, begins: bool
) -> None:
    """A run of seconds is copied once, at its end, unless the variable asks for it immediately."""
    run = make_tracked_run(home, state=RunState.RUNNING)
    run.tracking_file.write_text("of an earlier attempt")
    if after is not None:
        monkeypatch.setenv("ORCHESTRATOR_MLFLOW_AFTER", after)
    tracked = TrackedRun(run, FolderRequest.model_construct(**run.read_json("request.json")))
    tracked.begin()
    tracked.open_if_due()
    assert not run.tracking_file.exists()
    assert (run.logs / "mirror.log").exists() is begins, "the log of the process that opens it"
    run.write_state(run.stored_state().model_copy(update={"state": RunState.COMPLETED, "ended": ENDED}))
    tracked.end()
    wait_for_copy(run)
    assert stored(home) == [WHOLE]


def test_run_of_an_unknown_id_is_found_by_its_tags(home: Path) -> None:
    """A process that was killed between creating the MLflow run and writing tracking.json must not cause a second."""
    run = make_tracked_run(home)
    first = sync_run(run).run_id
    run.tracking_file.unlink()
    assert sync_run(run).run_id == first
    assert len(stored(home)) == 1


def test_new_run_of_a_pruned_name_has_its_own_copy(home: Path) -> None:
    run = make_tracked_run(home)
    first = sync_run(run).run_id
    shutil.rmtree(run.path)
    again = make_tracked_run(home, created=2000.0)
    assert sync_run(again).run_id != first
    assert stored(home) == [WHOLE, WHOLE]


def test_run_of_an_earlier_version_keeps_its_copy(home: Path) -> None:
    """Its MLflow run has no tag of the submission; its id is in state.json."""
    client = MlflowClient(default_uri(home))
    experiment = client.create_experiment("bert")
    known = client.create_run(experiment, run_name="run").info.run_id
    assert sync_run(make_tracked_run(home, mlflow_run_id=known)).run_id == known
    assert stored(home) == [WHOLE]


@pytest.mark.long
def test_racing_syncs_of_a_missing_store_make_one_run(tmp_path: Path) -> None:
    run = make_tracked_run(tmp_path)
    forked(run.path, "--race", "6")
    assert stored(tmp_path) == [WHOLE]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_sync_killed_anywhere_is_completed_by_the_next(tmp_path: Path, number: int) -> None:
    """Each home has no store, a sync that is killed at a random moment, and one that is not."""
    homes = [tmp_path / str(index) for index in range(number + 1)]
    forked(*[make_tracked_run(home).path for home in homes], "--kill", str(number))
    for home in homes:
        assert stored(home) == [WHOLE]
        assert {path.name for path in home.iterdir()} == {"runs", "mlflow.db", "mlflow.lock", "artifacts"}
        assert examine(home / "mlflow.db", deep=True).condition == Condition.READY


def forked(*words: object) -> None:
    command = [sys.executable, "-m", "tests.mlflow_runs", *map(str, words)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr


# Stores in any condition


def half_made(path: Path) -> None:
    """Leave what a kill during MLflow's own creation leaves: the first tables, and no version."""
    from mlflow.store.tracking.dbmodels.initial_models import Base
    from sqlalchemy import create_engine

    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    engine.dispose()


def without_table(path: Path) -> None:
    change(path, "DROP TABLE metrics")


def half_migrated(path: Path) -> None:
    """Set the first version, although the tables of later ones exist."""
    known = sorted(schema_versions()[1])
    change(path, f"UPDATE alembic_version SET version_num = '{known[0]}'")


def damaged_inside(path: Path) -> None:
    """Overwrite pages behind the schema."""
    whole = path.read_bytes()
    path.write_bytes(whole[: 4096 * 40] + b"\xff" * (len(whole) - 4096 * 40))


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)
        database.commit()


@pytest.mark.parametrize(
    ("prior", "harm"),
    [
        (False, half_made),
        (False, lambda path: path.write_bytes(b"")),
        (True, without_table),
        (True, half_migrated),
        (True, damaged_inside),
        (True, lambda path: path.write_bytes(b"not a database" * 1000)),
    ],
    ids=["half-made", "empty", "no-table", "half-migrated", "damaged", "text"],
)
def test_broken_store_is_set_aside_and_refilled(home: Path, prior: bool, harm: Callable[[Path], object]) -> None:
    path, run = home / "mlflow.db", make_tracked_run(home)
    if not prior:
        path.unlink()
    harm(path)
    content = path.read_bytes()
    finding = project.sqlite_store(path)
    assert finding.level in {"fail", "warn"}
    assert str(finding.fix).startswith("orchestrator mlflow sync --all")
    found = sync_run(run)
    (kept,) = home.glob("mlflow.db.broken-*")
    assert kept.read_bytes() == content
    assert kept.name in str(found.note)
    assert kept.name in str(LocalBackend(home).describe("run").warning)
    assert stored(home) == [WHOLE]
    assert project.sqlite_store(path).level == "ok"
    sync_run(run)
    assert LocalBackend(home).describe("run").warning is None


@pytest.mark.parametrize("links", [True, False])
def test_store_of_an_earlier_mlflow_is_migrated_on_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Also on a file system without links."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    from alembic import command
    from mlflow.store.db.utils import _get_alembic_config
    from mlflow.store.tracking.dbmodels.initial_models import Base
    from sqlalchemy import create_engine

    path, run = tmp_path / "mlflow.db", make_tracked_run(tmp_path)
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    command.upgrade(_get_alembic_config(f"sqlite:///{path}"), "acf3f17fdcc7")  # of MLflow 2.17
    engine.dispose()
    change(path, "INSERT INTO experiments (experiment_id, name, lifecycle_stage) VALUES (7, 'earlier', 'active')")
    assert examine(path).condition == Condition.OLD
    finding = project.sqlite_store(path)
    assert (finding.level, finding.fix) == ("warn", "orchestrator mlflow sync --all")
    if not links:
        monkeypatch.setattr("os.link", refuse)
    found = sync_run(run)
    (kept,) = tmp_path.glob("mlflow.db.old-*")
    assert f"its copy is {kept}" in str(found.note)
    assert examine(kept).condition == Condition.OLD
    assert stored(tmp_path) == [WHOLE]
    assert MlflowClient(default_uri(tmp_path)).get_experiment_by_name("earlier") is not None


def refused(home: Path, reason: str) -> ServiceError:
    """Sync a run whose store stays as it is; return the error."""
    run, before = make_tracked_run(home), (home / "mlflow.db").read_bytes()
    with pytest.raises(ServiceError, match=r"its metrics\.jsonl has all values") as caught:
        sync_run(run)
    assert reason in str(caught.value.facts["reason"])
    warning = str(LocalBackend(home).describe("run").warning)
    assert warning.startswith("the copy in MLflow is behind: ")
    assert warning.endswith("orchestrator mlflow sync run")
    assert (home / "mlflow.db").read_bytes() == before
    assert sorted(path.name for path in home.glob("*.db*")) == ["mlflow.db"]
    return caught.value


def test_store_of_a_later_mlflow_is_left_alone(home: Path) -> None:
    change(home / "mlflow.db", "UPDATE alembic_version SET version_num = 'ffffffffffff'")
    assert str(refused(home, "of a later MLflow").fix).startswith("pip install --upgrade mlflow")


def test_database_of_another_program_is_left_alone(home: Path) -> None:
    (home / "mlflow.db").unlink()
    change(home / "mlflow.db", "CREATE TABLE customers (name)")
    refused(home, "is a database of another program")


@pytest.mark.long
def test_locked_store_is_reported_and_copied_later(home: Path) -> None:
    with closing(sqlite3.connect(home / "mlflow.db", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        assert str(refused(home, "is locked by another process").fix).startswith(f"fuser {home / 'mlflow.db'}")
    sync_run(LocalBackend(home)._folder("run"))
    assert stored(home) == [WHOLE]


def test_full_disk_leaves_no_half_store(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "400k") as disk:
        run = make_tracked_run(tmp_path, uri=default_uri(disk))
        with pytest.raises(ServiceError, match=r"its metrics\.jsonl has all values") as caught:
            sync_run(run)
        assert "full" in str(caught.value.facts["reason"])
        assert {path.name for path in disk.iterdir()} <= {"mlflow.lock"}


# The commands


def test_sync_command_prints_each_run_and_a_total(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        make_tracked_run(home, name)
    finding = project.behind(home)
    assert (finding.level, finding.fix) == ("warn", "orchestrator mlflow sync --all")
    assert "2 runs: " in finding.text
    assert main(["mlflow", "sync", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["1/2  one  FINISHED  80 values copied", "2/2  two  FINISHED  80 values copied"]
    assert lines[2:] == ["2 of 2 in MLflow"]
    assert project.behind(home).level == "ok"
    assert main(["mlflow", "sync", "one", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["failed"] == 0
    assert [(run["name"], run["status"], run["values"]) for run in document["runs"]] == [("one", "FINISHED", 0)]


def test_sync_command_continues_after_a_failure(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_tracked_run(home, "away", uri="http://127.0.0.1:9")
    make_tracked_run(home, "here")
    assert main(["mlflow", "sync", "away", "here"]) == 7
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "1/2  away  not copied",
        "2/2  here  FINISHED  80 values copied",
        "1 of 2 in MLflow, 1 not copied",
    ]
    assert "error[service]: cannot copy away to MLflow" in err
    assert project.behind(home).fix == "orchestrator mlflow sync away"


def test_sync_command_needs_runs_or_all(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mlflow", "sync"]) == 2
    assert "give either runs or --all" in capsys.readouterr().err
    assert main(["mlflow", "sync", "--all", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"runs": [], "failed": 0}


# Another address


def test_copy_elsewhere_leaves_own_records_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that was copied to a second store is neither behind nor ahead in its own, and the copy is made once."""
    runs = [make_tracked_run(home, name) for name in ("one", "two")]
    sync_run(runs[0])
    before = {path.name: path.read_bytes() for path in runs[0].path.rglob("*.json")}
    second = home / "second" / "mlflow.db"
    for expected in (80, 0):
        assert main(["mlflow", "sync", "--all", "--to", f"sqlite:///{second}"]) == 0
        out = capsys.readouterr().out.splitlines()
        assert sorted(line.split("  ", 1)[1] for line in out[:2]) == [
            f"{name}  FINISHED  {expected} values copied" for name in ("one", "two")
        ]
        assert out[2] == "2 of 2 in MLflow"
        assert stored(second.parent) == [("one", "FINISHED", 80), ("two", "FINISHED", 80)]
    copies = {"mlflow-copies.json": json.dumps({"uris": [default_uri(second.parent)]}).encode()}
    assert {path.name: path.read_bytes() for path in runs[0].path.rglob("*.json")} == before | copies
    assert (is_behind(runs[0]), is_behind(runs[1])) == (False, True)
    assert stored(home) == [("one", "FINISHED", 80)]


@pytest.mark.long
def test_purge_finds_copies_at_other_addresses(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one of which the server may have a part, because it failed."""
    run, other = make_tracked_run(home, "one"), make_tracked_run(home, "two")
    second = default_uri(home / "second")
    for one in (run, other):
        sync_run(one, second)
    with pytest.raises(ServiceError, match="the server does not answer"):
        sync_run(run, "http://127.0.0.1:9")
    assert main(["prune", "--purge", "one", "-y"]) == 0
    assert "MLflow runs and versions of models at http://127.0.0.1:9: delete them there" in "".join(capsys.readouterr())
    assert stored(home / "second") == [("two", "FINISHED", 80)]


@pytest.mark.long
def test_purge_leaves_foreign_runs_of_the_same_name(home: Path) -> None:
    """A run of the user in the home's store, and a run of another home in a store that both use."""
    from mlflow.tracking import MlflowClient

    second = home / "second"
    run, theirs = make_tracked_run(home, "one"), make_tracked_run(second, "one", created=2000.0)
    sync_run(run)
    sync_run(theirs)
    sync_run(run, default_uri(second))
    client = MlflowClient(tracking_uri=default_uri(home))
    client.create_run(client.create_experiment("own"), run_name="one")
    assert main(["prune", "--purge", "one", "-y"]) == 0
    assert stored(home) == [("one", "RUNNING", 0)]
    assert stored(second) == [("one", "FINISHED", 80)]
    assert not is_behind(theirs)


@pytest.mark.long
def test_purge_deletes_run_that_was_renamed_in_mlflow(home: Path) -> None:
    from mlflow.tracking import MlflowClient

    run = make_tracked_run(home, "one")
    sync_run(run)
    MlflowClient(tracking_uri=default_uri(home)).update_run(str(run.mlflow_run_id), name="the best one")
    assert main(["prune", "--purge", "one", "-y"]) == 0
    assert stored(home) == []


@pytest.mark.long
def test_purge_deletes_traces_of_pruned_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only its MLflow run, by its whole name, leads to its token store: not to a run whose name begins like it."""
    tags = {"orchestrator.run": "wards", "orchestrator.data": "text"}
    run, other = make_tracked_run(home, "wards"), make_tracked_run(home, "wards-2")
    (run.path / "tags.json").write_text(json.dumps(run.read_json("tags.json") | tags))
    for one in (run, other):
        sync_run(one)
    (other.path / "plan.json").write_text(json.dumps({"data": {"sha256": "another"}}))
    (store := home / "token-stores" / "key").mkdir(parents=True)
    (store / "manifest.json").write_text(json.dumps({"data": {"sha256": "text"}}))
    shutil.rmtree(run.path)
    assert main(["prune", "--purge", "wards", "-y"]) == 0
    assert stored(home) == [("wards-2", "FINISHED", 80)]
    assert not store.exists()
    assert other.path.exists()
    capsys.readouterr()
    assert main(["prune", "--purge", "wards-1", "-y"]) == 5
    assert "unknown run 'wards-1'" in capsys.readouterr().err


def test_live_run_is_copied_elsewhere_with_its_values_so_far(home: Path) -> None:
    """The job's own mirror copies to the address of its run alone."""
    run, uri = make_tracked_run(home, state=RunState.RUNNING), f"sqlite:///{home / 'second' / 'mlflow.db'}"
    with run.lock():
        assert sync_run(run, uri).values == 80
    assert not run.tracking_file.exists()
    run.write_state(run.stored_state().model_copy(update={"state": RunState.COMPLETED, "ended": ENDED}))
    assert sync_run(run, uri).values == 0
    assert stored(home / "second") == [WHOLE]


def test_own_address_as_destination_is_the_usual_copy(home: Path) -> None:
    run = make_tracked_run(home)
    assert sync_run(run, default_uri(home)).values == 80
    assert not is_behind(run)


@pytest.mark.parametrize(
    ("address", "code", "word"),
    [("mlruns", 2, "it has no scheme"), ("http://127.0.0.1:9", 7, "the server does not answer: Connection refused")],
)
def test_wrong_address_is_refused_before_anything(
    home: Path, capsys: pytest.CaptureFixture[str], address: str, code: int, word: str
) -> None:
    run = make_tracked_run(home)
    assert main(["mlflow", "sync", "--all", "--to", address]) == code
    out, err = capsys.readouterr()
    assert (out, word in err, "fix  " in err) == ("", True, True), err
    assert not run.behind_file.exists()


def test_texts_beyond_mlflows_limit_are_copied_as_their_number(home: Path) -> None:
    sources = [{"name": f"part-{number:05d}.txt", "files": 1, "sha256": "a" * 64} for number in range(700)]
    source = {"uri": "part-00000.txt", "sources": sources, "license": None}
    many = RunDataset("notes", "b" * 64, "train", source, {"num_rows": 1})
    request = tracking_request(make_tracked_run(home)).model_copy(update={"datasets": [many]})
    (found,) = MlflowClient(default_uri(home)).get_run(sync(request).run_id).inputs.dataset_inputs
    shown = json.loads(found.dataset.source)
    assert (shown["uri"], shown["sources"], len(shown["sources_sha256"])) == ("part-00000.txt", 700, 64)
    few = RunDataset("notes", "b" * 64, "train", {**source, "sources": sources[:2]}, {"num_rows": 1})
    assert json.loads(few.as_input().dataset.source)["sources"] == sources[:2]


def test_parameters_are_dotted_names_with_text() -> None:
    tree = {"train": {"steps": 10, "deep": {"er": None}}, "betas": [0.9, 0.98], "long": "x" * 7000}
    found = flatten(tree)
    assert found["train.steps"] == "10"
    assert found["train.deep.er"] == "None"
    assert found["betas"] == "0.9, 0.98"
    assert len(found["long"]) == 6000


def test_sync_imports_no_module_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("statistics.py").write_text("raise ImportError('the module of the user')\n")
    log = tmp_path / "log"
    start(["-c", "import statistics; print(statistics.mean([7]), flush=True)"], log)
    assert wait_for(lambda: log.exists() and log.read_text(), what="its output") == "7\n"
