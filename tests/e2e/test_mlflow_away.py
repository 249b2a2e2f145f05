"""A run whose MLflow server hangs, as its user sees it: it completes in time, and the copy is made later."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from orchestrator.backends.folder.run_folder import RunFolder
from tests.conftest import Console, wait_for, write_corpus, write_spec
from tests.mlflow_runs import stored
from train_jobs.artifacts.metrics_file import metric_files


@pytest.mark.long
def test_hanging_server_does_not_delay_a_run(tmp_path: Path) -> None:
    """The server accepts connections and never answers.

    A request takes 30 s, so the bounds of 5 s hold on a busy machine and only if nothing waits for one. The second that
    the job may wait is counted in tests/unit/engine/test_mirror.py.
    """
    slow = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "30", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    console = Console(home=tmp_path / "home", cwd=tmp_path, variables=slow)
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        text = str(write_corpus(tmp_path / "corpus.txt"))
        write_spec(tmp_path / "job.yaml", data={"text": [text]}, tracking={"uri": uri})
        done = console("submit", "pretrain", "-f", "job.yaml", "-o", "json")
        assert done.code == 0, done.err
        run = RunFolder(console.folder(done.json["name"]))
        outputs, exit_file = run.outputs, run.exits(1) / "rank-0"
        exported = max(path.stat().st_mtime for path in (outputs / "model").iterdir())
        assert exit_file.stat().st_mtime - exported < 5.0, "the job itself waited"
        assert run.state().ended is not None
        assert run.state_file.stat().st_mtime - exit_file.stat().st_mtime < 5.0, "the supervisor waited"
        wait_for(lambda: bool(run.behind_file.read_text()), what="the warning")
        shown = console("status", run.name).out
        assert "the copy in MLflow is behind: " in shown
        assert f"repair: orchestrator mlflow sync {run.name}" in shown
    # the repair, with a store that answers
    request = json.loads((run.path / "request.json").read_text())
    request["tracking_uri"] = f"sqlite:///{console.home / 'mlflow.db'}"
    (run.path / "request.json").write_text(json.dumps(request))
    repaired = console("mlflow", "sync", run.name)
    assert repaired.code == 0, repaired.err
    ((name, status, values),) = stored(console.home)
    files = metric_files(run.metrics)
    lines = [line for file in files for line in file.read_text().splitlines() if line]
    assert (name, status) == (run.name, "FINISHED")
    assert values == sum(len(json.loads(line)["metrics"]) for line in lines)
    assert "MLflow is behind" not in console("status", run.name).out
