"""Pains 12 and 15: the local mode differs from the real one; each rank opens a separate MLflow run.

Here a local run is torchrun with the same variables, files and weights as a manual torchrun, and one MLflow run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mlflow.tracking import MlflowClient
from safetensors.torch import load_file

from orchestrator.backends.folder.run_folder import RunFolder
from tests.conftest import Console, write_corpus, write_spec
from tests.mlflow_runs import wait_for_copy

pytestmark = pytest.mark.long

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK")


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Console, Path]:
    """Return a run with two processes."""
    folder = tmp_path_factory.mktemp("real")
    console = Console(home=folder / "home", cwd=folder)
    write_spec(folder / "job.yaml", data={"text": [str(write_corpus(folder / "corpus.txt"))]})
    done = console("submit", "pretrain", "-f", "job.yaml", "--processes", "2", "-o", "json")
    assert done.code == 0, done.err
    return console, console.folder(done.json["name"])


def test_manual_torchrun_trains_same_weights(submitted: tuple[Console, Path], tmp_path: Path) -> None:
    _, run = submitted
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "train_jobs.pretrain", "--config", str(run / "config.json"), "--output", str(tmp_path / "out")),
    ]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "ORCHESTRATOR_"))}
    environ = {**clean, "PYTHONPATH": str(run / "code")}
    by_hand = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert by_hand.returncode == 0, by_hand.stderr
    one, other = (load_file(folder / "model" / "model.safetensors") for folder in (run / "outputs", tmp_path / "out"))
    assert one.keys() == other.keys()
    assert [key for key in one if not torch.equal(one[key], other[key])] == []
    ours = {path.name for path in (run / "outputs").iterdir()} - {"mirrored.json"}
    assert ours == {path.name for path in (tmp_path / "out").iterdir()} - {"token-stores"}


def test_two_ranks_have_one_mlflow_run(submitted: tuple[Console, Path]) -> None:
    console, run = submitted
    wait_for_copy(RunFolder(run))
    client = MlflowClient(tracking_uri=f"sqlite:///{console.home / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments)
    assert [mlflow_run.info.run_name for mlflow_run in found] == [run.name]
    assert found[0].info.status == "FINISHED"
    reported = [json.loads(line)["step"] for line in (run / "outputs" / "metrics.jsonl").read_text().splitlines()]
    history = client.get_metric_history(found[0].info.run_id, "train_loss")
    assert sorted(metric.step for metric in history) == sorted(set(reported))
