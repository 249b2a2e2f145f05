"""The checkpoints of a run, by what their COMMIT.json say; whether their files are whole is for the job to verify."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from orchestrator.runs import BestCheckpoint


def best_checkpoint(folder: Path) -> BestCheckpoint | None:
    """The committed checkpoint of lowest validation loss in `folder`, the earlier of equals; None if none has one."""
    found = []
    for path in folder.glob("step-*/COMMIT.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):  # being written, being deleted, of another format
            document = json.loads(path.read_text())
            loss, step = float(document["validation_loss"]), int(document["step"])
            found.append((loss, step, str(path.parent)))
    if not found:
        return None
    loss, step, place = min(found)
    return BestCheckpoint(step=step, validation_loss=loss, folder=place)
