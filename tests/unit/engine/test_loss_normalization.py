"""Losses normalised over the global batch or per micro batch: gradients against a reference and transformers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from engine_bert import ALONE, CPU, NO_PAIRS, by_hand, config_with, totals_of

from train_jobs.config import PretrainConfig
from train_jobs.corpus.examples.batches import Batch
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.huggingface import load_weights
from train_jobs.tasks.pretraining import BertPretraining


def gradients_of(config: PretrainConfig, store: TokenStore, shares: list[Batch]) -> list[torch.Tensor]:
    """Return the gradients of the task's losses, summed over processes and micro batches as in the engine."""
    task = BertPretraining(config, store, ALONE)
    totals = sum(totals_of(task, share) for share in shares)
    micro = config.train.micro_batch_size
    for share in shares:
        for start in range(0, len(share), micro):
            task.loss(share.slice(start, min(start + micro, len(share))), totals)[0].backward()
    return [p.grad for p in task.model.parameters() if p.requires_grad]


def shares_of(config: PretrainConfig, store: TokenStore, processes: int) -> list[Batch]:
    worlds = [World(rank=rank, local_rank=rank, size=processes, device=CPU) for rank in range(processes)]
    return [BertPretraining(config, store, world).train_batch({})[0] for world in worlds]


def with_equal_counts(batch: Batch) -> Batch:
    """Return the batch with one token to predict in each sequence."""
    labels = batch.masked_labels.copy()
    labels[:, 1:] = -100
    return dataclasses.replace(batch, masked_labels=labels)


@pytest.mark.parametrize("objective", [{}, {"next_sentence": False, "sequences": "doc-sentences"}])
@pytest.mark.parametrize(
    ("sequences", "cuts"),
    [
        (8, [(0, 2), (2, 4), (4, 6), (6, 8)]),  # 2 processes x 2 micro batches
        (7, [(0, 2), (2, 3), (3, 5), (5, 7)]),  # shares of 3 and 4
        (5, [(0, 2), (2, 4), (4, 5)]),  # one process has one micro batch, the other has two
    ],
)
def test_either_normalisation_correct_for_any_split(
    store: TokenStore, sequences: int, cuts: list[tuple[int, int]], objective: dict[str, Any]
) -> None:
    found = {}
    for kind in ("global", "micro_batch"):
        train = {"global_batch_size": sequences, "micro_batch_size": 2, "loss_normalization": kind}
        config = config_with(train=train, objective=objective)
        found[kind] = gradients_of(config, store, shares_of(config, store, processes=2))
    task = BertPretraining(config, store, ALONE)
    whole, _ = task.train_batch({})
    parameters = [p for p in task.model.parameters() if p.requires_grad]
    terms = 1 if objective else 2
    micro_batches = [whole.slice(*cut) for cut in cuts]
    assert len({tuple(row) for row in [((b.masked_labels >= 0).sum(), len(b)) for b in micro_batches]}) > 1
    means = [sum(by_hand(task, batch)[:terms]) for batch in micro_batches]
    expected = {
        "global": torch.autograd.grad(sum(by_hand(task, whole)[:terms]), parameters),
        "micro_batch": torch.autograd.grad(sum(means) / len(means), parameters),
    }
    for kind, gradients in found.items():
        torch.testing.assert_close(gradients, list(expected[kind]), rtol=1e-4, atol=1e-7, msg=kind)
    assert not torch.allclose(found["global"][0], found["micro_batch"][0], rtol=1e-2, atol=1e-5)


def test_normalisations_agree_for_equal_counts(store: TokenStore) -> None:
    found = []
    for kind in ("global", "micro_batch"):
        train = {"global_batch_size": 8, "micro_batch_size": 2, "loss_normalization": kind}
        config = config_with(train=train)
        shares = [with_equal_counts(share) for share in shares_of(config, store, processes=2)]
        found.append(gradients_of(config, store, shares))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-8)


def test_mean_of_means_equals_transformers_loss(store: TokenStore, tmp_path: Path) -> None:
    """The transformers model has the same weights, no padding rows, and is called once per micro batch."""
    train = {"global_batch_size": 8, "micro_batch_size": 3, "loss_normalization": "micro_batch"}
    config = config_with(train=train, model={"pad_vocab_to_multiple_of": 7, "initializer_range": 0.3})
    task = BertPretraining(config, store, ALONE)
    shape = config.model.model_dump(exclude={"pad_vocab_to_multiple_of"})
    torch.manual_seed(3)
    theirs = transformers.BertForPreTraining(
        transformers.BertConfig(vocab_size=store.manifest.vocab_size, **shape)
    ).eval()
    assert theirs.config.vocab_size < task.model.vocab_size
    theirs.save_pretrained(tmp_path)
    load_weights(task.model, tmp_path)
    task.model.eval()
    whole, _ = task.train_batch({})
    totals, mine, expected = totals_of(task, whole), [], []
    for start in (0, 3, 6):
        batch = whole.slice(start, min(start + 3, 8))
        mine.append(task.loss(batch, totals)[0].item())
        labels = np.full_like(batch.input_ids, -100)
        rows, slots = np.nonzero(batch.masked_labels != -100)
        labels[rows, batch.masked_positions[rows, slots]] = batch.masked_labels[rows, slots]
        output = theirs(
            torch.from_numpy(batch.input_ids),
            token_type_ids=torch.from_numpy(batch.token_type_ids),
            attention_mask=(torch.arange(32) < torch.from_numpy(batch.lengths)[:, None]).long(),
            labels=torch.from_numpy(labels),
            next_sentence_label=torch.from_numpy(batch.next_sentence_labels),
        )
        expected.append(output.loss.item())
    assert abs(sum(mine) - sum(expected) / 3) < 1e-5


def test_micro_batch_without_masked_token_adds_nothing(store: TokenStore) -> None:
    config = config_with(train={"loss_normalization": "micro_batch"}, **NO_PAIRS)
    task = BertPretraining(config, store, ALONE)
    batch = task.train_batch({})[0].slice(0, 2)
    empty = dataclasses.replace(batch, masked_labels=np.full_like(batch.masked_labels, -100))
    loss, _ = task.loss(empty, totals_of(task, empty))
    loss.backward()
    assert loss.item() == 0
    assert not any(p.grad.any() for p in task.model.parameters() if p.grad is not None)
