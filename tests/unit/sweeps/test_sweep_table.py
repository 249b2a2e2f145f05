"""Views of a sweep: table, lines without a terminal, best trial; and the search for a sweep."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState, create_trial

from orchestrator.cli.ui.sweep_view import SweepFollower, fitted, sweep_text
from orchestrator.runs.status import RunState
from orchestrator.specs.settings import settings_text
from orchestrator.specs.sweep_spec import trial_count
from orchestrator.support.errors import ConflictError, NotFoundError, UsageError
from orchestrator.support.home import SWEEPS
from orchestrator.sweep import Sweep, Sweeps
from orchestrator.sweeps.design.points import distributions, latents
from orchestrator.sweeps.design.sweep_record import SweepRecord, SweepState
from orchestrator.sweeps.driver.control import make_sweep
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.driver.sweep_status import SweepStatus, status_of
from tests.run_folders import live_run
from tests.unit.sweeps.conftest import sweep


def make(home: Path, *, name: str = "search-1", **sections: Any) -> Sweep:
    """Create a sweep without a driver."""
    space = {"optimizer.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}}
    document = {"space": space, "limits": {"trials": 4}, **sections}
    record = SweepRecord(
        name=name,
        created=time.time(),
        kind="pretrain",
        sweep=document,
        trial={"kind": "pretrain", "backend": "local", "train": {"steps": 7}},
        compute={},
        changes={},
        snapshot="",
        warnings=[],
    )
    folder = make_sweep(record, home)
    folder.write_state(SweepState(state=RunState.RUNNING))
    return Sweep(folder, home)


def add(
    found: Sweep,
    reports: list[float],
    end: str | None = None,
    outcome: float | None = None,
    settings: dict[str, Any] | None = None,
) -> None:
    """Add a trial with these reports; with `end`, a finished one."""
    spec = found.folder.record().spec
    study = found.folder.study()
    number = len(study.trials)
    drawn = latents(spec, number)
    told: dict[str, Any] = {
        "settings": settings or {"optimizer.learning_rate": 0.001},
        "runs": [f"r{number}"],
        "started": time.time(),
    }
    if end is not None:
        told["end"] = {"state": end, "why": "as said", "outcome": outcome, "cost": 0.5, "ended": told["started"] + 90}
    state = {None: TrialState.RUNNING, "failed": TrialState.FAIL}.get(end, TrialState.COMPLETE)
    study.add_trial(
        create_trial(
            state=state,
            value=outcome if state == TrialState.COMPLETE else None,
            params=drawn,
            distributions=distributions(spec.space, drawn),
            user_attrs=told,
            intermediate_values=dict(enumerate(reports, 1)),
        )
    )


def test_table_marks_the_best_trial(tmp_path: Path) -> None:
    found = make(tmp_path)
    add(found, [3.0, 2.0, 2.5], "completed", 2.0)
    add(found, [1.5, math.nan], "stopped", 1.5)
    add(found, [], "failed")
    add(found, [4.0])
    found.folder.write_state(SweepState(state=RunState.COMPLETED))
    status = found.status()
    assert (status.ended, status.trials, status.state) == (3, 4, RunState.COMPLETED)
    assert [row.incumbent for row in status.rows] == [True, False, False, False]
    assert status.best == found.best() == status.rows[0]
    lines = sweep_text(status).splitlines()
    assert lines[0] == "search-1  completed, 3 of 4 trials, minimize validation_loss"
    assert lines[1].split() == ["TRIAL", "STATE", "LAST", "BEST", "REPORTS", "TIME", "SETTINGS"]
    assert lines[2].split() == ["*", "0", "completed", "2.5", "2", "3", "1", "min", "30", "s", "learning_rate=0.001"]
    assert lines[3].split()[:4] == ["1", "stopped", "1.5", "2"]
    assert lines[4].split()[:3] == ["2", "failed", "0"]
    assert lines[5].split()[:5] == ["3", "running", "4", "4", "1"]


@pytest.mark.parametrize("named", [None, 0])
def test_stopped_trial_is_best_only_if_none_completed(tmp_path: Path, named: int | None) -> None:
    found = make(tmp_path)
    add(found, [1.0, 4.0], "stopped", 1.0)
    folder = found.folder
    assert found.best().trial == 0
    add(found, [3.0], "completed", 3.0)
    rows = [row.model_copy(update={"incumbent": False}) for row in found.status().rows]
    status = status_of(folder, folder.record(), folder.stored_state(), rows, named)  # as a service names it
    assert status.best is not None
    assert status.best.trial == 1


@pytest.mark.parametrize("named", [0, 1, 7])
def test_trial_without_a_result_is_not_the_best(tmp_path: Path, named: int) -> None:
    found = make(tmp_path)
    add(found, [3.0], "completed", 3.0)
    add(found, [], "failed")
    folder, rows = found.folder, [row.model_copy(update={"incumbent": False}) for row in found.status().rows]
    status = status_of(folder, folder.record(), folder.stored_state(), rows, named)  # as a service names it
    assert status.best is not None
    assert status.best.trial == 0
    assert status_of(folder, folder.record(), folder.stored_state(), rows[1:], named).best is None


def test_maximize_makes_the_largest_result_best(tmp_path: Path) -> None:
    found = make(tmp_path, objective={"metric": "validation_mlm_accuracy", "goal": "maximize"})
    add(found, [0.1, 0.3], "completed", 0.3)
    add(found, [0.2], "completed", 0.2)
    assert found.best().trial == 0
    assert found.status().rows[0].best == 0.3


def test_best_spec_has_the_seeds_of_the_runs(tmp_path: Path) -> None:
    """The seed of the trial's own spec is one that no run had."""
    found = make(tmp_path, seeds=[11, 12])
    add(found, [3.0], "completed", 3.0)
    record = found.folder.record()
    found.folder.write_record(record.model_copy(update={"trial": {**record.trial, "train": {"seed": 7}}}))
    assert found.best_spec()["train"]["seed"] == 11
    found.folder.write_record(record.model_copy(update={"trial": {**record.trial, "seeds": [42]}}))
    assert found.best_spec()["seeds"] == [11, 12]


def test_best_spec_is_the_trial_with_its_settings(tmp_path: Path) -> None:
    found = make(tmp_path)
    with pytest.raises(NotFoundError, match="has a result"):
        found.best()
    add(found, [1.0], "completed", 1.0)
    spec = found.best_spec()
    trial = found.folder.record().trial
    assert spec == {**trial, "optimizer": {"learning_rate": 0.001}}


def test_without_a_terminal_each_change_prints_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, shown = make(tmp_path), SweepFollower(live=False)
    add(found, [4.0])
    with found.folder.lock():
        for _ in range(3):
            shown.update(found.status())
        add(found, [2.0], "stopped", 2.0)
        shown.update(found.status())
    told = capsys.readouterr().err.splitlines()
    assert told == ["trial 0  running  learning_rate=0.001", "trial 1  stopped  2  as said"]


def test_on_a_terminal_the_table_is_redrawn_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, shown = make(tmp_path), SweepFollower(live=True)
    add(found, [4.0])
    shown.update(found.status())
    first = capsys.readouterr().err
    assert "\x1b" not in first
    shown.update(found.status())
    assert capsys.readouterr().err.startswith(f"\x1b[{first.count(chr(10))}A\x1b[J")


def test_table_larger_than_the_terminal_shows_newest_trials() -> None:
    lines = ["head", "columns", *(f"trial {number} with a long line" for number in range(10))]
    assert fitted(lines, 12, 6) == ["head", "columns", "trial 7 wit", "trial 8 wit", "trial 9 wit"]
    assert fitted(lines, 80, 13) == lines


def test_settings_fit_one_line() -> None:
    assert (
        settings_text({"a.rate": 0.000012345678, "b.flag": True, "c": [1, 2]}) == "rate=1.23457e-05 flag=True c=[1, 2]"
    )
    assert len(settings_text({"a": "x" * 100})) == 60


def test_attach_finds_by_name_prefix_and_last(tmp_path: Path) -> None:
    sweeps = Sweeps(tmp_path)
    with pytest.raises(NotFoundError, match="unknown sweep '@last'"):
        sweeps.attach("@last")
    make(tmp_path, name="first-1")
    time.sleep(0.02)
    make(tmp_path, name="first-12")
    assert sweeps.attach("@last").name == "first-12"
    assert sweeps.attach("first-1").name == "first-1"
    with pytest.raises(NotFoundError, match="more than one sweep begins with first"):
        sweeps.attach("first")
    assert sweeps.find("first") is None
    (tmp_path / SWEEPS / ".draft").mkdir()
    assert len(sweeps.all()) == 2


def test_impossible_extend_or_resume_is_refused(tmp_path: Path) -> None:
    grid = make(tmp_path, space={"train.steps": [1, 2]}, sampling="grid", limits={})
    assert trial_count(grid.folder.record().spec) == 2
    with pytest.raises(UsageError, match="of the grid's 2 points"):
        grid.extend(1)
    many = make(tmp_path, name="many")
    with pytest.raises(UsageError, match="a sweep has at most 1000"):
        many.extend(997)
    with many.folder.lock(), pytest.raises(ConflictError, match="is running"):
        many.extend(1)
    for _ in range(4):
        add(many, [1.0], "completed", 1.0)
    many.folder.write_state(SweepState(state=RunState.COMPLETED))
    with pytest.raises(ConflictError, match="has all of its 4 trials"):
        many.resume()


def test_half_written_files_of_a_killed_driver_are_fixed(tmp_path: Path) -> None:
    found = make(tmp_path)
    add(found, [1.0], "completed", 1.0)
    folder = found.folder
    journal, decisions = folder.path / "study.journal", folder.path / "decisions.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "worker')
    decisions.write_text('{"trial": 0, "report": 1, "stop": false, "why": "x"}\n{"trial": 0, "rep')
    (folder.path / "study.journal.lock").symlink_to(journal)
    folder.repair()
    assert journal.read_bytes() == whole
    assert list(folder.decisions()) == [(0, 1)]
    add(found, [2.0])
    assert len(SweepFolder(folder.path).study().trials) == 2


def test_spec_of_a_sweep_is_restored_from_its_record(tmp_path: Path) -> None:
    document = {"space": {"a": [1, {"b": {"low": 1, "high": 2}}]}, "sampling": {"name": "tpe"}, "seeds": [1, 2]}
    assert make(tmp_path, **document).folder.record().spec == sweep(
        document["space"], "tpe", seeds=[1, 2], limits={"trials": 4}
    )


def end(found: Sweep, state: RunState = RunState.COMPLETED) -> None:
    """End the sweep, long ago on the clock of its files."""
    found.folder.write_state(SweepState(state=state, ended=time.time()))
    for file in (found.folder.journal, found.folder.state_file):
        earlier = file.stat().st_mtime - 10
        os.utime(file, (earlier, earlier))


def test_ended_sweep_is_shown_again_without_optuna(tmp_path: Path) -> None:
    found = make(tmp_path)
    add(found, [3.0, math.nan], "completed", 3.0, settings={"optimizer.learning_rate": 0.1, "other": ["a", None]})
    add(found, [], "failed")
    end(found)
    first = found.status()
    code = (
        "import sys; from pathlib import Path; from orchestrator.sweep import Sweeps\n"
        f"print(Sweeps(Path({str(tmp_path)!r})).attach('search-1').status().model_dump_json())\n"
        "sys.exit('optuna' in sys.modules or 'numpy' in sys.modules)"
    )
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert SweepStatus.model_validate_json(again.stdout) == first
    assert first.rows[0].settings == {"optimizer.learning_rate": 0.1, "other": ["a", None]}


def test_kept_rows_follow_the_study(tmp_path: Path) -> None:
    found = make(tmp_path)
    add(found, [3.0], "completed", 3.0)
    end(found)
    assert [row.outcome for row in found.status().rows] == [3.0]
    assert found.folder.rows.exists()
    add(found, [2.0], "completed", 2.0)
    assert [row.outcome for row in Sweep(found.folder, tmp_path).status().rows] == [3.0, 2.0]
    end(found)
    assert len(Sweep(found.folder, tmp_path).status().rows) == 2
    found.folder.reopen_trials([0])
    found.folder.write_state(SweepState(state=RunState.RUNNING))
    with found.folder.lock():
        assert [row.state for row in Sweep(found.folder, tmp_path).status().rows] == ["running", "completed"]


@pytest.mark.parametrize("damage", [b"", b"{", b'{"stamp": "x", "rows": []}', b"\xff"])
def test_damaged_kept_rows_are_read_anew(tmp_path: Path, damage: bytes) -> None:
    found = make(tmp_path)
    add(found, [3.0], "completed", 3.0)
    end(found)
    first = found.status()
    found.folder.rows.write_bytes(damage)
    assert found.status() == first
    assert len(found.folder.rows.read_bytes()) > 100  # and kept again


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.FAILED])
def test_running_trials_are_not_kept(tmp_path: Path, state: RunState) -> None:
    found = make(tmp_path)
    add(found, [3.0])
    end(found, state)
    with found.folder.lock(), live_run(tmp_path, "r0", attempts=[{"started": time.time()}]):
        before = found.status().rows[0].seconds
        assert found.status().rows[0].seconds > before
    assert not found.folder.rows.exists()


def test_fresh_changes_are_not_kept(tmp_path: Path) -> None:
    """The time of a file may have whole seconds: a change within the second would not show."""
    found = make(tmp_path)
    add(found, [3.0], "completed", 3.0)
    found.folder.write_state(SweepState(state=RunState.COMPLETED, ended=time.time()))
    assert len(found.status().rows) == 1
    assert not found.folder.rows.exists()
