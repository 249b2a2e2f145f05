"""A tiny random BERT, files of small tasks, and in-process jobs that fine-tune it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from train_jobs import finetune
from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.config import ModelConfig
from train_jobs.engine.runtime.stop import Preempted
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise
from train_jobs.models.huggingface import TokenizerFiles, export
from train_jobs.tasks.finetuning import Finetuning

WORDS = [f"w{number}" for number in range(40)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "not", *WORDS]
FIRST, LAST, REST = WORDS[:2], WORDS[2:4], WORDS[4:]  # an answer is one of the first and one of the last
PERSONS, PLACES = WORDS[:5], WORDS[5:10]
SHAPE = ModelConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=32
)


def write_model(folder: Path, pieces: Sequence[str] = PIECES, *, positions: int = 32) -> Path:
    """Write a BERT with random weights."""
    shape, rows = SHAPE.model_copy(update={"max_position_embeddings": positions}), len(pieces)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(pieces) + "\n")
    model = BertForPreTraining(shape, rows)
    initialise(model, 1)
    with torch.no_grad():  # as large as after training: initial ones hardly distinguish words
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(5)
    export(model, folder / "model", config=shape, vocab_size=rows, tokenizer=TokenizerFiles(vocabulary, lowercase=True))
    return folder / "model"


def write_squad(path: Path, count: int, seed: int, *, unanswerable: float = 0.0) -> Path:
    """Write questions whose answer is one of the first words and one of the last; some contexts need two windows."""
    draw = random.Random(seed)
    paragraphs = []
    for number in range(count):
        words = draw.choices(REST, k=draw.randint(4, 34))
        question: dict[str, Any] = {"id": f"{path.stem}-{number}", "question": "w1 w2", "answers": []}
        if draw.random() < unanswerable:
            question["is_impossible"] = True
        else:
            place = draw.randrange(len(words) - 1)
            words[place : place + 2] = draw.choice(FIRST), draw.choice(LAST)
            start = len(" ".join([*words[:place], ""]))
            question["answers"] = [{"text": " ".join(words[place : place + 2]), "answer_start": start}]
        paragraphs.append({"context": " ".join(words), "qas": [question]})
    version = "v2.0" if unanswerable else "1.1"
    path.write_text(json.dumps({"version": version, "data": [{"title": "x", "paragraphs": paragraphs}]}))
    return path


def write_conll(path: Path, count: int, seed: int, *, columns: str = "{word} X {tag}") -> Path:
    """Write sentences with two-word persons, the second word in several pieces, and one-word places; some are long."""
    draw = random.Random(seed)
    sentences = []
    for _ in range(count):
        rows: list[tuple[str, str]] = []
        for _ in range(draw.randint(2, 20)):
            what = draw.random()
            if what < 0.2:
                rows += [
                    (draw.choice(PERSONS), "B-PER"),
                    (f"{draw.choice(WORDS[30:])}-{draw.choice(PERSONS)}", "I-PER"),
                ]
            elif what < 0.4:
                rows.append((draw.choice(PLACES), "B-LOC"))
            else:
                rows.append((draw.choice(WORDS[10:30]), "O"))
        sentences.append("".join(columns.format(word=word, tag=tag) + "\n" for word, tag in rows))
    path.write_text("-DOCSTART- X O\n\n" + "\n".join(sentences))
    return path


def settings(bert: Path, task: str, data: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """Return the config of a job of eight epochs that takes some seconds."""
    return {
        "task": task,
        "init_from": str(bert),
        "optimizer": {"learning_rate": 3e-3},
        "checkpoint": {"asynchronous": False, "every_minutes": None, "every": 40},
        **sections,
        "data": {
            "max_length": 32,
            **{key: str(value) if isinstance(value, Path) else value for key, value in data.items()},
        },
        "train": {"epochs": 8, "global_batch_size": 16, "precision": "fp32", **sections.get("train", {})},
    }


def run(folder: Path, document: dict[str, Any], *words: str) -> int:
    """Run the job in FOLDER/out and return its exit code."""
    folder.mkdir(exist_ok=True)
    (folder / "finetune.yaml").write_text(yaml.safe_dump(document))
    return finetune.main(["--config", str(folder / "finetune.yaml"), "--output", str(folder / "out"), *words])


def stop_in(monkeypatch: pytest.MonkeyPatch, epoch: int) -> None:
    """Preempt jobs at the beginning of an epoch."""
    whole = Finetuning.train_batch

    def stopped(self: Finetuning, cursor: dict[str, int]) -> Any:
        if cursor.get("epoch") == epoch:
            raise Preempted
        return whole(self, cursor)

    monkeypatch.setattr(Finetuning, "train_batch", stopped)


def same_model(here: Path, there: Path) -> bool:
    """Return whether two outputs have bit-exact weights."""
    one, other = (load_file(output / "model" / "model.safetensors") for output in (here, there))
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def validations(output: Path, key: str = "validation_score") -> dict[int, float]:
    """Return step -> one metric of its validation."""
    reports = [report for _, report in read_reports(output / "metrics.jsonl")]
    return {report["step"]: report["metrics"][key] for report in reports if key in report["metrics"]}


def result_of(folder: Path) -> dict[str, Any]:
    """Return the result that the job in a folder wrote."""
    found: dict[str, Any] = json.loads((folder / "out" / "result.json").read_text())
    return found
