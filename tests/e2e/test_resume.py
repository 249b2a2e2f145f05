"""Runs that are killed, cancelled, preempted: what is lost, what is said, how it goes on."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import Console, last_step, processes_of, rank_pid, wait_for, write_spec

LONG = {"train": {"steps": 2000}, "checkpoint": {"every": 50}, "validation": {"every": 2000}}

CLOCKED = ("sequences_per_second", "checkpoint_seconds", "checkpoint_wait_seconds")


def final_weights(console: Console, name: str) -> dict[str, torch.Tensor]:
    return load_file(console.folder(name) / "outputs" / "model" / "model.safetensors")


def metrics_file(console: Console, name: str) -> Path:
    return console.folder(name) / "outputs" / "metrics.jsonl"


def metric_lines(console: Console, name: str) -> list[tuple[int, dict[str, float]]]:
    """(step, metrics) without those that a clock decides."""
    reports = [json.loads(line) for line in metrics_file(console, name).read_text().splitlines()]
    for report in reports:
        for key in CLOCKED:
            report["metrics"].pop(key, None)
    return [(report["step"], report["metrics"]) for report in reports]


def mlflow_status(console: Console, name: str) -> str:
    from mlflow.tracking import MlflowClient

    state = json.loads((console.folder(name) / "state.json").read_text())
    client = MlflowClient(tracking_uri=f"sqlite:///{console.home / 'mlflow.db'}")
    return str(client.get_run(state["mlflow_run_id"]).info.status)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_killed_and_resumed_equals_undisturbed_bit_for_bit(
    console: Console, corpus: Path, precision: str, processes: int
) -> None:
    """Checkpoints come by the clock, at other steps in each run, and are written while training goes on."""
    write_spec(
        console.cwd / "job.yaml",
        data={"text": [str(corpus)]},
        train={"steps": 120, "precision": precision, "log_every": 3},
        checkpoint={"every": 7, "every_minutes": 0.005},
        validation={"every": 60},
        optimizer={"name": "lamb"},
    )
    words = ("submit", "pretrain", "-f", "job.yaml", "--processes", str(processes), "-o", "json")
    undisturbed = console(*words)
    assert undisturbed.code == 0, undisturbed.err
    name = console(*words, "--new", "-d").json["name"]
    assert name == undisturbed.json["name"] + "-2"
    folder, when, rank = console.folder(name), random.randint(8, 90), random.randrange(processes)
    wait_for(lambda: last_step(folder) >= when, what=f"step {when}")
    pid = rank_pid(folder, rank)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    failed = console("wait", name, "-o", "json")
    assert failed.code == 137, f"killed rank {rank} at step {when}: {failed.err}"
    assert failed.json["state"] == "failed"
    assert "SIGKILL" in failed.json["reason"]
    assert failed.json["ranks"][str(rank)] == 137
    assert mlflow_status(console, name) == "FAILED"
    resumed = console("resume", name, "-o", "json")
    assert resumed.code == 0, resumed.err
    assert "resumed at step" in resumed.err
    assert mlflow_status(console, name) == "FINISHED"
    expected, found = final_weights(console, undisturbed.json["name"]), final_weights(console, name)
    assert expected.keys() == found.keys()
    assert [key for key in expected if not torch.equal(expected[key], found[key])] == []
    assert metric_lines(console, name) == metric_lines(console, undisturbed.json["name"])


def test_cancel_saves_and_resume_goes_on(console: Console, corpus: Path) -> None:
    from mlflow.tracking import MlflowClient

    write_spec(console.cwd / "job.yaml", **{**LONG, "train": {"steps": 400}}, data={"text": [str(corpus)]})
    name = console("submit", "pretrain", "-f", "job.yaml", "-d", "-o", "json").json["name"]
    folder = console.folder(name)
    wait_for(lambda: last_step(folder) >= 6, what="step 6")
    cancelled = console("cancel", name, "-o", "json")
    assert cancelled.code == 0, cancelled.err
    (status,) = cancelled.json
    assert status["state"] == "cancelled"
    assert not processes_of(folder)
    mlflow_run = json.loads((folder / "state.json").read_text())["mlflow_run_id"]
    client = MlflowClient(tracking_uri=f"sqlite:///{console.home / 'mlflow.db'}")
    assert client.get_run(mlflow_run).info.status == "KILLED"

    again = console("submit", "pretrain", "-f", "job.yaml")
    assert again.code == 1
    assert f"orchestrator resume {name}" in again.err
    assert "--new" in again.err
    assert again.out == ""

    resumed = console("resume", name, "-o", "json")
    assert resumed.code == 0, resumed.err
    assert resumed.json["attempt"] == 2
    assert "resumed at step" in resumed.err
    steps = [step for step, metrics in metric_lines(console, name) if "train_loss" in metrics]
    assert steps == sorted(set(steps))
    history = client.get_metric_history(mlflow_run, "train_loss")
    assert sorted(metric.step for metric in history) == steps
    assert client.get_run(mlflow_run).info.status == "FINISHED"


def test_sigterm_from_outside_is_a_preemption(console: Console, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", **LONG, data={"text": [str(corpus)]})
    name = console("submit", "pretrain", "-f", "job.yaml", "--processes", "2", "-d", "-o", "json").json["name"]
    folder = console.folder(name)
    wait_for(lambda: last_step(folder) >= 4, what="step 4")
    pid = rank_pid(folder, 1)
    assert pid is not None
    os.kill(pid, signal.SIGTERM)  # one rank of two hears of it; both must stop at the same step
    waited = console("wait", name, "--timeout", "60s", "-o", "json")
    assert waited.code == 75
    assert waited.json["state"] == "preempted"
    assert waited.json["ranks"] == {"0": 75, "1": 75}
    stopped_at = max(int(path.name[5:]) for path in (folder / "outputs" / "checkpoints").iterdir())
    assert stopped_at >= 4


def test_lost_supervisor_is_a_failed_run_that_can_be_resumed(console: Console, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", **{**LONG, "train": {"steps": 400}}, data={"text": [str(corpus)]})
    name = console("submit", "pretrain", "-f", "job.yaml", "-d", "-o", "json").json["name"]
    folder = console.folder(name)
    wait_for(lambda: last_step(folder) >= 4, what="step 4")
    os.kill(json.loads((folder / "state.json").read_text())["pid"], signal.SIGKILL)
    lost = wait_for(lambda: (s := console("status", name, "-o", "json").json)["state"] == "failed" and s, what="failed")
    assert "supervisor lost" in lost["reason"]
    wait_for(lambda: not processes_of(folder), seconds=45, what="the job followed its supervisor")
    resumed = console("resume", name, "-o", "json")
    assert resumed.code == 0, resumed.err
    assert resumed.json["state"] == "completed"


def test_ctrl_c_stops_following_and_not_the_job(console: Console, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", **{**LONG, "train": {"steps": 400}}, data={"text": [str(corpus)]})
    following = console.start("submit", "pretrain", "-f", "job.yaml")
    folder = wait_for(lambda: next(iter((console.home / "runs").glob("micro-*")), None), what="the run")
    wait_for(lambda: last_step(folder) >= 4, what="step 4")
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=10)
    assert following.returncode == 130
    assert out == ""
    assert f"orchestrator cancel {folder.name}" in err
    assert "error[interrupted]: not following any more; the job goes on" in err
    assert console("wait", folder.name, "-o", "json").json["state"] == "completed"


def test_preempted_run_restarts_by_itself_and_a_rank_that_dies_too(console: Console, corpus: Path) -> None:
    """Two restarts are allowed: a simulated preemption takes one, a killed rank the other."""
    write_spec(console.cwd / "job.yaml", **{**LONG, "train": {"steps": 400}}, data={"text": [str(corpus)]})
    done = console("submit", "pretrain", "-f", "job.yaml", "--max-restarts", "2", "-d", "-o", "json")
    name = done.json["name"]
    folder = console.folder(name)
    wait_for(lambda: last_step(folder) >= 6, what="step 6")
    assert console("preempt", name).out == f"local://{name}\n"
    wait_for(lambda: console("status", name, "-o", "json").json["attempt"] == 2, what="the second attempt")
    pid = wait_for(lambda: rank_pid(folder, 0), what="its rank")
    os.kill(pid, signal.SIGKILL)
    attached = console("attach", name, "-o", "json")
    assert attached.code == 0, attached.err
    assert attached.json["state"] == "completed"
    assert attached.json["attempt"] == 3
    assert (folder / "logs" / "rank-0.log").read_text().count("resumed at step") >= 1
    assert "attempt 1 preempted" in (folder / "logs" / "supervisor.log").read_text()
    assert mlflow_status(console, name) == "FINISHED"
    assert console("preempt", name).code == 1


def test_wrong_input_is_not_tried_again(console: Console) -> None:
    (console.cwd / "blank.txt").write_text("\n \n")
    done = console("submit", "pretrain", "--data", "blank.txt", "--max-restarts", "3", "-o", "json")
    assert done.code == 2
    assert done.json["attempt"] == 1


def test_cancel_before_there_is_a_process_to_signal(console: Console, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", **LONG, data={"text": [str(corpus)]})
    name = console("submit", "pretrain", "-f", "job.yaml", "-d", "-o", "json").json["name"]
    (console.folder(name) / "cancel").touch()  # what `cancel` leaves when the supervisor has not named itself yet
    waited = console("wait", name, "--timeout", "90s", "-o", "json")
    assert waited.json["state"] == "cancelled"
    assert not processes_of(console.folder(name))
