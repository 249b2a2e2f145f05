"""The loss of interpolated positions, measured before a continued pretraining starts."""

from __future__ import annotations

import torch

from train_jobs.artifacts.lineage import StretchFacts
from train_jobs.artifacts.start_model import read_initial_model
from train_jobs.assembly.starting_point import spell_added_tokens
from train_jobs.config import PretrainConfig
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.runtime.devices import autocast
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert.positions import stretch_positions
from train_jobs.models.bert.pretraining_heads import BertForPreTraining
from train_jobs.models.huggingface import load_weights
from train_jobs.tasks.pretraining import BertPretraining

SEQUENCES = 256  # of the validation sample: their loss has an error of a few hundredths of a nat


def measure_stretch(config: PretrainConfig, store: TokenStore, world: World, precision: str) -> StretchFacts | None:
    """Measure the initial model at its trained length, and with interpolated positions at the length of the run.

    Call it on every process, before training. Both losses are of `SEQUENCES` held-out sequences at most.

    Args:
        config: configuration of the run.
        store: token store of the run.
        world: processes of the run.
        precision: arithmetic of the forward pass.

    Returns:
        Lengths and losses. None: the run interpolates no positions.
    """
    if config.stretch_positions is None or config.init_from is None:
        return None
    trained = read_initial_model(config.init_from).usable_positions
    before = initial_loss(config, store, world, precision, length=trained)
    after = initial_loss(config, store, world, precision, length=config.data.sequence_length, stretched_from=trained)
    world.log(
        f"positions  {trained} trained ones interpolated to cover {config.stretch_positions}: held-out loss"
        f" {before:.4f} at {trained} tokens before, {after:.4f} at {config.data.sequence_length} after"
    )
    return StretchFacts(
        trained=trained,
        stretched=config.stretch_positions,
        length=config.data.sequence_length,
        trained_loss=before,
        stretched_loss=after,
    )


@torch.no_grad()
def initial_loss(
    config: PretrainConfig,
    store: TokenStore,
    world: World,
    precision: str,
    *,
    length: int,
    stretched_from: int | None = None,
) -> float:
    """Return the loss of the initial model on held-out sequences, in nats; call it on every process.

    Args:
        config, store, world, precision: see `measure_stretch`.
        length: tokens of a sequence.
        stretched_from: positions to interpolate first, to cover `stretch_positions`. None: no interpolation.
    """
    assert config.init_from is not None
    validation, train = config.validation, config.train
    changed = config.model_copy(
        update={
            "data": config.data.model_copy(update={"sequence_length": length}),
            "validation": validation.model_copy(update={"max_sequences": min(validation.max_sequences, SEQUENCES)}),
            "train": train.model_copy(update={"compile": False}),  # takes longer than it saves
        }
    )
    task = BertPretraining(changed, store, world)
    assert isinstance(task.model, BertForPreTraining), "load_parts refuses any other"
    pieces, spellings = spell_added_tokens(config.data)
    allowed = config.trust.allow_pickle
    load_weights(task.model, config.init_from, pieces=pieces, new_words=spellings, allow_pickle=allowed)
    if stretched_from is not None and config.stretch_positions is not None:
        stretch_positions(
            task.model.bert.embeddings.position_embeddings.weight, stretched_from, config.stretch_positions
        )
    task.model.eval()
    given = train.on_device(on_cpu=world.device.type == "cpu").micro_batch_size
    size = given if isinstance(given, int) else 8  # not searched for yet
    with autocast(precision, world.device):
        found = task.validate(size)
    return found.get("mlm_loss", found["loss"])
