"""A machine whose clock is set while a sweep runs: its limits and retries count the time that passed."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.runs.status import RunState
from orchestrator.sweeps.driver.control import DriverControl
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from tests.conftest import wait_for
from tests.settable_clock import SettableClock
from tests.unit.sweeps.quick_sweeps import Sweeps, kill
from train_jobs.artifacts.host import RunClock

DAY = 24 * 3600
LOST = 20  # see quick_trial.py
jumps = pytest.mark.parametrize("offset", [-DAY, DAY], ids=["back", "forward"])


@pytest.fixture
def clock(sweeps: Sweeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SettableClock:
    """Return the wall clock of drivers that start from now on; the one of this process stays."""
    found = SettableClock(tmp_path / "clock")
    sweeps.python_path.append(str(found.path))
    monkeypatch.setenv("TEST_CLOCK", found.variables["TEST_CLOCK"])
    return found


def start(sweeps: Sweeps, folder: SweepFolder) -> None:
    """Start a sweep, and wait for its first report."""
    sweeps.start(folder)
    wait_for(lambda: any(run.metrics.exists() for run in sweeps.runs(folder)), what="a report")


@pytest.mark.long
@jumps
def test_set_clock_ends_no_sweep_and_no_trial(sweeps: Sweeps, clock: SettableClock, offset: int) -> None:
    limits = {"trials": 3, "concurrent": 1, "hours": 1, "trial_hours": 1}
    folder = sweeps.make(limits=limits, steps=40, pause=20)
    start(sweeps, folder)
    clock.set(offset)
    assert sweeps.end(folder) == RunState.COMPLETED
    status = DriverControl(folder, sweeps.home).status()
    assert status.reason is None
    assert [row.state for row in status.rows] == ["completed"] * 3
    assert all(row.ended is not None and 0 < row.ended - row.started < 3600 for row in status.rows)
    assert all(later.started > row.started for row, later in zip(status.rows, status.rows[1:], strict=False))


@jumps
def test_set_clock_survives_a_restart_of_the_driver(sweeps: Sweeps, clock: SettableClock, offset: int) -> None:
    folder = sweeps.make(limits={"trials": 1, "hours": 1}, steps=60, pause=10)
    start(sweeps, folder)
    kill(folder)
    clock.set(offset)
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED
    (row,) = DriverControl(folder, sweeps.home).status().rows
    assert (row.state, row.reports) == ("completed", 60)
    assert row.ended is not None
    assert 0 < row.ended - row.started < 3600


@pytest.mark.long
def test_clock_set_back_delays_no_limit(sweeps: Sweeps, clock: SettableClock) -> None:
    folder = sweeps.make(limits={"trials": 1, "hours": 8 / 3600}, steps=10**6, pause=20)
    start(sweeps, folder)
    clock.set(-DAY)
    assert sweeps.end(folder) == RunState.COMPLETED
    assert str(folder.state().reason).startswith("limits.hours: ")


@pytest.mark.long
def test_clock_set_back_delays_no_retry(sweeps: Sweeps, clock: SettableClock) -> None:
    folder = sweeps.make(trial={"validation": {"max_sequences": LOST}}, limits={"trials": 1, "retries": 0})
    sweeps.start(folder)
    clock.set(-DAY)
    assert sweeps.end(folder) == RunState.COMPLETED
    assert list(sweeps.starts(folder).values()) == [["1", "2", "3", "4"]]


def test_sweep_continues_after_a_reboot_with_a_wrong_clock(sweeps: Sweeps, clock: SettableClock) -> None:
    folder = sweeps.make(limits={"trials": 2, "concurrent": 1, "hours": 1}, steps=2)
    state = folder.stored_state()
    folder.write_state(state.model_copy(update={"clock": RunClock("an earlier boot", 5.0, folder.record().created)}))
    clock.set(-DAY)
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED
    rows = DriverControl(folder, sweeps.home).status().rows
    assert [row.state for row in rows] == ["completed"] * 2
    assert rows[0].started >= folder.record().created
