"""metrics.jsonl as commands of users and lost machines leave it: one rule for status, reports and MLflow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from orchestrator.backends.folder.mlflow_sync import is_behind, sync_run
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.client import Orchestrator
from orchestrator.runs.tracked_run import default_uri
from tests.mlflow_runs import make_tracked_run


@pytest.fixture
def home(tmp_path: Path, empty_store: Path) -> Path:
    """Return a home with an empty store."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return tmp_path


def test_last_line_without_its_end_counts_if_it_is_complete(home: Path) -> None:
    run = make_tracked_run(home)
    run.metrics.write_text('{"step": 1, "loss": 9.0}\n{"step": 2, "loss": 4.5}')
    status = LocalBackend(home).describe("run")
    assert (status.step, status.metrics) == (2, {"loss": 4.5})
    copied = sync_run(run)
    assert copied.values == 2
    assert MlflowClient(default_uri(home)).get_run(copied.run_id).data.metrics == {"loss": 4.5}
    assert not is_behind(run)
    with run.metrics.open("a") as stream:
        stream.write('\n{"step": 3, "loss": 3.0}\n')
    assert is_behind(run)
    assert sync_run(run).values == 1


@pytest.mark.parametrize("rest", ['{"step": 2, "lo', '{"loss": 4.5}\n', "\n\n", '["a"]\n{"loss"'])
def test_copy_with_lines_that_are_no_reports_is_complete(home: Path, rest: str) -> None:
    run = make_tracked_run(home)
    run.metrics.write_text('{"step": 1, "loss": 9.0}\n' + rest)
    assert sync_run(run).values == 1
    assert not is_behind(run)
    run.metrics.write_text(rest)
    assert is_behind(run)
    assert sync_run(run).values == 0
    assert not is_behind(run)


@pytest.mark.parametrize(
    "line", [b"\0" * 512, b"[1,2]", b'{"step": "x"}', b"NaN", b'"a"', b"[" * 100_000, b'{"step": true}']
)
def test_line_that_is_no_report_is_no_metric(home: Path, line: bytes) -> None:
    run = make_tracked_run(home)
    run.metrics.write_bytes(b'{"step": 1, "loss": 9.0}\n' + line + b'\n{"step": 2, "loss": 4.5}\n')
    reports = Orchestrator(home=home, environ={}).attach("run").metrics()
    assert [(report["step"], report["metrics"]) for report in reports] == [(1, {"loss": 9.0}), (2, {"loss": 4.5})]


def test_whole_step_may_have_a_decimal_point(home: Path) -> None:
    run = make_tracked_run(home)
    run.metrics.write_text('{"step": 1.0, "loss": 9.0}\n{"step": 2e0, "loss": 4.5}\n{"step": 2.5, "loss": 1.0}\n')
    status = LocalBackend(home).describe("run")
    assert (status.step, status.metrics) == (2, {"loss": 4.5})
    assert sync_run(run).values == 2
