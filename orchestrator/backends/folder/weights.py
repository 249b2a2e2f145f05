"""Checkpoints and exported models of a run that has ended, deleted for who keeps only the best of several runs."""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.support.errors import StorageError

WEIGHTS = ("checkpoints", "model")
GRAVE = ".deleted."  # before the name of a folder that is being deleted
PLACES = ("", "*/", "*/*/")  # below the outputs: of a run, of a seed or a task, of a seed of a task


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
