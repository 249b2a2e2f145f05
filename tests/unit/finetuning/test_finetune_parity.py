"""The losses of each step equal those of a transformers model trained with torch's AdamW."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
import yaml

from train_jobs import finetune
from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.config import ModelConfig
from train_jobs.config.finetune import FinetuneScheduleConfig
from train_jobs.models.bert.pretraining_heads import initialise
from train_jobs.models.bert.task_heads import BertForSequenceClassification
from train_jobs.models.huggingface import TokenizerFiles, export, label_settings
from train_jobs.optim.factory import learning_rate
from train_jobs.tasks.sequences import epoch_batches

SHAPE = ModelConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=32
)
NAMES = ("no", "yes")
ROWS, BATCH, EPOCHS, RATE, SEED = 50, 8, 2, 1e-3, 7


def table(path: Path, seed: int) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    rows = [(" ".join(draw.choices("abcdefghij", k=draw.randint(2, 20))), draw.choice(NAMES)) for _ in range(ROWS)]
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, its head, and tables."""
    root = tmp_path_factory.mktemp("parity")
    (root / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]) + "\n")
    model = BertForSequenceClassification(SHAPE, 15, 2)
    initialise(model, 1)
    with torch.no_grad():  # as large as after training: initial ones hardly distinguish words
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.dim() == 2 else 1)
    more, vocabulary = label_settings(model, NAMES), root / "vocab.txt"
    export(
        model,
        root / "model",
        config=SHAPE,
        vocab_size=15,
        tokenizer=TokenizerFiles(vocabulary, lowercase=True),
        config_entries=more,
    )
    for number, split in enumerate(("train", "dev")):
        table(root / f"{split}.tsv", number)
    return root


def reference_losses(folder: Path) -> list[float]:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder / "model", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    ).train()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    rows = [line.split("\t") for line in (folder / "train.tsv").read_text().splitlines()[1:]]
    lengths = np.array([len(text.split()) + 2 for text, _ in rows])
    kept = [name for name, _ in model.named_parameters() if "bias" not in name and "LayerNorm" not in name]
    named = dict(model.named_parameters())
    groups = [
        {"params": [named[name] for name in kept], "weight_decay": 0.01},
        {"params": [named[name] for name in named if name not in kept], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-6)
    order = {"global_batch_size": BATCH, "seed": SEED, "group_by_length": False}
    batches = [batch for epoch in range(EPOCHS) for batch in epoch_batches(lengths, epoch=epoch, **order)]  # type: ignore[arg-type]
    found = []
    for step, batch in enumerate(batches):
        texts, labels = zip(*(rows[row] for row in batch), strict=True)
        given = tokenizer(list(texts), padding=True, return_tensors="pt")
        loss = model(**given, labels=torch.tensor([NAMES.index(label) for label in labels])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = learning_rate(FinetuneScheduleConfig(), RATE, step=step, total_steps=len(batches))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(("unpad", "micro"), [(True, 8), (False, 3)])
def test_losses_match_transformers(folder: Path, tmp_path: Path, unpad: bool, micro: int) -> None:
    document = {
        "init_from": str(folder / "model"),
        "data": {"train": str(folder / "train.tsv"), "validation": str(folder / "dev.tsv"), "max_length": 32},
        "model": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "optimizer": {"learning_rate": RATE, "eps": 1.0e-6},
        "train": {
            "epochs": EPOCHS,
            "global_batch_size": BATCH,
            "micro_batch_size": micro,
            "unpad": unpad,
            "precision": "fp32",
            "log_every": 1,
        },
        "seeds": [SEED],
    }
    (tmp_path / "f.yaml").write_text(yaml.safe_dump(document))
    assert finetune.main(["--config", str(tmp_path / "f.yaml"), "--output", str(tmp_path / "out")]) == 0
    reports = [report["metrics"] for _, report in read_reports(tmp_path / "out" / "metrics.jsonl")]
    ours = [metrics["train_loss"] for metrics in reports if "train_loss" in metrics]
    theirs = reference_losses(folder)
    assert len(ours) == len(theirs) == 14
    assert max(abs(one - other) for one, other in zip(ours, theirs, strict=True)) < 1e-4
    assert max(theirs) - min(theirs) > 0.05, "it moves"


def test_patience_evaluation_interval_and_layer_decay(folder: Path, tmp_path: Path) -> None:
    document = {
        "init_from": str(folder / "model"),
        "data": {"train": str(folder / "train.tsv"), "validation": str(folder / "dev.tsv"), "max_length": 32},
        "optimizer": {"learning_rate": 1e-9, "layer_decay": 0.5},
        "evaluation": {"every": 2, "patience": 2},
        "train": {"epochs": EPOCHS, "global_batch_size": BATCH, "precision": "fp32"},
    }
    (tmp_path / "f.yaml").write_text(yaml.safe_dump(document))
    assert finetune.main(["--config", str(tmp_path / "f.yaml"), "--output", str(tmp_path / "out")]) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["best_step"], result["steps"]) == (2, 6), "a rate of nothing changes no prediction"
    state = json.loads((tmp_path / "out" / "checkpoints" / "step-00000006" / "state.json").read_text())
    assert {group["lr_scale"] for group in state["optimizer"]["param_groups"]} == {1.0, 0.5, 0.25, 0.125}
