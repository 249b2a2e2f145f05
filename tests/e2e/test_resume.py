"""Runs that are killed, cancelled or preempted: lost work, messages and resume."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from orchestrator.backends.folder.run_folder import RunFolder
from tests.conftest import Console, committed, last_step, processes_of, rank_pid, wait_for, write_spec
from tests.mlflow_runs import wait_for_copy

LONG = {"train": {"steps": 2000}, "checkpoint": {"every": 50}, "validation": {"every": 2000}}

CLOCKED = (
    *("sequences_per_second", "tokens_per_second", "data_wait_share", "mfu", "peak_memory_gb"),
    *("slowest_rank", "slowest_rank_ratio"),
    *("checkpoint_seconds", "checkpoint_wait_seconds"),
)


def final_weights(console: Console, name: str) -> dict[str, torch.Tensor]:
    return load_file(console.folder(name) / "outputs" / "model" / "model.safetensors")


def metrics_file(console: Console, name: str) -> Path:
    return console.folder(name) / "outputs" / "metrics.jsonl"


def metric_lines(console: Console, name: str) -> list[tuple[int, dict[str, float]]]:
    """Return (step, metrics) without the metrics that depend on the clock."""
    reports = [json.loads(line) for line in metrics_file(console, name).read_text().splitlines()]
    for report in reports:
        for key in CLOCKED:
            report["metrics"].pop(key, None)
    return [(report["step"], report["metrics"]) for report in reports]


def mlflow_status(console: Console, name: str) -> str:
    from mlflow.tracking import MlflowClient

    run_id = wait_for_copy(RunFolder(console.folder(name)))
    client = MlflowClient(tracking_uri=f"sqlite:///{console.home / 'mlflow.db'}")
    return str(client.get_run(run_id).info.status)


@pytest.mark.long
@pytest.mark.parametrize(
    ("precision", "processes"),
    [
        pytest.param("fp32", 1, marks=pytest.mark.slow),
        pytest.param("bf16", 2),
        pytest.param("fp32", 2, marks=pytest.mark.slow),
        pytest.param("bf16", 1, marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed_run_is_bit_exact(console: Console, corpus: Path, precision: str, processes: int) -> None:
    """Checkpoints are asynchronous and triggered by the clock, at different steps in each run."""
    write_spec(
        console.cwd / "job.yaml",
        data={"text": [str(corpus)]},
        train={"steps": 60, "precision": precision, "log_every": 3},
        checkpoint={"every": 7, "every_minutes": 0.005},
        validation={"every": 30},
        optimizer={"name": "lamb"},
    )
    words = ("submit", "pretrain", "-f", "job.yaml", "--processes", str(processes), "-o", "json")
    uninterrupted = console(*words)
    assert uninterrupted.code == 0, uninterrupted.err
    name = console(*words, "--new", "-d").json["name"]
    assert name == uninterrupted.json["name"] + "-2"
    folder, when, rank = console.folder(name), random.randint(8, 36), random.randrange(processes)
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
    assert "resumed at step" in (console.folder(name) / "logs" / "rank-0.log").read_text()
    assert mlflow_status(console, name) == "FINISHED"
    expected, found = final_weights(console, uninterrupted.json["name"]), final_weights(console, name)
    assert expected.keys() == found.keys()
    assert [key for key in expected if not torch.equal(expected[key], found[key])] == []
    assert metric_lines(console, name) == metric_lines(console, uninterrupted.json["name"])


@pytest.mark.slow
@pytest.mark.usefixtures("untracked")
def test_sigterm_to_one_rank_stops_both(console: Console, corpus: Path) -> None:
    """The only checkpoint is that of the step at which both ranks stop; none is due earlier."""
    write_spec(
        console.cwd / "job.yaml",
        train={"steps": 500},
        checkpoint={"every": 500},
        validation={"every": 500},
        data={"text": [str(corpus)]},
    )
    name = console("submit", "pretrain", "-f", "job.yaml", "--processes", "2", "-d", "-o", "json").json["name"]
    folder = console.folder(name)
    wait_for(lambda: last_step(folder) >= 4, what="step 4")
    pid, signalled = rank_pid(folder, 1), time.monotonic()
    assert pid is not None
    while rank_pid(folder, 1) == pid:  # only one rank receives it; both must stop at the same step
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)  # repeatedly until it exits: its exit code must not change
        time.sleep(0.005)
    wait_for(lambda: not any(rank_pid(folder, rank) for rank in range(2)), what="the end of both ranks")
    assert time.monotonic() - signalled < 20
    waited = console("wait", name, "--timeout", "60s", "-o", "json")
    assert waited.code == 75
    assert waited.json["state"] == "preempted"
    assert waited.json["ranks"] == {"0": 75, "1": 75}
    (checkpoint,) = (folder / "outputs" / "checkpoints").iterdir()
    assert [checkpoint] == committed(folder)
    stopped_at = int(checkpoint.name[5:])
    assert 4 <= stopped_at < 500
    resumed = console("resume", name, "--processes", "1", "-o", "json")
    assert resumed.code == 0, resumed.err
    assert (resumed.json["ranks"], resumed.json["step"]) == ({"0": 0}, 500)
    assert f"resumed at step {stopped_at}" in resumed.err
    assert "not bit-exact with an uninterrupted run: world_size 2 -> 1" in resumed.err


@pytest.mark.usefixtures("untracked")
def test_cancel_before_process_exists(console: Console, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", **LONG, data={"text": [str(corpus)]})
    name = console("submit", "pretrain", "-f", "job.yaml", "-d", "-o", "json").json["name"]
    (console.folder(name) / "cancel").touch()  # as written by `cancel` before the supervisor has recorded its process
    waited = console("wait", name, "--timeout", "90s", "-o", "json")
    assert waited.json["state"] == "cancelled"
    assert not processes_of(console.folder(name))
