"""Run All: each notebook from a clean kernel, in a folder and with a home of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
FOUND = sorted(NOTEBOOKS.glob("*.ipynb"))
SECONDS = 600  # a cell, on a machine that does other things too


def run_all(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **environ: str) -> list[Any]:
    """Executes a notebook, and returns the outputs of its cells."""
    for variable, value in {"ORCHESTRATOR_HOME": str(folder / "home"), "CUDA_VISIBLE_DEVICES": "", **environ}.items():
        monkeypatch.setenv(variable, value)
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    client.execute()
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def text_of(outputs: list[Any]) -> str:
    return "".join(output.text if output.output_type == "stream" else str(output.data) for output in outputs)


def test_a_corpus_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = run_all("01-prepare-a-corpus.ipynb", tmp_path, monkeypatch)
    shown = text_of(outputs)
    assert "valid: " in shown
    assert "prepare-" in shown or "notebook-corpus-" in shown
    assert "orchestrator-card" in shown, "plan and run have a look of their own"
    assert "image/png" in shown


def test_a_model_is_pretrained_and_fills_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = run_all("02-pretrain-bert.ipynb", tmp_path, monkeypatch, NOTEBOOK_STEPS="20")
    shown = text_of(outputs)
    assert "validation MLM loss" in shown
    assert "<svg" in shown, "the loss is drawn"
    assert "model.safetensors" in shown
    assert sum(line[:1].isdigit() for line in shown.splitlines()) >= 5, "words for the mask"
    runs = [*(tmp_path / "home" / "runs").iterdir()]
    assert [json.loads((run / "state.json").read_text())["state"] for run in runs] == ["completed"]


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_no_output_is_kept(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in code] == [[] for _ in code]
    assert {cell.execution_count for cell in code} == {None}


@pytest.mark.slow
def test_a_run_survives_its_kernel(tmp_path: Path) -> None:
    """What `attach("@last")` finds was submitted by a process that is gone."""
    environ = {**os.environ, "ORCHESTRATOR_HOME": str(tmp_path / "home"), "CUDA_VISIBLE_DEVICES": ""}
    submit = (
        "from orchestrator import Orchestrator\n"
        "orchestrator = Orchestrator()\n"
        "sizes = {'model.hidden_size': 32, 'model.num_hidden_layers': 1, 'model.num_attention_heads': 2}\n"
        "text = {'model.intermediate_size': 64, 'data.text': ['notes.txt'], 'data.vocab_size': 256}\n"
        "more = {'train.steps': 20, 'train.micro_batch_size': 8}\n"
        "orchestrator.submit(orchestrator.plan(overrides={**sizes, **text, **more}))\n"
    )
    attach = (
        "from orchestrator import Orchestrator\n"
        "run = Orchestrator().attach('@last')\n"
        "print(run.wait().state, len(run._repr_html_()) > 1000)\n"
    )
    from tests.conftest import write_corpus

    write_corpus(tmp_path / "notes.txt")
    run = {"cwd": tmp_path, "env": environ, "capture_output": True, "text": True}
    assert subprocess.run([sys.executable, "-c", submit], **run).returncode == 0
    assert subprocess.run([sys.executable, "-c", attach], **run).stdout == "completed True\n"
