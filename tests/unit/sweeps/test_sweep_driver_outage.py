"""A backend outage or a refusal, as in a cloud: no trial is given up, and none keeps running after a cancel."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from optuna.trial import TrialState

from orchestrator.runs.status import RunState
from orchestrator.sweeps.driver.control import DriverControl
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from tests.conftest import wait_for
from tests.unit.sweeps.quick_driver import AWAY, REFUSED
from tests.unit.sweeps.quick_sweeps import Sweeps, kill


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


@pytest.mark.parametrize("by", ["cancel", "limits.hours"])
def test_refused_cancel_of_a_run_spares_no_other(sweeps: Sweeps, by: str) -> None:
    folder = sweeps.make(limits={"trials": 2}, steps=10000, pause=30)
    (sweeps.home / REFUSED).write_text(f"{folder.name}-t0000")
    sweeps.start(folder)
    wait_for(lambda: len(sweeps.starts(folder)) == 2)
    if by == "cancel":
        DriverControl(folder, sweeps.home).cancel()
    else:  # reached while both trials run, however slow their start was
        kill(folder)
        record = folder.record()
        limits = {**record.sweep["limits"], "hours": 1e-6}
        folder.write_record(record.model_copy(update={"sweep": {**record.sweep, "limits": limits}}))
        sweeps.start(folder)
    first, second = sweeps.runs(folder)
    wait_for(lambda: second.stored_state().state == RunState.CANCELLED, what="the end of the other trial")
    assert folder.state().state == RunState.RUNNING
    assert not first.stored_state().state.terminal
    (sweeps.home / REFUSED).unlink()
    assert sweeps.end(folder) == (RunState.CANCELLED if by == "cancel" else RunState.COMPLETED)
    assert first.stored_state().state == RunState.CANCELLED
