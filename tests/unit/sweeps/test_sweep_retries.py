"""A sweep loses no point: deaths that are not a trial's fault do not count, and failed trials can be retried."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from optuna.trial import TrialState

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.folder.supervision import LauncherEnd, ending_of
from orchestrator.cli.main import main
from orchestrator.cli.ui import completers
from orchestrator.runs.restarts import Backoff, RestartLimits, decide_restart
from orchestrator.runs.status import AttemptEnd, RunState
from orchestrator.support.errors import ConflictError, NotFoundError
from orchestrator.sweeps.driver import control
from orchestrator.sweeps.driver.control import DriverControl
from orchestrator.sweeps.driver.sweep_status import sweep_status
from tests.unit.sweeps.quick_sweeps import Sweeps

CRASHES = 13
ALWAYS_CRASHES, LOST, FULL = 19, 20, 21  # see quick_trial.py


@pytest.mark.parametrize("bad", [LOST, FULL])
def test_death_without_own_fault_is_no_retry(sweeps: Sweeps, bad: int) -> None:
    folder = sweeps.run(trial={"validation": {"max_sequences": bad}}, limits={"trials": 2, "retries": 0})
    assert [trial.state for trial in folder.study().trials] == [TrialState.COMPLETE] * 2
    assert set(map(tuple, sweeps.starts(folder).values())) == {("1", "2", "3", "4")}


@pytest.mark.parametrize("retries", [0, 9])
def test_killed_launcher_is_no_retry(tmp_path: Path, retries: int) -> None:
    """The kernel sends SIGTERM to the ranks of a killed launcher: they save and end with 75."""
    run = RunFolder(tmp_path / "run-1")
    run.exits(1).mkdir(parents=True)
    (run.exits(1) / "rank-0").write_text("75\n")
    ending = ending_of(run, attempt=1, world_size=1, launcher=LauncherEnd(0, -9), stopped=False)
    assert (ending.state, ending.exit_code) == (RunState.FAILED, 137)
    recorded = {"state": ending.state, "cause": ending.cause, "reason": ending.reason, "exit_code": ending.exit_code}
    ends = [AttemptEnd(**recorded, ended=float(number), step=8) for number in range(3)]
    limits = RestartLimits(retries, preemptions=None, disk_is_error=False)
    assert decide_restart(run.name, ends, limits, Backoff(1.0, 60.0)).due


def test_same_failure_twice_ends_a_trial(sweeps: Sweeps) -> None:
    folder = sweeps.run(trial={"validation": {"max_sequences": ALWAYS_CRASHES}}, limits={"trials": 1, "retries": 9})
    assert list(sweeps.starts(folder).values()) == [["1", "2"]]
    why = folder.study().trials[0].user_attrs["end"]["why"]
    assert why.endswith("failed: crashed as asked (not restarted: it failed twice in the same way after step 1)")


@pytest.mark.long
def test_failed_trials_of_a_completed_sweep_are_retried(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "start_driver", lambda folder, home: sweeps.start(folder))
    crash = {"validation": {"max_sequences": CRASHES}}
    folder = sweeps.run(trial=crash, limits={"trials": 3, "retries": 0})
    before = [trial.user_attrs["settings"] for trial in folder.study().trials]
    assert [row.state for row in sweep_status(folder).rows] == ["failed"] * 3
    sweep = DriverControl(folder, sweeps.home)
    with pytest.raises(ConflictError) as refused:
        sweep.resume()
    assert refused.value.fix == f"orchestrator sweep retry {folder.name}"
    with folder.lock(), pytest.raises(ConflictError, match="already has a driver"):
        DriverControl(folder, sweeps.home).retry([1])
    sweep.retry([1])
    assert sweeps.end(folder) == RunState.COMPLETED
    assert [row.state for row in sweep_status(folder).rows] == ["failed", "completed", "failed"]
    DriverControl(folder, sweeps.home).retry([])
    assert sweeps.end(folder) == RunState.COMPLETED
    trials = folder.study().trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 3
    assert [list(trial.intermediate_values) for trial in trials] == [[1, 2, 3, 4]] * 3
    assert [trial.user_attrs["settings"] for trial in trials] == before
    assert set(map(tuple, sweeps.starts(folder).values())) == {("1", "2")}
    with pytest.raises(ConflictError, match="none has failed"):
        DriverControl(folder, sweeps.home).retry([])


def test_command_retries_and_completes_failed_trials(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control, "start_driver", lambda folder, home: sweeps.start(folder))
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(sweeps.home))
    crash = {"validation": {"max_sequences": CRASHES}}
    folder = sweeps.run(trial=crash, limits={"trials": 2, "retries": 0})
    assert completers.failed_trials(argparse.Namespace(name=folder.name)) == ["0", "1"]
    assert main(["sweep", "retry", folder.name, "7"]) == 5
    assert main(["sweep", "retry", "@last", "1"]) == 0
    assert "2 of 2 trials" in capsys.readouterr().out
    assert completers.failed_trials(argparse.Namespace(name=folder.name)) == ["0"]


def test_only_failed_trials_can_be_retried(sweeps: Sweeps) -> None:
    folder = sweeps.run(limits={"trials": 1})
    sweep = DriverControl(folder, sweeps.home)
    with pytest.raises(NotFoundError, match="no trial 7"):
        sweep.retry([7])
    with pytest.raises(ConflictError, match="cannot retry trial 0 of sweep"):
        sweep.retry([0])
