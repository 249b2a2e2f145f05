"""Names that match a run or a sweep: the prefix of a sweep's name is also the prefix of its trials' names."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from orchestrator.cli.ui.targets import find_target
from orchestrator.client import Orchestrator
from orchestrator.run import Run
from orchestrator.runs.status import RunState
from orchestrator.support.errors import NotFoundError
from orchestrator.sweep import Sweep
from orchestrator.sweeps.design.sweep_record import SweepState
from tests.run_folders import make_run
from tests.unit.cli.conftest import Command
from tests.unit.sweeps.test_sweep_table import add, make


def sweep(home: Path, name: str = "search-1a2b3c4d", trials: int = 1) -> Sweep:
    """Create a finished sweep with trials that are runs."""
    found = make(home, name=name)
    for number in range(trials):
        add(found, [1.0], "completed", 1.0)
        make_run(home, f"{name}-t{number:04d}")
    found.folder.write_state(SweepState(state=RunState.COMPLETED))
    return found


@pytest.mark.parametrize("trials", [0, 1, 2])
def test_prefix_of_a_sweep_finds_the_sweep(home: Path, trials: int) -> None:
    sweep(home, trials=trials)
    found = find_target(Orchestrator(), "search")
    assert isinstance(found, Sweep)
    assert found.name == "search-1a2b3c4d"


def test_full_names_find_trials_and_runs(home: Path) -> None:
    sweep(home, trials=2)
    make_run(home, "search-of-mine")
    make_run(home, "other-t0001")
    for word, name in {
        "search-1a2b3c4d-t0001": "search-1a2b3c4d-t0001",
        "search-1a2b3c4d-t0": None,
        "search-o": "search-of-mine",
        "search": None,
        "other": "other-t0001",
        "nothing": None,
    }.items():
        if name is None:
            with pytest.raises(NotFoundError):
                find_target(Orchestrator(), word)
        else:
            found = find_target(Orchestrator(), word)
            assert isinstance(found, Run)
            assert found.name == name


def test_prefix_of_two_sweeps_does_not_match_a_trial(home: Path) -> None:
    sweep(home, trials=1)
    sweep(home, "search-2", trials=0)
    with pytest.raises(NotFoundError, match="more than one sweep begins with search"):
        find_target(Orchestrator(), "search")


def test_last_finds_sweeps_and_runs_but_not_trials(home: Path) -> None:
    with pytest.raises(NotFoundError, match="no runs yet"):
        find_target(Orchestrator(), "@last")
    make_run(home, "mine", created=time.time() - 60, age=60)
    sweep(home)
    assert find_target(Orchestrator(), "@last").name == "search-1a2b3c4d"
    make_run(home, "newer", created=time.time() + 1)
    make_run(home, "search-1a2b3c4d-t0001", created=time.time() + 2)
    assert find_target(Orchestrator(), "@last").name == "newer"


def test_download_of_a_sweep_is_that_of_its_best_trial(home: Path, orchestrator: Command) -> None:
    found = make(home, name="search-1a2b3c4d")
    for number, value in enumerate([3.0, 1.0, 2.0]):
        add(found, [value], "completed", value)
        run = make_run(home, f"r{number}")
        run.model.mkdir()
        (run.model / "weights").write_text(f"{value}")
    found.folder.write_state(SweepState(state=RunState.COMPLETED))
    done = orchestrator("download", "search", "model", "--to", "here")
    assert done.code == 0, done.err
    assert Path("here/model/weights").read_text() == "1.0"


@pytest.mark.parametrize("words", [("model", "register"), ("download",)])
def test_best_trial_without_a_model_names_its_resume(home: Path, orchestrator: Command, words: tuple[str, ...]) -> None:
    found = make(home, name="search-1a2b3c4d")
    for number, value in enumerate([3.0, 1.0]):
        add(found, [value], "timed out", value)
        make_run(home, f"r{number}", RunState.CANCELLED)
    found.folder.write_state(SweepState(state=RunState.COMPLETED))
    done = orchestrator(*words, "search-1a2b3c4d")
    assert done.code == 1
    assert "the best trial of sweep search-1a2b3c4d has no final model: it is timed out" in done.err
    assert "orchestrator resume r1, which completes it" in done.err
    (home / "runs" / "r1" / "logs" / "rank0.log").write_text("some")
    done = orchestrator("download", "search-1a2b3c4d", "logs")
    assert done.code == 0, done.err


def test_cancel_and_wait_accept_a_prefix(home: Path, orchestrator: Command) -> None:
    sweep(home)
    for words in (("cancel", "search"), ("wait", "search"), ("attach", "@last"), ("report", "search")):
        done = orchestrator(*words, "-o", "json")
        assert done.code == 0, done.err
        assert "search-1a2b3c4d-t0000" not in done.out.splitlines()[0]
    assert orchestrator("cancel", "search").out == "completed  search-1a2b3c4d\n"


@pytest.mark.parametrize("word", ["wait", "attach"])
def test_ctrl_c_keeps_sweep_running_and_prints_commands(
    home: Path, orchestrator: Command, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    found = sweep(home)
    with found.folder.lock(), monkeypatch.context() as patch:
        found.folder.write_state(SweepState(state=RunState.RUNNING))
        patch.setattr(time, "sleep", lambda _seconds: signal.raise_signal(signal.SIGINT))
        done = orchestrator(word, "search")
    assert done.code == 130
    for words in ("the sweep continues", "orchestrator cancel search-1a2b3c4d", "sweep show search-1a2b3c4d -w"):
        assert words in done.err
