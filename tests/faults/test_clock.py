"""A machine whose clock is set while a run lasts: durations and cost stay true."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.conftest import Console, processes_of, wait_for
from tests.run_folders import run_script
from tests.settable_clock import SettableClock

HOUR = 3600
PRICE = 3600.0  # USD for an hour: a USD for a second


@pytest.mark.long
@pytest.mark.parametrize("offset", [-2 * HOUR, 400 * 24 * HOUR], ids=["back", "forward"])
def test_durations_survive_change_of_clock(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """The run lasts until its file appears; the clock of supervisor and commands is set meanwhile."""
    clock = SettableClock(tmp_path / "clock")
    for key, value in clock.variables.items():
        monkeypatch.setenv(key, value)
        console.variables[key] = value
    script = 'while [ ! -e "$ORCHESTRATOR_RUN/end" ]; do sleep 0.1; done; exit 3'
    started = time.monotonic()
    name = run_script(
        console.home, script, **{"compute.price_per_hour": PRICE, "tracking.uri": f"sqlite:///{tmp_path}/mlflow.db"}
    )
    folder = console.folder(name)
    wait_for(lambda: console("status", name, "-o", "json").json["state"] == "running", what="the start")
    clock.set(offset)
    time.sleep(2)
    running = console("status", name, "-o", "json").json
    assert running["state"] == "running"
    assert 2 <= running["cost"] <= time.monotonic() - started
    (folder / "end").touch()
    wait_for(lambda: not processes_of(folder) and console("wait", name).code == 3, what="the end")
    status = console("status", name, "-o", "json").json
    assert 2 <= status["cost"] <= time.monotonic() - started
    assert 2 <= status["ended"] - status["started"] <= time.monotonic() - started
    (cost,) = console("cost", name, "-o", "json").json["runs"]
    assert cost["cost"] == pytest.approx(status["cost"])
