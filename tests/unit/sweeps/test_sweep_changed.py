"""Changes during a sweep: its data, its packages, an existing run with the name of a trial."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from optuna.trial import TrialState

from orchestrator.runs.status import RunState
from tests.conftest import SMALL_TEXT, wait_for
from tests.unit.sweeps.quick_sweeps import Sweeps, kill


@pytest.mark.long
def test_changed_data_end_the_sweep_with_the_reason(sweeps: Sweeps) -> None:
    folder = sweeps.make(limits={"trials": 3, "concurrent": 1}, steps=100, pause=20)
    sweeps.start(folder)
    wait_for(lambda: sweeps.starts(folder))
    Path("notes.txt").write_text(f"{SMALL_TEXT}other\n")
    assert sweeps.end(folder) == RunState.FAILED
    assert "the data changed since" in str(folder.state().reason)
    assert len(sweeps.runs(folder)) == 1, "no trial with other data"
    Path("notes.txt").write_text(SMALL_TEXT)
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED
    assert [trial.state for trial in folder.study().trials] == [TrialState.COMPLETE] * 3


def test_data_may_vary_if_part_of_the_space(sweeps: Sweeps) -> None:
    Path("more.txt").write_text(f"{SMALL_TEXT}more\n")
    sweeps.run(space={"data.text": [["notes.txt"], ["more.txt"]]}, sampling="grid", limits={"trials": None})


@pytest.mark.slow
def test_changed_packages_end_the_sweep_with_the_reason(sweeps: Sweeps) -> None:
    folder = sweeps.make()
    record = folder.record()
    older = {**record.environment, "torch": "0.1"}
    folder.write_record(record.model_copy(update={"environment": older}))
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.FAILED
    assert "the environment changed since" in str(folder.state().reason)
    wait_for(lambda: "torch 0.1" in (folder.path / "driver.log").read_text())  # written after the state


def test_runs_of_a_deleted_sweep_become_its_trials_again(sweeps: Sweeps) -> None:
    folder = sweeps.make(limits={"trials": 2}, steps=100, pause=15)
    sweeps.start(folder)
    wait_for(lambda: len(sweeps.starts(folder)) == 2)
    kill(folder)
    shutil.rmtree(folder.path)
    folder = sweeps.run(limits={"trials": 2}, steps=100, pause=15)
    assert [trial.state for trial in folder.study().trials] == [TrialState.COMPLETE] * 2
    assert set(map(tuple, sweeps.starts(folder).values())) == {("1",)}


def test_run_of_another_plan_is_not_a_trial(sweeps: Sweeps) -> None:
    folder = sweeps.run(limits={"trials": 1})
    (run,) = sweeps.runs(folder)
    plan = run.path / "plan.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "run_hash": "0" * 8}))
    shutil.rmtree(folder.path)
    folder = sweeps.make(limits={"trials": 1})
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.FAILED
    assert folder.state().reason == f"run {run.name} already exists with another plan"
