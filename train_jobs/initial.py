"""Weights that training starts from instead of drawn ones. What their folder says without torch: `config.initial`."""

from __future__ import annotations

from pathlib import Path

from train_jobs.config import ConflictError, PretrainConfig, SpecError
from train_jobs.config.initial import initial_weights
from train_jobs.engine.distributed import World
from train_jobs.model.heads import BertForPreTraining
from train_jobs.model.huggingface import load_weights

HASH_DIGITS = 15  # hex digits that fit into an int64


def check_initial_model(config: PretrainConfig, *, goes_on: bool) -> None:
    """Refuses a run whose initial model is not there, before anything is prepared.

    Args:
        goes_on: there is a checkpoint, and the initial model is not needed any more.

    Raises:
        SpecError: there is no such folder.
    """
    folder = config.initial_model
    if folder is not None and not folder.is_dir() and not goes_on:
        raise SpecError(f"no such folder: {folder}", facts={"where": "initial_model"}, fix="--set initial_model=FOLDER")


def load_initial_model(model: BertForPreTraining, config: PretrainConfig, world: World, hashes: Path) -> list[str]:
    """Replaces the weights just drawn by those of `initial_model`, if there is one; for every process.

    Args:
        hashes: JSON file that remembers content hashes.

    Returns:
        Names of tensors that the folder does not hold: these stay as drawn.

    Raises:
        ConflictError: this process reads other weights than the main process.
        TrainingError: the folder cannot be read.
    """
    folder = config.initial_model
    if folder is None:
        return []
    weights = initial_weights(folder, hashes) or "0"
    told = int(weights[:HASH_DIGITS], 16)
    if world.from_main(told) != told:
        raise ConflictError(
            f"rank {world.rank} reads another initial model than rank 0",
            facts={"where": folder, "weights": weights},
            fix="put the initial model on a disk that all nodes share",
        )
    absent = load_weights(model, folder)
    if world.is_main:
        print(f"weights    {folder}, SHA-256 {weights[:8]}", flush=True)
        if absent:
            heads = ", ".join(sorted({".".join(name.split(".")[:2]) for name in absent}))
            print(f"warning: the initial model does not hold {heads}: drawn from train.seed", flush=True)
    return absent
