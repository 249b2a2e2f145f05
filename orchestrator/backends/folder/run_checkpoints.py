"""The checkpoints of a run, by what their COMMIT.json say; whether their files are whole is for the job to verify."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.runs.status import BestCheckpoint
from orchestrator.support.errors import StorageError
from train_jobs.artifacts.commit import COMMIT

WEIGHTS = ("checkpoints", "model")
GRAVE = ".deleted."  # before the name of a folder that is being deleted
PLACES = ("", "*/", "*/*/")  # below the outputs: of a run, of a seed or a task, of a seed of a task


def best_checkpoint(folder: Path, *, scored: bool = False) -> BestCheckpoint | None:
    """The committed checkpoint of lowest validation loss in `folder`, the earlier of equals; None if none has one.

    Args:
        folder: of checkpoints.
        scored: they are of a fine-tuning, whose engine takes what a score lacks for the loss.
    """
    found = []
    for path in folder.glob(f"step-*/{COMMIT}"):
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


def delete_weights(run: RunFolder, why: str) -> bool:
    """Deletes them; a folder is out of sight at once, and what a killed deletion left of it goes with the next one.

    Args:
        run: one that has ended.
        why: told by its status from now on.

    Returns:
        False if somebody still holds the run: to be asked again.

    Raises:
        StorageError: something cannot be deleted.
    """
    weights, graves = _found(run.outputs, WEIGHTS), _found(run.outputs, [GRAVE + name for name in WEIGHTS])
    if not weights and not graves:
        return True
    state = run.read_state()
    if run.locked():
        return False
    try:
        with run.lock():
            for grave in graves:
                shutil.rmtree(grave)
            graves = [folder.rename(folder.with_name(GRAVE + folder.name)) for folder in weights]
            run.write_state(state.model_copy(update={"warning": why}))
            for grave in graves:
                shutil.rmtree(grave)
    except OSError as problem:
        raise StorageError(
            f"cannot delete the weights of run {run.name}: {problem.strerror}", facts={"where": run.outputs}
        ) from problem
    return True


def _found(outputs: Path, names: tuple[str, ...] | list[str]) -> list[Path]:
    return [path for place in PLACES for name in names for path in outputs.glob(place + name) if path.is_dir()]
