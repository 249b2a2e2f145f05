"""The page about fine-tuning: its blocks for SQuAD and named entities run, and leave the files that it names."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from documents import ROOT, blocks

from tests.unit.finetuning.finetune_jobs import write_conll, write_model, write_squad

PAGE = "docs/fine-tuning.md"


def run_block(task: str, folder: Path) -> dict[str, Any]:
    """Run the page's command with its block of a task, in a folder with the files that the block names.

    Returns:
        `out/result.json`.
    """
    specs = [block.text for block in blocks("yaml") if block.document == PAGE]
    (text,) = (spec for spec in specs if yaml.safe_load(spec).get("task") == task)
    (folder / "finetune.yaml").write_text(text)
    (folder / "outputs").mkdir()
    write_model(folder / "outputs", positions=yaml.safe_load(text)["data"].get("max_length", 128))
    command = next(
        line
        for block in blocks("sh")
        if block.document == PAGE
        for line in block.text.splitlines()
        if line.startswith("python -m train_jobs.finetune ")
    )
    words = [sys.executable, *shlex.split(command)[1:]]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((folder / "out" / "result.json").read_text())
    return result


def test_squad_block_runs_and_writes_official_files(tmp_path: Path) -> None:
    (tmp_path / "squad").mkdir()
    for name, count, seed in (("train", 40, 0), ("dev", 20, 1)):
        write_squad(tmp_path / "squad" / f"{name}-v2.0.json", count, seed, unanswerable=0.3)
    result = run_block("SQuAD-2.0", tmp_path)
    out = tmp_path / "out"
    files = {path.name for path in (out / "predictions" / "dev").iterdir()}
    assert files == {"predictions.json", "nbest_predictions.json", "null_odds.json"}
    named = {"exact", "f1", "HasAns_f1", "NoAns_f1", "best_exact", "best_f1", "best_f1_thresh"}
    assert named <= result["metrics"].keys()
    config = json.loads((out / "model" / "config.json").read_text())
    assert config["null_threshold"] == result["null_threshold"]


def test_entities_block_runs_and_writes_tags(tmp_path: Path) -> None:
    (tmp_path / "conll2003").mkdir()
    for seed, (name, count) in enumerate({"train": 40, "valid": 20, "test": 20}.items()):
        write_conll(tmp_path / "conll2003" / f"{name}.txt", count, seed)
    result = run_block("NER", tmp_path)
    assert {"precision", "recall", "f1", "f1_PER", "test_f1"} <= result["metrics"].keys()
    lines = (tmp_path / "out" / "predictions" / "dev.txt").read_text().splitlines()
    assert {len(line.split()) for line in lines if line} == {3}, "word, tag and predicted tag"


@pytest.mark.parametrize("task", ["SQuAD-2.0", "NER"])
def test_page_has_a_command_for_each_task(task: str) -> None:
    assert f"orchestrator submit finetune --task {task} --data " in (ROOT / PAGE).read_text(encoding="utf-8")
