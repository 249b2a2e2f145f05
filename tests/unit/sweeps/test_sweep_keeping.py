"""Kept checkpoints and models of trials: selection, disk space, deletion."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.backends import load_backend
from orchestrator.backends.folder.outputs import delete_weights
from orchestrator.backends.folder.run_folder import LocalState, RunFolder
from orchestrator.cli.ui.sweep_view import plan_text
from orchestrator.runs.status import RunState
from orchestrator.support.errors import SpecError
from orchestrator.sweep import Sweeps
from orchestrator.sweeps.driver.weight_pruning import AUTO, kept_trials, trials_on_disk, trials_to_prune
from tests.conftest import MICRO, SMALL_TEXT
from tests.unit.sweeps.conftest import NO_GPU, sweep

RATE: dict[str, Any] = {"optimizer.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}


def test_losers_are_all_but_the_best_and_the_earlier_tie() -> None:
    outcomes = {0: 0.5, 1: None, 2: 0.1, 3: 0.5, 4: 0.9}
    assert trials_to_prune(outcomes, outcomes.keys(), 2, maximize=False) == {1, 3, 4}
    assert trials_to_prune(outcomes, outcomes.keys(), 2, maximize=True) == {1, 2, 3}
    assert trials_to_prune(outcomes, outcomes.keys(), None, maximize=True) == set()
    assert trials_to_prune({1: None, 2: 3.0}, {1, 2}, 5, maximize=True) == {1}, "without a result it keeps nothing"


def test_trials_without_a_model_follow_all_others() -> None:
    outcomes = {0: 0.1, 1: 0.5, 2: 0.4, 3: 0.2}
    assert trials_to_prune(outcomes, {1, 2}, 1, maximize=False) == {0, 1, 3}
    assert trials_to_prune(outcomes, {1, 2}, 3, maximize=False) == {3}
    assert trials_to_prune(outcomes, set(), 1, maximize=False) == {1, 2, 3}, "no trial completed"


def test_loser_never_becomes_a_winner() -> None:
    outcomes: dict[int, float | None] = {}
    gone: set[int] = set()
    for number, value in enumerate([3.0, 1.0, 2.0, None, 1.0, 0.5, 4.0]):
        outcomes[number] = value
        now = trials_to_prune(outcomes, {0, 1, 2, 5}, 2, maximize=False)
        assert gone <= now
        gone = now
    assert outcomes.keys() - gone == {1, 5}


def test_keep_best_is_refused_where_nothing_is_deleted(tmp_path: Path) -> None:
    local, azure = load_backend("local", tmp_path), load_backend("azure", tmp_path)
    limits = {"trials": 9, "concurrent": 2}
    for keep, here, there in (("auto", AUTO, None), ("all", None, None)):
        spec = sweep(RATE, keep_best=keep, limits=limits)
        assert (kept_trials(spec, local), kept_trials(spec, azure)) == (here, there)
    spec = sweep(RATE, keep_best=1, limits=limits)
    assert kept_trials(spec, local) == 1
    with pytest.raises(SpecError, match="invalid keep_best 1: backend azure cannot delete weights"):
        kept_trials(spec, azure)
    assert (trials_on_disk(spec, 1), trials_on_disk(spec, None), trials_on_disk(spec, 8)) == (3, 9, 9)


def test_plan_shows_kept_trials_and_disk_space(tmp_path: Path) -> None:
    Path("notes.txt").write_text(SMALL_TEXT)
    job = json.loads(json.dumps(MICRO))
    job["data"] |= {"text": ["notes.txt"]}
    document = {"space": RATE, "trial": job, "limits": {"trials": 9, "concurrent": 2}, "seeds": [1, 2]}
    lines = {}
    for keep in (1, "all"):
        Path("sweep.yaml").write_text(yaml.safe_dump({**document, "keep_best": keep}))
        planned = Sweeps(tmp_path / "home", environ=NO_GPU).plan(file=Path("sweep.yaml"))
        lines[keep] = dict(line.split(maxsplit=1) for line in plan_text(planned).splitlines())
    assert lines[1]["keeps"] == "checkpoints and models of the best trial; failed ones keep theirs for sweep retry"
    assert "at most, if none fails: 3 trials x 2 seeds of " in lines[1]["disk"]
    assert lines["all"]["keeps"] == "checkpoints and models of all trials"
    assert "at most: 9 trials x 2 seeds of " in lines["all"]["disk"]


def make_run(path: Path) -> RunFolder:
    """Create a finished run with weights in every folder where a job may write them."""
    run = RunFolder(path)
    for folder in ("model", "checkpoints/step-00000007", "seed-2/model", "MRPC/seed-1/checkpoints/x", "predictions"):
        (run.outputs / folder).mkdir(parents=True)
        (run.outputs / folder / "file").write_text("some")
    run.metrics.write_text("{}\n")
    (path / "lock").touch()
    run.write_state(LocalState(state=RunState.COMPLETED, created=time.time()))
    return run


def test_only_weights_are_deleted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with run.lock():
        assert not delete_weights(run, "why")
    assert len(list(run.outputs.glob("**/file"))) == 5, "the run is locked"
    assert run.state().warning is None
    assert delete_weights(run, "why")
    assert [path.parent.name for path in run.outputs.glob("**/file")] == ["predictions"]
    assert run.metrics.exists()
    assert (run.state().state, run.state().warning) == (RunState.COMPLETED, "why")
    assert delete_weights(run, "again")
    assert run.state().warning == "why", "nothing was left to delete"


def test_interrupted_deletion_is_completed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run.outputs / "model").rename(run.outputs / ".deleted.model")  # killed before it wrote the reason
    assert delete_weights(run, "why")
    assert not list(run.outputs.glob("**/.deleted.*"))
    assert run.state().warning == "why"
