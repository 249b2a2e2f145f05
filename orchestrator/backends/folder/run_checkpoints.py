"""The checkpoints of a run, by what their COMMIT.json say; whether their files are whole is for the job to verify."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from orchestrator.runs.status import BestCheckpoint


def best_checkpoint(folder: Path, *, scored: bool = False) -> BestCheckpoint | None:
    """The committed checkpoint of lowest validation loss in `folder`, the earlier of equals; None if none has one.

    Args:
        folder: of checkpoints.
        scored: they are of a fine-tuning, whose engine takes what a score lacks for the loss.
    """
    found = []
    for path in folder.glob("step-*/COMMIT.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):  # being written, being deleted, of another format
            document = json.loads(path.read_text())
            loss, step = float(document["validation_loss"]), int(document["step"])
            found.append((loss, step, str(path.parent)))
    if not found:
        return None
    loss, step, place = min(found)
    if scored:
        return BestCheckpoint(step=step, score=-loss, folder=place)
    return BestCheckpoint(step=step, validation_loss=loss, folder=place)
