"""Labels in a Hugging Face folder: a fine-tuned model is saved with the names of what it predicts, and begins with the
head of a folder whose names are its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from train_jobs.models.bert.task_heads import BertForSequenceClassification, Finetuned
from train_jobs.models.huggingface import CONFIG, FINETUNED_HEADS, load_weights

NUMBER = ("LABEL_0",)  # what Hugging Face calls the one output of a regression


def label_settings(model: Finetuned, labels: Sequence[str]) -> dict[str, Any]:
    """What config.json says of the head.

    Args:
        model: with its head.
        labels: names of classes or tags in the order of their ids; none of a number, or of an answer's span.
    """
    settings: dict[str, Any] = {"architectures": [model.hugging_face]}
    if isinstance(model, BertForSequenceClassification):
        settings["problem_type"] = "single_label_classification" if labels else "regression"
        labels = labels or NUMBER
    if labels:
        settings["id2label"] = {str(number): name for number, name in enumerate(labels)}
        settings["label2id"] = {name: number for number, name in enumerate(labels)}
    return settings


def saved_labels(folder: Path) -> list[str]:
    """Names of what a folder's model predicts, in the order of their ids; none if it does not say."""
    names = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("id2label") or {}
    return [names[key] for key in sorted(names, key=int)]


@torch.no_grad()
def load_for_finetuning(model: Finetuned, folder: Path, labels: Sequence[str]) -> list[str]:
    """Copies a folder's weights into a model, and its head too if that predicts the same by the same names.

    A head of other labels is left aside, whatever its size: what it says of neutral and entailment is nothing about
    duplicates. One with the same labels in another order is put into the model's order.

    Args:
        model: of the folder's shape.
        folder: see `train_jobs.models.huggingface.load_weights`.
        labels: as of `label_settings`.

    Returns:
        Names of the model's tensors that stay as they were, those of a new head among them.

    Raises:
        TrainingError: as of `load_weights`.
    """
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8")) if (folder / CONFIG).is_file() else {}
    wanted = label_settings(model, labels)
    names = list(wanted.get("id2label", {}).values())
    have = saved_labels(folder) if config else []
    alike = all(config.get(key) == wanted.get(key) for key in ("architectures", "problem_type"))
    if not alike or (names and sorted(have) != sorted(names)):
        return load_weights(model, folder, leave=FINETUNED_HEADS)
    absent = load_weights(model, folder, leave=())
    if names and have != names and not any(name.startswith(FINETUNED_HEADS) for name in absent):
        assert isinstance(model.classifier, torch.nn.Linear), "the one kind of head that has names"
        order = [have.index(name) for name in names]
        for parameter in (model.classifier.weight, model.classifier.bias):
            parameter.copy_(parameter[order])
    return absent
