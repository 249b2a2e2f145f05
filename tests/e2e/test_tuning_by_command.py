"""Fine-tuning and prediction by the command line: locally, and on the double of Azure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console
from tests.home_modes import mode_of, other_modes, umask
from tests.unit.finetuning.finetune_jobs import WORDS, write_model
from tests.unit.reports.drawings import figures

WORDS_OF = {"good": WORDS[:15], "bad": WORDS[15:30]}
SHORT = ("--set", "data.max_length=32", "--set", "compute.threads_per_process=1")
TUNING = (
    *("--set", "optimizer.learning_rate=0.003", "--set", "train.epochs=4", "--set", "train.precision=bf16"),
    *SHORT,
)


def write_reviews(folder: Path) -> Path:
    """Write a user-defined task to a file: the words of each text determine its label."""
    draw = random.Random(0)
    folder.mkdir()
    for name, count in (("train", 96), ("dev", 24), ("new", 8)):
        labels = [draw.choice(sorted(WORDS_OF)) for _ in range(count)]
        rows = [f"{' '.join(draw.choices(WORDS_OF[label], k=8))}\t{label}" for label in labels]
        (folder / f"{name}.tsv").write_text("\n".join(["review\tstars", *rows]) + "\n")
    task = folder / "reviews.yaml"
    task.write_text("train: train.tsv\nvalidation: dev.tsv\ntext: review\nlabel: stars\n")
    return task


@pytest.fixture
def work(console: Console) -> Console:
    """Return a console with a model and a task in its folder."""
    write_model(console.cwd)
    write_reviews(console.cwd / "own")
    return console


def result_of(console: Console, *words: str) -> Any:
    done = console(*words, "-o", "json")
    assert done.code == 0, done.err
    return done.json


def labels_in(path: Path) -> list[str]:
    return [json.loads(line)["label"] for line in path.read_text().splitlines()]


@pytest.mark.long
def test_model_is_tuned_registered_and_predicts(work: Console) -> None:
    words = ("submit", "finetune", "--task", "own/reviews.yaml", "--model", "model", *TUNING, "--set", "seeds=[1,2]")
    planned = result_of(work, *words, "--dry-run")
    assert planned["plan"]["rows"] == {"own": {"train": 96, "validation": 24, "test": 0}}
    with umask(0):
        status = result_of(work, *words)
    name = status["name"]
    assert (status["kind"], status["state"], status["step"], status["counts"]) == ("finetune", "completed", 2, "runs")
    run = work.folder(name)
    assert json.loads((run / "request.json").read_text()) == planned["request"]  # the dry run equals the request
    (scores,) = status["results"]["scores"]
    assert (scores["task"], scores["seeds"], scores["collapsed"]) == ("own", 2, 0)
    accuracy = scores["metrics"]["accuracy"]
    assert accuracy["max"] >= accuracy["mean"] > 0.9
    assert f"accuracy {accuracy['mean']:.4f} +- {accuracy['sd']:.4f}" in work("status", name).out
    page = Path(work("report", name, "--png", "pictures").out.splitlines()[0]).read_text()
    assert "Runs done" in page
    assert len(figures(page)["Accuracy, each seed"]) >= 4, "an evaluation after each of four epochs"
    assert (work.cwd / "pictures" / "loss-in-training-each-seed.png").stat().st_size > 0

    lineage = result_of(work, "status", name, "--lineage")
    assert [link["kind"] for link in lineage["links"]] == ["external", "tables", "finetune"]
    assert {check["verdict"] for check in lineage["checks"].values()} == {"verified"}
    dev = work.cwd / "own" / "dev.tsv"
    dev.write_text(dev.read_text() + "w1\tgood\n")
    changed = " ".join(work("status", name, "--lineage").out.split())  # long paths are wrapped
    assert "here changed: dev.tsv in " in changed
    assert "result own: accuracy " in changed

    registered = result_of(work, "model", "register", name, "--name", "reviews")
    assert registered["tags"]["score.accuracy"].startswith(f"{accuracy['mean']:.4f} +- ")
    assert registered["tags"]["orchestrator.lineage"] == lineage["links"][-1]["hash"]

    dev.write_text(dev.read_text().removesuffix("w1\tgood\n"))
    held_out = (
        "submit",
        "evaluate",
        "--model",
        name,
        "--data",
        "own/dev.tsv",
        *SHORT[2:],
    )  # columns are read from the model
    shown = work(*held_out, "--dry-run").out
    assert f"data.text = review  (from the model {name})" in shown
    assert f"data.label = stars  (from the model {name})" in shown
    scored = result_of(work, *held_out)["results"]["scores"][0]["metrics"]["accuracy"]["mean"]
    assert scored == pytest.approx(accuracy["max"], abs=1e-4)

    command = ("submit", "predict", "--model", f"local://{name}", "--input", "own/new.tsv")
    with umask(0o022):
        done = work(*command, *SHORT[2:], "--output", "labels.jsonl")
    assert done.code == 0, done.err
    assert mode_of(work.cwd / "labels.jsonl") == 0o644, "the umask's, outside of the home folder"
    assert other_modes(work.home) == {}
    truth = [line.split("\t")[1] for line in (work.cwd / "own" / "new.tsv").read_text().splitlines()[1:]]
    assert labels_in(work.cwd / "labels.jsonl") == truth
    again = work(*command, *SHORT[2:], "--output", "elsewhere.jsonl")  # the run already exists
    assert "already exists" in again.err
    assert labels_in(work.cwd / "elsewhere.jsonl") == truth
    assert not list(work.cwd.glob(".predictions.*"))


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start the double of Azure, configured only through the environment."""
    from orchestrator.testing import AzureDouble

    with AzureDouble(tmp_path / "azure") as double:
        monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.2")
        yield
        assert (double.violations, double.refused) == ([], [])


@pytest.mark.slow
def test_azure_tables_and_models_are_inputs(cloud: None, work: Console) -> None:
    import os

    work.variables = {key: value for key, value in os.environ.items() if key.startswith("ORCHESTRATOR_AZURE_")}
    there = ("-b", "azure", "--cluster", "cpu-ds3", "--sku", "Standard_DS3_v2", "--set", "azure.preflight=false")
    status = result_of(work, "submit", "finetune", "--task", "own/reviews.yaml", "--model", "model", *TUNING, *there)
    assert (status["state"], status["kind"]) == ("completed", "finetune")
    assert status["results"]["scores"][0]["metrics"]["accuracy"]["mean"] > 0.9
    result_of(work, "download", status["name"], "model", "--to", "tuned")
    held_out = ("submit", "evaluate", "--model", "tuned/model", "--data", "own/dev.tsv")
    scored = result_of(work, *held_out, *SHORT[2:], *there, "--output", "labels.tsv")
    assert scored["results"]["scores"][0]["metrics"]["accuracy"]["mean"] > 0.9
    assert len((work.cwd / "labels.tsv").read_text().splitlines()) == 25
