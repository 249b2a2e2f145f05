"""The columns that a fine-tuned model learned from, as its lineage has them: nobody need name them again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train_jobs.artifacts.layers import Layer
from train_jobs.artifacts.lineage import LINEAGE_FILE, Link, read_lineage
from train_jobs.config.errors import ConflictError
from train_jobs.config.tasks import NER, OWN

KEYS = {OWN: ("text", "pair", "label"), NER: ("word_column", "tag_column")}
"""Task -> keys of `data` that are about columns; other tasks have names of their own for them."""


def tuned_columns(written: Mapping[str, Any]) -> list[Layer]:
    """A layer, to lie below what was written, with the columns that its model was tuned on; none where nothing tells.

    Args:
        written: of a prediction, with `model: FOLDER` or `model: {name: FOLDER}`.
    """
    model = written.get("model")
    named = model.get("name") if isinstance(model, dict) else model
    head = _head(Path(named)) if isinstance(named, str | Path) else None
    if head is None or head.kind != "finetune":
        return []
    config = head.facts.get("config")
    data = config.get("data") if isinstance(config, dict) else None
    keys = KEYS.get(str(head.facts.get("task")), ())
    found = {key: data[key] for key in keys if data.get(key) is not None} if isinstance(data, dict) else {}
    return [Layer(f"from the model {head.name}", {"data": found})] if found else []


def _head(folder: Path) -> Link | None:
    try:
        lineage = read_lineage(folder / LINEAGE_FILE)
    except (ConflictError, OSError):  # what is wrong with a lineage is told by those who ask for it
        return None
    return lineage.head if lineage is not None else None
