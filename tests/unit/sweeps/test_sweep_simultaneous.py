"""Two commands that change one sweep at the same moment: the second one decides from what the first one did."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.runs.status import RunState
from orchestrator.sweeps.driver import control
from orchestrator.sweeps.driver.control import DriverControl
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from tests.overtaking import overtake
from tests.unit.sweeps.quick_sweeps import Sweeps


def test_sweep_is_not_cancelled_while_it_is_resumed(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancel finds the new driver, instead of a state without one that it would overwrite."""
    folder = sweeps.make(limits={"trials": 2})
    folder.write_state(folder.stored_state().model_copy(update={"state": RunState.FAILED}))
    drives: list[bool] = []

    def start(folder: SweepFolder, home: Path) -> None:
        folder.write_state(folder.stored_state().model_copy(update={"state": RunState.RUNNING}))
        drives.append(True)

    monkeypatch.setattr(SweepFolder, "has_driver", lambda self: bool(drives))
    monkeypatch.setattr(control, "start_driver", start)
    second = overtake(monkeypatch, control, "check_secrets", DriverControl(folder, sweeps.home).cancel)
    DriverControl(folder, sweeps.home).resume()
    second()
    assert folder.stored_state().state == RunState.RUNNING
    assert folder.cancel_file.exists()


def test_sweep_is_resumed_after_it_is_cancelled(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sweeps.make(limits={"trials": 2})
    folder.write_state(folder.stored_state().model_copy(update={"state": RunState.FAILED}))
    started: list[RunState] = []
    monkeypatch.setattr(control, "start_driver", lambda folder, home: started.append(folder.stored_state().state))
    second = overtake(monkeypatch, control, "load_backend", DriverControl(folder, sweeps.home).resume)
    DriverControl(folder, sweeps.home).cancel()
    second()
    assert started == [RunState.CANCELLED]
    assert not folder.cancel_file.exists()
