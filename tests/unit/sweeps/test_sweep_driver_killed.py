"""A kill between two writes of the driver or of a command: the next one neither repeats nor loses anything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from optuna.trial import TrialState

from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError
from orchestrator.sweep import Sweep
from orchestrator.sweeps.driver import control, driver
from orchestrator.sweeps.driver.control import DriverControl
from orchestrator.sweeps.driver.driver import Driver
from orchestrator.sweeps.driver.sweep_folder import END, SweepFolder
from tests.unit.sweeps.quick_driver import NoParentRun
from tests.unit.sweeps.quick_sweeps import Sweeps
from tests.unit.sweeps.test_sweep_retries import CRASHES


class Killed(BaseException):
    """The process ends here."""


def die_after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, key: str | None = None) -> None:
    """Make a function the last one that its process completes.

    Args:
        monkeypatch: pytest's.
        owner: module or class of the function.
        name: of the function.
        key: an argument that the call must have. None: the first call is the last.
    """
    original = getattr(owner, name)

    def dying(*arguments: Any, **named: Any) -> None:
        original(*arguments, **named)
        if key is None or key in arguments:
            raise Killed

    monkeypatch.setattr(owner, name, dying)


@pytest.mark.parametrize(("owner", "name", "key"), [(Driver, "_set_attribute", END), (driver, "append", None)])
def test_result_of_a_trial_is_reported_once(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, key: str | None
) -> None:
    folder = sweeps.make(limits={"trials": 2, "concurrent": 2})
    monkeypatch.setattr(driver, "ParentRun", NoParentRun)
    with monkeypatch.context() as patched, folder.lock():
        die_after(patched, owner, name, key)
        with pytest.raises(Killed):
            Driver(folder, sweeps.home).drive()
    (ended,) = [trial.user_attrs[END] for trial in folder.study().trials if END in trial.user_attrs]
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED, (folder.path / "driver.log").read_text()
    trials = folder.study().trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert sorted(line["metrics"]["trial"] for line in lines) == sorted(trial.value for trial in trials)
    assert ended in [trial.user_attrs[END] for trial in trials], "the stored end is not made again"


@pytest.mark.parametrize("name", ["write_state", "reopen_trials"])
def test_sweep_whose_retry_was_killed_resumes(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(control, "start_driver", lambda folder, home: sweeps.start(folder))
    folder = sweeps.run(trial={"validation": {"max_sequences": CRASHES}}, limits={"trials": 1, "retries": 0})
    with monkeypatch.context() as patched:
        die_after(patched, SweepFolder, name)
        with pytest.raises(Killed):
            DriverControl(folder, sweeps.home).retry([])
    sweep = DriverControl(folder, sweeps.home)
    status = sweep.status()
    assert status.state == RunState.PREEMPTED
    assert (status.reason or "").startswith("orchestrator sweep retry has not started the driver")
    if name == "reopen_trials":
        with pytest.raises(ConflictError, match="cannot retry") as refused:
            sweep.retry([])
        assert refused.value.fix == f"orchestrator resume {folder.name}"
        sweep.resume()
    else:
        sweep.retry([])
    assert sweeps.end(folder) == RunState.COMPLETED
    assert [trial.state for trial in folder.study().trials] == [TrialState.COMPLETE]
    assert list(sweeps.starts(folder).values()) == [["1", "2"]]


@pytest.mark.parametrize("name", ["write_state", "write_record"])
def test_killed_extension_adds_its_trials_once(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(control, "start_driver", lambda folder, home: sweeps.start(folder))
    folder = sweeps.run(limits={"trials": 1})
    sweep = Sweep(folder, sweeps.home)
    with monkeypatch.context() as patched:
        die_after(patched, SweepFolder, name)
        with pytest.raises(Killed):
            sweep.extend(1)
    assert sweep.state() == RunState.PREEMPTED
    if name == "write_record":
        with pytest.raises(ConflictError, match="already has 2 trials") as refused:
            sweep.extend(1)
        assert refused.value.fix == f"orchestrator resume {folder.name}"
        sweep.resume()
    else:
        sweep.extend(1)
    assert sweeps.end(folder) == RunState.COMPLETED
    assert [trial.state for trial in folder.study().trials] == [TrialState.COMPLETE] * 2
