"""The MLflow run of a sweep, and its final state."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from orchestrator.backends.folder.mlflow_sync import sync_run
from orchestrator.cli.main import main
from orchestrator.doctor import project
from orchestrator.runs.status import RunState
from orchestrator.runs.tracked_run import TRIAL_TAGS, default_uri, sync
from orchestrator.sweep import Sweeps
from orchestrator.sweeps.design.sweep_record import EarlierSweep, SweepRecord, SweepState
from orchestrator.sweeps.driver.control import make_sweep
from orchestrator.sweeps.driver.parent import ParentRun, trial_tags
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.driver.sweep_status import TrialRow
from orchestrator.sweeps.policy.termination import Decision
from tests.mlflow_runs import ENDED, make_tracked_run, stored
from train_jobs.artifacts.tracking import mlflow_copy


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, empty_store: Path) -> None:
    """Give each home an empty store."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")


def make_search(home: Path) -> SweepFolder:
    """Create a sweep without a driver."""
    document: dict[str, Any] = {"space": {"optimizer.learning_rate": [1, 2]}, "limits": {"trials": 4}}
    record = SweepRecord(
        name="search-1",
        created=500.0,
        kind="pretrain",
        sweep=document,
        trial={"backend": "local", "tracking": {"uri": None, "experiment": "bert"}},
        compute={},
        changes={},
        snapshot="abc",
        warnings=[],
        earlier=[EarlierSweep(sweep="search-0", used=3, outside=0)],
    )
    return make_sweep(record, home)


def test_doctor_names_sweeps_whose_copy_is_behind(tmp_path: Path) -> None:
    folder, sweeps = make_search(tmp_path), Sweeps(tmp_path)
    assert project.behind(tmp_path, sweeps.behind).level == "ok", "it has not ended"
    folder.write_state(SweepState(state=RunState.FAILED, ended=ENDED))
    found = project.behind(tmp_path, sweeps.behind)
    assert found.text == "MLflow lacks metrics or the status of 1 sweep: search-1"
    assert found.fix == "orchestrator mlflow sync search-1"
    make_tracked_run(tmp_path, "run")
    both = project.behind(tmp_path, sweeps.behind)
    assert both.text.endswith("of 1 run and 1 sweep: search-1, run")
    ParentRun(folder, tmp_path).sync()
    assert project.behind(tmp_path, sweeps.behind).text.endswith("of 1 run: run")
    folder.write_state(SweepState(state=RunState.COMPLETED, ended=ENDED))
    assert list(sweeps.behind(lambda uri: None)) == ["search-1"], "retried, and not copied since"
    ParentRun(folder, tmp_path).sync()
    (tmp_path / "mlflow.db").unlink()
    assert "search-1" in project.behind(tmp_path, sweeps.behind).text, "the store was deleted"


def test_tag_of_many_earlier_sweeps_is_one_that_azure_takes(tmp_path: Path) -> None:
    folder = make_search(tmp_path)
    path = folder.path / "sweep.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "earlier": record["earlier"] * 100}))
    earlier = ParentRun(folder, tmp_path).tags()["orchestrator.warm_start"]
    assert earlier.startswith("3 trials of search-0; 3 trials")
    assert len(earlier) == 1000


def test_parent_run_has_final_state_decisions_and_trials(tmp_path: Path) -> None:
    folder = make_search(tmp_path)
    trial = make_tracked_run(tmp_path, "search-1-t0000")
    tags = trial.read_json("tags.json") | ParentRun(folder, tmp_path).tags()
    (trial.path / "tags.json").write_text(json.dumps(tags))
    sync_run(trial)  # before its parent exists
    client = MlflowClient(tracking_uri=default_uri(tmp_path))
    run_ids = set()
    for number, (state, expected) in enumerate({RunState.PREEMPTED: "KILLED", RunState.COMPLETED: "FINISHED"}.items()):
        with folder.lock():
            folder.write_state(SweepState(state=RunState.RUNNING))
            run_id = ParentRun(folder, tmp_path).sync().run_id
            assert client.get_run(run_id).info.status == "RUNNING"
        folder.decide(number, Decision(number % 2 == 0, 3, "0.611 x 1.2 < 0.79"))
        folder.write_state(SweepState(state=state, ended=ENDED))
        assert ParentRun(folder, tmp_path).sync().run_id == run_id
        assert client.get_run(run_id).info.status == expected, "SIGTERM ends the run"
        run_ids.add(run_id)
    assert run_ids == {folder.mlflow_run_id}, "a resumed sweep has the same run"
    run = client.get_run(run_id)
    assert (run.info.start_time, run.info.end_time) == (500_000, int(ENDED * 1000))
    assert run.data.params["limits.trials"] == "4"
    assert run.data.params["space.optimizer.learning_rate"] == "1, 2"
    assert run.data.tags["orchestrator.warm_start"] == "3 trials of search-0"
    lines = Path(client.download_artifacts(run_id, "decisions.jsonl", str(tmp_path))).read_text().splitlines()
    assert len(lines) == 2
    nested = client.get_run(str(trial.mlflow_run_id)).data.tags
    assert nested["mlflow.parentRunId"] == run_id
    assert sync_run(trial).run_id == trial.mlflow_run_id
    assert {name for name, *_ in stored(tmp_path)} == {"search-1", "search-1-t0000"}


@pytest.mark.parametrize("page", [1, mlflow_copy.PAGE])
def test_trials_have_tags_for_end_and_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    """A trial that is no longer the best after a resume loses the tag; a repeated copy changes nothing.

    A sweep may have more runs than MLflow returns in one page.
    """
    monkeypatch.setattr(mlflow_copy, "PAGE", page)
    folder = make_search(tmp_path)
    client = MlflowClient(tracking_uri=default_uri(tmp_path))
    names = ["search-1-t0000", "search-1-t0001"]
    for name in names:
        trial = make_tracked_run(tmp_path, name)
        tags = trial.read_json("tags.json") | ParentRun(folder, tmp_path).tags()
        (trial.path / "tags.json").write_text(json.dumps(tags))
        sync_run(trial)
    folder.write_state(SweepState(state=RunState.COMPLETED, ended=ENDED))
    best = {"outcome": 0.5, "incumbent": True}
    for first, second in ((best, {"state": "stopped", "why": "slow"}), ({"outcome": 0.6}, best)):
        ends = [{"state": "completed", **one} for one in (first, second)]
        rows = [TrialRow(trial=n, settings={}, runs=[names[n]], **end) for n, end in enumerate(ends)]
        request = ParentRun(folder, tmp_path).request()
        request = request.model_copy(update={"trials": {names[row.trial]: trial_tags(row) for row in rows}})
        found = []
        for _ in range(2):
            run_id = sync(request).run_id
            runs = client.search_runs([client.get_run(run_id).info.experiment_id], "tags.`mlflow.parentRunId` != ''")
            found.append({run.info.run_name: own_tags(run.data.tags) for run in runs})
        assert found[0] == found[1]
        assert found[0] == {names[row.trial]: trial_tags(row) for row in rows}


def own_tags(tags: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in tags.items() if key in TRIAL_TAGS}


def test_sweep_is_copied_to_another_address_with_its_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    folder = make_search(tmp_path)
    folder.write_state(SweepState(state=RunState.COMPLETED, ended=ENDED))
    trial = make_tracked_run(tmp_path, "search-1-t0000")
    (trial.path / "tags.json").write_text(json.dumps(trial.read_json("tags.json") | ParentRun(folder, tmp_path).tags()))
    uri = default_uri(tmp_path / "second")
    for _ in range(2):
        assert main(["mlflow", "sync", "--all", "--to", uri]) == 0
        client = MlflowClient(tracking_uri=uri)
        parent, child = sorted(client.search_runs(["1"]), key=lambda run: len(run.info.run_name))
        assert (parent.info.status, child.info.status) == ("FINISHED", "FINISHED")
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert folder.mlflow_run_id is None, "it has no copy at its own address"


@pytest.mark.long
def test_purge_of_sweep_deletes_traces_of_pruned_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the home's store and in another one, with the token store of their text."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    folder, second = make_search(tmp_path), tmp_path / "second"
    folder.write_record(folder.record().model_copy(update={"data": "text"}))
    folder.write_state(SweepState(state=RunState.COMPLETED, ended=ENDED))
    trial, other = make_tracked_run(tmp_path, "search-1-t0000"), make_tracked_run(tmp_path, "other")
    (trial.path / "tags.json").write_text(json.dumps(trial.read_json("tags.json") | ParentRun(folder, tmp_path).tags()))
    (store := tmp_path / "token-stores" / "key").mkdir(parents=True)
    (store / "manifest.json").write_text(json.dumps({"data": {"sha256": "text"}}))
    for to in ([], ["--to", default_uri(second)]):
        assert main(["mlflow", "sync", "--all", *to]) == 0
    shutil.rmtree(trial.path)
    shutil.rmtree(other.path)  # unknown text: every token store counts as used while a plan cannot be read
    assert main(["prune", "--purge", "search-1", "-y"]) == 0
    assert [[name for name, *_ in stored(place)] for place in (tmp_path, second)] == [["other"], ["other"]]
    assert not store.exists()
