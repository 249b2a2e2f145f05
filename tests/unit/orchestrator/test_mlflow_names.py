"""Names and numbers that MLflow refuses: each value of a run and its end reach MLflow whatever a single one is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from mlflow.utils.validation import _validate_metric

from orchestrator.backends.folder.mlflow_sync import is_behind, sync_run
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.runs.tracked_run import default_uri
from tests.mlflow_runs import make_tracked_run, stored
from train_jobs.artifacts.tracking.mlflow_names import LONGEST_NAME, AllowedNames


@pytest.fixture
def run(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Return a completed run whose home has an empty store."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    return make_tracked_run(tmp_path)


def copied(run: RunFolder) -> Any:
    """Return the run's copy, made twice; the second time must add nothing."""
    made = sync_run(run)
    assert sync_run(run) == type(made)(made.run_id, "FINISHED", 0, None)
    assert not is_behind(run)
    found = MlflowClient(default_uri(run.path.parents[1])).get_run(made.run_id)
    assert found.info.status == "FINISHED"
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("recall@10", "recall_10"),
        ("f1(macro)", "f1_macro_"),
        ("loss[0]", "loss_0_"),
        ("accuracy %", "accuracy _"),
        ("größe", "größe"),
        ("gro\u0308ße", "größe"),
        ("a//b", "a/_/b"),
        ("/../a", "_/_/a"),
        ("..a", "__a"),
        ("", "_"),
        ("a\n", "a_"),
        ("a\ud800", "a_"),
    ],
)
def test_refused_name_is_copied_under_an_allowed_one(run: RunFolder, name: str, expected: str) -> None:
    run.metrics.write_text(json.dumps({"step": 1, "loss": 2.5, name: 0.5}) + "\n")
    assert copied(run).data.metrics == {"loss": 2.5, expected: 0.5}


def test_names_of_one_run_stay_apart() -> None:
    names = AllowedNames()
    found = [names.of(name) for name in ("a_b", "a@b", "a%b", "x" * LONGEST_NAME, "x" * 251, "x" * 252, "a@b")]
    assert found[:2] == ["a_b", "a_b-7508d8b5"]
    assert found[6] == found[1]
    assert len(set(found)) == 6
    for name in found:
        _validate_metric(name, 0.0, 0, 0)
    assert AllowedNames().of("x" * 251) == found[4]


def test_refused_parameter_and_tag_are_renamed_too(run: RunFolder) -> None:
    (run.path / "config.json").write_text(json.dumps({"optimizer": {"options": {"k@1": 3, "k": 4}}}))
    (run.path / "tags.json").write_text(json.dumps(tags := {"orchestrator.handle": "local://run", "te@m": "nlp"}))
    sync_run(run)
    (run.path / "tags.json").write_text(json.dumps(tags | {"cost%": "7"}))
    found = copied(run).data
    assert found.params == {"optimizer.options.k_1": "3", "optimizer.options.k": "4"}
    assert (found.tags["te_m"], found.tags["cost_"]) == ("nlp", "7")


def test_step_that_mlflow_cannot_store_is_left_out(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [1, 2**63, -(2**63) - 1, 2**63 - 1]
    run.metrics.write_text("".join(json.dumps({"step": step, "loss": 0.5, "f1": 0.5}) + "\n" for step in steps))
    sync_run(run)
    warnings = [line for line in capsys.readouterr().err.splitlines() if "step" in line]
    assert warnings == [f"warning: MLflow cannot store step {2**63}: values of steps beyond 64 bits are left out"]
    assert stored(run.path.parents[1]) == [("run", "FINISHED", 4)]
    copied(run)


@pytest.mark.parametrize(
    "report",
    [
        '{"step": 1, "time": -5, "loss": 0.5}',
        '{"step": 1, "time": NaN, "loss": 0.5}',
        '{"step": 1, "time": 1e300, "loss": 0.5}',
        f'{{"step": 1, "loss": 0.5, "huge": 1{"0" * 400}}}',
    ],
)
def test_impossible_time_or_number_does_not_block_copy(run: RunFolder, report: str) -> None:
    run.metrics.write_text(f"{report}\n")
    assert copied(run).data.metrics == {"loss": 0.5}
