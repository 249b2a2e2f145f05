"""Limits of hours and cost: reported when used up, raised by `sweep extend`, refused where they never apply."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError, SpecError
from orchestrator.sweep import PlannedSweep, Sweep
from orchestrator.sweeps.design.sweep_record import SweepState
from orchestrator.sweeps.driver import control
from orchestrator.sweeps.driver.control import DriverControl
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.driver.sweep_status import sweep_status
from tests.conftest import wait_for
from tests.unit.sweeps.quick_sweeps import Sweeps
from tests.unit.sweeps.test_sweep_table import add, make

USED_UP = "orchestrator sweep extend search-1 --{}"


def make_ended_sweep(home: Path, state: RunState = RunState.COMPLETED, **limits: float) -> Sweep:
    """Create a sweep that started two hours ago and ended with two of its four trials."""
    found = make(home, limits={"trials": 4, **limits})
    found.folder.write_record(found.folder.record().model_copy(update={"created": time.time() - 7200}))
    add(found, [1.0], "completed", 1.0)
    add(found, [2.0], "ended early", 2.0)
    found.folder.write_state(SweepState(state=state))
    return found


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.CANCELLED])
def test_sweep_with_used_up_hours_is_not_resumed(tmp_path: Path, state: RunState) -> None:
    found = make_ended_sweep(tmp_path, state, hours=1)
    with pytest.raises(ConflictError, match=r"has reached limits\.hours: 1 h are over") as caught:
        found.resume()
    assert caught.value.fix == USED_UP.format("hours 4")
    with pytest.raises(ConflictError, match=r"has reached limits\.hours"):
        found.extend(20)
    assert found.folder.record().spec.limits.trials == 4, "the limits are unchanged"
    assert not found.folder.locked()


def test_sweep_with_spent_budget_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(ConflictError, match=r"limits.cost: 1.00 USD spent, more than 0.6") as caught:
        make_ended_sweep(tmp_path, cost=0.6).resume()
    assert caught.value.fix == USED_UP.format("cost 2")


@pytest.mark.long
def test_sweep_with_raised_limits_resumes(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = {"trials": 3, "concurrent": 1, "hours": 1.5 / 3600}
    folder = sweeps.run(limits=limited, trial={"compute": {"price_per_hour": 2}}, steps=300, pause=10)
    before = len(folder.study().trials)
    assert before < 3
    started = []
    monkeypatch.setattr("orchestrator.sweeps.driver.control.start_driver", lambda *_: started.append(1))
    Sweep(folder, sweeps.home).extend(hours=1, cost=50)
    limits = folder.record().spec.limits
    assert (started, limits.trials, limits.hours, limits.cost) == ([1], 3, 1, 50)
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED
    assert len(folder.study().trials) == 3


def age(folder: SweepFolder, seconds: float) -> None:
    """Make an ended sweep and all it has recorded older, as if it had not been touched for that time."""
    study, draft = folder.study(), folder.path / "older"
    older = folder._optuna().create_study(study_name=folder.name, storage=folder._storage(folder._optuna(), draft))
    for trial in study.get_trials():
        trial.user_attrs |= {"started": trial.user_attrs["started"] - seconds}
        older.add_trial(trial)
    draft.replace(folder.journal)
    state = folder.stored_state()
    folder.write_state(state.model_copy(update={"ended": (state.ended or 0.0) - seconds}))


def test_time_while_cancelled_counts_for_no_limit_of_a_trial(sweeps: Sweeps) -> None:
    folder = sweeps.make(limits={"trials": 1, "trial_hours": 1}, steps=60, pause=10)
    sweeps.start(folder)
    wait_for(lambda: sweeps.starts(folder))
    DriverControl(folder, sweeps.home).cancel()
    assert sweeps.end(folder) == RunState.CANCELLED
    age(folder, 7200)
    assert sweep_status(folder).rows[0].seconds < 60
    folder.cancel_file.unlink()
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED
    (row,) = sweep_status(folder).rows
    assert (row.state, row.reports) == ("completed", 60)
    assert row.seconds < 60
    assert row.ended is not None
    assert row.ended - row.started > 7200


def test_time_until_a_retry_counts_for_no_limit(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "start_driver", lambda folder, home: sweeps.start(folder))
    crash = {"validation": {"max_sequences": 13}}  # see quick_trial.py
    folder = sweeps.run(trial=crash, limits={"trials": 1, "retries": 0, "trial_hours": 1})
    age(folder, 7200)
    DriverControl(folder, sweeps.home).retry([])
    assert sweeps.end(folder) == RunState.COMPLETED
    (row,) = sweep_status(folder).rows
    assert (row.state, row.reports) == ("completed", 4)
    assert row.seconds < 60


def test_limits_ignored_by_a_submission_are_reported(tmp_path: Path) -> None:
    found, other = make(tmp_path, limits={"trials": 4, "hours": 1}), make(tmp_path / "other", limits={"trials": 4})
    wanted = other.folder.record()
    differing = found.differing_limits(PlannedSweep(wanted, None, None))  # type: ignore[arg-type]
    assert differing == {"hours": "none (it has 1)"}


def test_cost_limit_without_a_price_is_refused(sweeps: Sweeps) -> None:
    with pytest.raises(SpecError, match="the trial has no price") as caught:
        sweeps.make(limits={"cost": 5})
    assert caught.value.fix == "--set trial.compute.price_per_hour=N"
    sweeps.make(limits={"cost": 5}, trial={"compute": {"price_per_hour": 2}})


def test_later_cost_limit_needs_a_price_too(sweeps: Sweeps) -> None:
    folder = sweeps.make()
    with pytest.raises(SpecError, match="the trial has no price") as caught:
        Sweep(folder, sweeps.home).extend(cost=50)
    assert caught.value.fix == f"orchestrator sweep extend {folder.name} --hours N"
    assert folder.record().spec.limits.cost is None, "the limits are unchanged"
    assert not folder.locked()


def test_extending_by_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    make_ended_sweep(tmp_path, hours=1)
    assert main(["sweep", "extend", "search-1"]) == 2
    assert "--trials, --hours or --cost" in capsys.readouterr().err
    assert main(["sweep", "extend", "search-1", "--trials", "20"]) == 1
    assert USED_UP.format("hours 4") in capsys.readouterr().err
