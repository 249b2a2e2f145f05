"""A backend outage, as in a cloud: no trial is given up, and none keeps running after a cancel."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from optuna.trial import TrialState

from orchestrator.runs.status import RunState
from orchestrator.sweeps.driver.control import DriverControl
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from tests.conftest import wait_for
from tests.unit.sweeps.quick_driver import AWAY
from tests.unit.sweeps.quick_sweeps import Sweeps


def start_outage(sweeps: Sweeps, folder: SweepFolder, *questions: str) -> Path:
    """Start an outage of these calls, and wait until the driver notices; return the file to delete at its end."""
    file = sweeps.home / AWAY
    file.write_text(" ".join(questions))
    wait_for(lambda: "the backend is away" in (folder.path / "driver.log").read_text(), what="the outage")
    return file


@pytest.mark.parametrize("question", ["describe", "metrics"])
def test_sweep_survives_an_outage(sweeps: Sweeps, question: str) -> None:
    folder = sweeps.make(limits={"trials": 2}, steps=100, pause=15)
    sweeps.start(folder)
    wait_for(lambda: len(sweeps.starts(folder)) == 2)
    file = start_outage(sweeps, folder, question)
    assert folder.state().state == RunState.RUNNING
    file.unlink()
    assert sweeps.end(folder) == RunState.COMPLETED, (folder.path / "driver.log").read_text()
    assert [trial.state for trial in folder.study().trials] == [TrialState.COMPLETE] * 2


@pytest.mark.parametrize("question", ["describe", "cancel"])
def test_trial_ends_only_after_its_runs(sweeps: Sweeps, question: str) -> None:
    folder = sweeps.make(limits={"trials": 1, "trial_hours": 1 / 3600}, seeds=[1, 2], steps=1000, pause=30)
    sweeps.start(folder)
    wait_for(lambda: len(sweeps.starts(folder)) == 2)
    file = start_outage(sweeps, folder, question)
    started = folder.study().trials[0].user_attrs["started"]
    wait_for(lambda: time.time() > started + 2, what="the time after which it is to end")
    assert not folder.study().trials[0].state.is_finished()
    file.unlink()
    assert sweeps.end(folder) == RunState.COMPLETED, (folder.path / "driver.log").read_text()
    assert folder.study().trials[0].user_attrs["end"]["state"] == "timed out"
    assert {run.stored_state().state for run in sweeps.runs(folder)} == {RunState.CANCELLED}


@pytest.mark.parametrize("question", ["describe", "cancel"])
def test_cancel_waits_for_the_end_of_an_outage(sweeps: Sweeps, question: str) -> None:
    folder = sweeps.make(limits={"trials": 2}, steps=1000, pause=30)
    sweeps.start(folder)
    wait_for(lambda: len(sweeps.starts(folder)) == 2)
    (sweeps.home / AWAY).write_text(question)
    DriverControl(folder, sweeps.home).cancel()
    file = start_outage(sweeps, folder, question)
    assert folder.state().state == RunState.RUNNING
    file.unlink()
    assert sweeps.end(folder) == RunState.CANCELLED, (folder.path / "driver.log").read_text()
    assert {run.stored_state().state for run in sweeps.runs(folder)} == {RunState.CANCELLED}
