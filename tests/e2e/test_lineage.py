"""A run that starts from another: its lineage, model card and tags, and its independence after the start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file

from orchestrator.backends.folder.run_folder import RunFolder
from tests.conftest import Console, last_step, wait_for, write_corpus, write_spec
from tests.mlflow_runs import wait_for_copy
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.lineage import read_lineage


@pytest.mark.slow  # two phases, their tags and their lineage: test_phases_by_command.py
def test_lineage_of_two_runs(console: Console, corpus: Path) -> None:
    from mlflow.tracking import MlflowClient

    write_spec(console.cwd / "first.yaml", data={"text": [str(corpus)]})
    first = console("submit", "pretrain", "-f", "first.yaml", "-n", "first", "-o", "json")
    assert first.code == 0, first.err
    parent = console.folder(first.json["name"]) / "outputs" / "model"

    letters = write_corpus(console.cwd / "letters.txt", seed=1)
    write_spec(
        console.cwd / "second.yaml",
        data={"text": [str(letters)]},
        train={"steps": 300},
        card={"license": "cc-by-4.0", "language": ["en"], "description": "For *tests*."},
    )
    wrong = console("validate", "pretrain", "-f", "second.yaml", "--from", "@last", "--set", "model.hidden_size=64")
    assert wrong.code == 2
    assert "--set: model.hidden_size: 64, but the initial model has 32" in wrong.err

    words = ("submit", "pretrain", "-f", "second.yaml", "-n", "second", "--from", "@last", "-o", "json")
    name = console(*words, "-d").json["name"]
    folder = console.folder(name)
    wait_for(lambda: last_step(folder) >= 6, what="step 6")
    console("cancel", name)
    tensors = load_file(parent / "model.safetensors")
    save_file({key: value + 1 for key, value in tensors.items()}, parent / "model.safetensors")
    resumed = console("resume", name, "-o", "json")
    assert resumed.code == 0, resumed.err
    assert resumed.json["state"] == "completed"
    assert "is not the model that this run started with" in resumed.err
    log = (folder / "logs" / "rank-0.log").read_text()
    assert log.count(f"weights    {parent}") == 1  # loaded once, not again on resume

    lineage = read_lineage(folder / "outputs" / "lineage.json")
    assert lineage is not None
    assert lineage == read_lineage(folder / "outputs" / "model" / "lineage.json")
    kinds = [(link.kind, link.name) for link in lineage.links]
    assert kinds == [
        ("data", "corpus.txt"),
        ("pretrain", first.json["name"]),
        ("data", "letters.txt"),
        ("pretrain", name),
    ]
    assert lineage.links[:2] == read_lineage(parent / "lineage.json").links
    assert lineage.head.inputs == (lineage.links[2].hash, lineage.links[1].hash)
    assert lineage.head.weights == file_sha256(folder / "outputs" / "model" / "model.safetensors")
    assert len(lineage.head.facts["attempts"]) == 2
    assert lineage.head.facts["snapshot"] == json.loads((folder / "request.json").read_text())["snapshot"]

    shown = console("status", name, "--lineage")
    assert shown.code == 0, shown.err
    blocks = shown.out.rstrip().split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == [f"{kind} {name}" for kind, name in kinds]
    assert [block.count("verified") for block in blocks] == [1, 0, 1, 1]
    assert "here     changed: the weights in" in blocks[1]
    document = console("status", name, "--lineage", "-o", "json").json
    assert [link["hash"] for link in document["links"]] == [link.hash for link in lineage.links]
    assert document["checks"][lineage.links[1].hash]["verdict"] == "changed"

    run_id = wait_for_copy(RunFolder(folder))
    tags = MlflowClient(tracking_uri=f"sqlite:///{console.home / 'mlflow.db'}").get_run(run_id).data.tags
    assert tags["orchestrator.lineage"] == lineage.head.hash
    assert tags["orchestrator.parent"] == first.json["handle"]
    assert tags["orchestrator.parent_lineage"] == lineage.links[1].hash

    card_text = (folder / "outputs" / "model" / "README.md").read_text()
    card = ModelCard(card_text)
    assert (card.data.base_model, card.data.license) == (first.json["name"], "cc-by-4.0")
    assert card.data.eval_results[0].metric_value == round(lineage.head.facts["metrics"]["mlm_loss"], 6)
    assert "For \\*tests\\*." in card_text
    assert str(console.cwd) not in card_text + (folder / "outputs" / "model" / "lineage.json").read_text()
    snippet = card_text.split("```python\n")[1].split("```")[0]
    used = subprocess.run(
        [sys.executable, "-c", snippet],
        cwd=folder / "outputs" / "model",
        capture_output=True,
        text=True,
        check=False,
        env=console.environ(HF_HUB_OFFLINE="1"),
    )
    assert used.returncode == 0, used.stderr
    assert len(used.stdout.splitlines()) == 5

    again = console("submit", "pretrain", "-f", "second.yaml", "--from", first.json["name"])
    assert again.code == 1
    assert "are not those of its lineage.json" in again.err
