"""The end of a sweep: trials of a cancelled one, the best spec, the final state on a full disk."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.runs.status import RunState
from orchestrator.support.errors import NotFoundError
from orchestrator.sweep import Sweep
from orchestrator.sweeps.design.sweep_record import SweepState
from orchestrator.sweeps.driver.control import DriverControl
from orchestrator.sweeps.driver.sweep_status import sweep_status
from tests.unit.sweeps.quick_sweeps import Sweeps
from tests.unit.sweeps.test_sweep_table import add, make


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    return tmp_path


def test_cancelled_sweep_freezes_the_time_of_its_trials(home: Path) -> None:
    found = make(home)
    add(found, [1.0], "completed", 1.0)
    add(found, [2.0])
    with found.folder.lock():
        running = found.status().rows
    assert [row.state for row in running] == ["completed", "running"]
    ended = running[1].started + 60
    found.folder.write_state(SweepState(state=RunState.CANCELLED, ended=ended))
    status = found.status()
    assert [row.state for row in status.rows] == ["completed", "cancelled"]
    assert status.rows[1].seconds == 60
    assert (status.ended, status.trials) == (1, 4), "it continues with the sweep"


def test_sweep_cancelled_without_a_driver_has_an_end(sweeps: Sweeps) -> None:
    folder, before = sweeps.make(), time.time()
    DriverControl(folder, sweeps.home).cancel()
    assert (folder.stored_state().ended or 0) >= before


def test_best_spec_creates_its_folder_and_prints_a_command(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = make(home)
    add(found, [1.0], "completed", 1.0)
    assert main(["sweep", "best", "search-1", "--spec", "my out/best.yaml", "-o", "json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["trial"] == 0
    assert "train" in Path("my out/best.yaml").read_text()
    assert shlex.split(output.err.splitlines()[-1])[-1] == "my out/best.yaml"
    Path("file").touch()
    assert main(["sweep", "best", "search-1", "--spec", "file/best.yaml"]) == 1
    assert "error[storage]: cannot write the spec" in capsys.readouterr().err


def test_driver_without_disk_space_reports_its_failure(sweeps: Sweeps) -> None:
    folder = sweeps.make(limits={"trials": 1})
    folder.metrics.mkdir()  # it cannot be written, like a file on a full disk
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.FAILED
    assert folder.stored_state().state == RunState.FAILED
    reason = folder.state().reason or ""
    assert reason.startswith(f"error[storage]: cannot run the sweep: Is a directory\n  where  {folder.metrics}\n")
    assert reason.endswith(f"orchestrator resume {folder.name}")
    assert (folder.path / "reserve").stat().st_size > 0


def test_completed_trial_without_metric_is_completed(sweeps: Sweeps) -> None:
    """The table and the status of its run agree, and `sweep best` has an error instead of a crash."""
    folder = sweeps.run(trial={"validation": {"max_sequences": 22}}, limits={"trials": 1})  # see quick_trial.py
    (row,) = sweep_status(folder).rows
    assert (row.state, row.outcome, row.reports) == ("completed", None, 0)
    with pytest.raises(NotFoundError, match=r"no trial of sweep .* has a result") as failure:
        Sweep(folder, sweeps.home).best()
    assert failure.value.fix == f"orchestrator sweep show {folder.name}"


def test_flag_without_effect_on_a_sweep_is_a_warning(
    home: Path, sweeps: Sweeps, capsys: pytest.CaptureFixture[str]
) -> None:
    sweeps.make()
    assert main(["plan", "sweep", "-f", "sweep.yaml", "--new"]) == 0
    assert "warning: --new has no effect" in capsys.readouterr().err
