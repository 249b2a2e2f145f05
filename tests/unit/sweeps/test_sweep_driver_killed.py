"""A kill between two writes of the driver or of a command: the next one neither repeats nor loses anything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from optuna.trial import TrialState

from orchestrator.runs.status import RunState
from orchestrator.sweeps.driver import driver
from orchestrator.sweeps.driver.driver import Driver
from orchestrator.sweeps.driver.sweep_folder import END
from tests.unit.sweeps.quick_driver import NoParentRun
from tests.unit.sweeps.quick_sweeps import Sweeps


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
