"""User-defined classes through the command line: shipped, trained, killed and resumed bit-exactly."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.conftest import Console, committed, rank_pid, wait_for, write_spec

pytestmark = pytest.mark.usefixtures("untracked")

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
OWN = {
    "objective": "sentence_order:SentenceOrder",
    "optimizer": {"name": "lion:Lion", "options": {"betas": [0.95, 0.98]}, "learning_rate": 1e-3},
    "schedule": "warmup_stable_decay:warmup_stable_decay",
    "model": {"name": "relu_bert:ReluBert"},
}


@pytest.mark.slow
def test_all_four_own_classes_survive_kill(console: Console, corpus: Path) -> None:
    train = {"steps": 40, "precision": "fp32"}
    write_spec(
        console.cwd / "job.yaml", data={"text": [str(corpus)]}, train=train, code={"folder": str(EXAMPLES)}, **OWN
    )
    wrong = console("validate", "pretrain", "-f", "job.yaml", "--set", "schedule=warmup_decay:rate")
    assert wrong.code == 2
    assert f"--set: schedule.name: no module warmup_decay in {EXAMPLES} (did you mean" in wrong.err
    words = ("submit", "pretrain", "-f", "job.yaml", "-n", "own", "-o", "json")
    whole = console(*words)
    assert whole.code == 0, whole.err
    assert "no effect" not in whole.err
    folder = console.folder(whole.json["name"])
    reports = [json.loads(line)["metrics"] for line in (folder / "outputs" / "metrics.jsonl").read_text().splitlines()]
    assert {"train_sop_loss", "train_mlm_accuracy"} <= reports[0].keys()
    rates = {report["learning_rate"] for report in reports if "learning_rate" in report}
    assert (max(rates), min(rates)) == (1e-3, 0.0)
    assert json.loads((folder / "outputs" / "model" / "config.json").read_text())["hidden_act"] == "relu"
    card = (folder / "outputs" / "model" / "README.md").read_text()
    assert r"the objective sentence\_order:SentenceOrder on" in card
    assert "| Optimizer | lion:Lion, weight decay 0.01, gradients clipped at 1 |" in card

    killed = console(*words, "-d", "--new")
    name = killed.json["name"]
    other = console.folder(name)
    wait_for(lambda: committed(other), what="a checkpoint")
    os.kill(wait_for(lambda: rank_pid(other, 0), what="rank 0"), signal.SIGKILL)
    assert console("wait", name).code != 0
    resumed = console("resume", name, "-o", "json")
    assert resumed.code == 0, resumed.err
    assert "resumed at step" in (other / "logs" / "rank-0.log").read_text()
    first, second = (load_file(run / "outputs" / "model" / "model.safetensors") for run in (folder, other))
    assert all(first[key].equal(second[key]) for key in first)
