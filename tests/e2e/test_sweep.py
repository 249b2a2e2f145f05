"""A sweep of real runs by the command line: a killed driver, its resume, nesting in MLflow, and the best trial."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import yaml
from mlflow.tracking import MlflowClient

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from tests.conftest import Console, last_step, wait_for, write_spec
from tests.home_modes import other_modes, umask
from tests.mlflow_runs import wait_for_copy


def write_sweep(folder: Path, corpus: Path) -> None:
    """Write a sweep of two learning rates; the second is so high that its trial is stopped early."""
    train = {"precision": "bf16", "steps": 400}
    write_spec(folder / "job.yaml", data={"text": [str(corpus)]}, train=train, checkpoint={"every": 200})
    document = {
        "trial": "job.yaml",
        "space": {"optimizer.learning_rate": [0.01, 9.0]},
        "sampling": "grid",
        "limits": {"concurrent": 2},
        "early_termination": {"policy": "bandit", "slack_amount": 1.0},
    }
    (folder / "sweep.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


@pytest.mark.slow
def test_sweep_survives_killed_driver(console: Console, corpus: Path) -> None:
    write_sweep(console.cwd, corpus)
    planned = console("submit", "sweep", "-f", "sweep.yaml", "--dry-run", "-o", "json")
    assert planned.code == 0, planned.err
    assert not (console.home / "sweeps").exists()
    with umask(0):
        begun = console("submit", "sweep", "-f", "sweep.yaml", "-d")
    assert begun.code == 0, begun.err
    name = begun.out.strip()
    assert name == planned.json["sweep"]["name"]
    folder = SweepFolder(console.home / "sweeps" / name)
    runs = [f"{name}-t0000", f"{name}-t0001"]
    wait_for(lambda: any(last_step(console.folder(run)) for run in runs), what="a report")
    os.kill(folder.stored_state().pid or 0, signal.SIGKILL)
    wait_for(lambda: not folder.locked(), what="the driver's death")
    assert console("sweep", "show", name, "-o", "json").json["state"] == "failed"

    done = console("resume", name, "-o", "json")
    assert done.code == 0, done.err
    status = done.json
    assert [row["state"] for row in status["rows"]] == ["completed", "stopped"]
    assert [row["runs"] for row in status["rows"]] == [[run] for run in runs]
    assert sorted(status["name"] for status in console("list", "-o", "json").json) == runs
    assert "> " in status["rows"][1]["why"]

    best = console("sweep", "best", "@last", "--spec", "best.yaml")
    assert best.out.startswith(f"trial 0 of sweep {name}: validation_loss ")
    assert yaml.safe_load((console.cwd / "best.yaml").read_text())["optimizer"]["learning_rate"] == 0.01
    assert console("validate", "pretrain", "-f", "best.yaml").code == 0
    assert console("resume", name).err.startswith(f"error[conflict]: sweep {name} has all of its 2 trials")
    assert other_modes(console.home) == {}

    for run in runs:
        wait_for_copy(RunFolder(console.folder(run)))
    client = MlflowClient(tracking_uri=f"sqlite:///{console.home / 'mlflow.db'}")
    wait_for(lambda: client.get_run(str(folder.mlflow_run_id)).info.status == "FINISHED", what="the sweep's copy")
    experiment = client.get_experiment_by_name("bert-pretraining")
    assert experiment is not None
    found = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    parent = found.pop(name)
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["best"] == status["rows"][0]["outcome"]
    assert sorted(found) == runs
    assert {run.data.tags["mlflow.parentRunId"] for run in found.values()} == {parent.info.run_id}
    ends = {"completed": "FINISHED", "cancelled": "KILLED"}
    states = {status["name"]: status["state"] for status in console("list", "-o", "json").json}
    assert {run: found[run].info.status for run in runs} == {run: ends[states[run]] for run in runs}
    assert found[runs[1]].data.tags["orchestrator.decision"] == status["rows"][1]["why"]
    assert float(found[runs[0]].data.params["optimizer.learning_rate"]) == 0.01
    lines = [json.loads(line) for line in (folder.path / "decisions.jsonl").read_text().splitlines()]
    assert len({(line["trial"], line["report"]) for line in lines}) == len(lines), "each report is judged once"
