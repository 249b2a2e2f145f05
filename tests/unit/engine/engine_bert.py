"""A small pretraining job and a reference implementation of its losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from train_jobs.config import PretrainConfig
from train_jobs.corpus.examples.batches import Batch
from train_jobs.engine.runtime.distributed import World
from train_jobs.tasks.pretraining import BertPretraining

CPU = torch.device("cpu")
ALONE = World(rank=0, local_rank=0, size=1, device=CPU)
NO_PAIRS = {"objective": {"next_sentence": False}}
SECTIONS: dict[str, dict[str, Any]] = {
    "model": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 32,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    "data": {"sequence_length": 32, "vocab_size": 256, "validation_fraction": 0.2, "short_sequence_probability": 0.5},
    "train": {"steps": 4, "global_batch_size": 6, "micro_batch_size": 4, "precision": "fp32"},
    "validation": {"max_sequences": 20},
}


def config_with(**sections: Any) -> PretrainConfig:
    """Return the config of the small job with some sections or settings overridden."""
    merged: dict[str, Any] = dict(SECTIONS)
    for name, values in sections.items():
        merged[name] = {**SECTIONS.get(name, {}), **values} if isinstance(values, dict) else values
    return PretrainConfig.model_validate(merged)


def totals_of(task: BertPretraining, batch: Batch) -> torch.Tensor:
    """Return the sums that the engine accumulates over a global batch of one process."""
    return torch.tensor(task.counts(batch))


def by_hand(task: BertPretraining, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean losses of both objectives over a batch, computed without the job's optimizations."""
    mask = torch.arange(32) < torch.from_numpy(batch.lengths)[:, None]
    logits, pairs = task.model(torch.from_numpy(batch.input_ids), torch.from_numpy(batch.token_type_ids), mask)
    rows, slots = np.nonzero(batch.masked_labels != -100)
    predicted = logits[rows, batch.masked_positions[rows, slots]]
    mlm = F.cross_entropy(predicted.double(), torch.from_numpy(batch.masked_labels[rows, slots]))
    return mlm, F.cross_entropy(pairs.double(), torch.from_numpy(batch.next_sentence_labels))
