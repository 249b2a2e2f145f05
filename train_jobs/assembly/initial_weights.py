"""Weights that training starts from instead of drawn ones. What their folder says without torch: `config.initial`."""

from __future__ import annotations

from pathlib import Path

import torch

from train_jobs.artifacts.start_model import initial_weights
from train_jobs.config import ConflictError, DataConfig, PretrainConfig, SpecError
from train_jobs.corpus.tokenize.vocabulary import load_vocabulary
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert.pretraining_heads import BertForPreTraining
from train_jobs.models.huggingface import load_weights

HASH_DIGITS = 15  # hex digits that fit into an int64


def check_initial_model(config: PretrainConfig, *, goes_on: bool) -> None:
    """Refuses a run whose initial model is not there, before anything is prepared.

    Args:
        goes_on: there is a checkpoint, and the initial model is not needed any more.

    Raises:
        SpecError: there is no such folder.
    """
    folder = config.init_from
    if folder is not None and not folder.is_dir() and not goes_on:
        raise SpecError(
            f"no such folder: {folder}",
            facts={"where": "init_from"},
            fix="--set init_from=FOLDER, or a name on the Hugging Face Hub",
        )


def load_initial_model(model: torch.nn.Module, config: PretrainConfig, world: World, hashes: Path) -> list[str]:
    """Replaces the weights just drawn by those of `init_from`, if there is one; for every process.

    Args:
        hashes: JSON file that remembers content hashes.

    Returns:
        Names of tensors that the folder does not hold: these stay as drawn.

    Raises:
        ConflictError: this process reads other weights than the main process.
        TrainingError: the folder cannot be read.
    """
    folder = config.init_from
    if folder is None:
        return []
    assert isinstance(model, BertForPreTraining), "load_parts refuses any other"
    weights = initial_weights(folder, hashes) or "0"
    told = int(weights[:HASH_DIGITS], 16)
    if world.from_main(told) != told:
        raise ConflictError(
            f"rank {world.rank} reads another initial model than rank 0",
            facts={"where": folder, "weights": weights},
            fix="put the initial model on a disk that all nodes share",
        )
    pieces, spellings = spelled(config.data)
    absent = load_weights(model, folder, pieces=pieces, words=spellings)
    if world.is_main:
        print(f"weights    {folder}, SHA-256 {weights[:8]}", flush=True)
        if spellings:
            print(f"words      {len(spellings)} added, each the mean of the pieces that spelled it", flush=True)
        if absent:
            heads = ", ".join(sorted({".".join(name.split(".")[:2]) for name in absent}))
            print(f"warning: the initial model does not hold {heads}: drawn from train.seed", flush=True)
    return absent


def spelled(data: DataConfig) -> tuple[int, list[list[int]]]:
    """Pieces of the initial model's vocabulary, and of each word that is added to it the pieces that spell it there."""
    if not data.add_tokens:
        return 0, []
    assert data.vocabulary is not None, "it is the initial model's"
    tokenizer = load_vocabulary(data.vocabulary, lowercase=data.lowercase)
    encoded = tokenizer.encode_batch(data.add_tokens, add_special_tokens=False)
    return tokenizer.get_vocab_size(), [word.ids for word in encoded]
