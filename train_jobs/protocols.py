"""Interfaces of the user's own classes and functions, which a configuration names as MODULE:NAME.

    objective: sentence_order:SentenceOrder      # short for {name: sentence_order:SentenceOrder}
    optimizer:
      name: lion:Lion                            # with the keys of every optimizer: learning_rate, weight_decay
      options: {betas: [0.95, 0.98]}             # keyword arguments

B is the batch, S the sequence length, P the most predictions in a sequence, V the rows of the embedding table.
docs/own-classes.md has an example of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from train_jobs.config import ModelConfig

if TYPE_CHECKING:
    from train_jobs.corpus.examples.pairs import Plan
    from train_jobs.corpus.store.token_store import Block


class Term(NamedTuple):
    """One term of the loss, summed over a micro batch: 0-dim tensors on its device."""

    loss: Tensor
    """Sum of losses in nats, fp32, with a gradient."""
    correct: Tensor
    """Number of labels predicted right, int64."""
    count: Tensor  # type: ignore[assignment]  # hides the method of tuples, which nothing calls
    """Number of labels that count, int64."""


class Objective(Protocol):
    """An objective: plans of examples, and their losses. The class is called with its options.

    Masks are not its task: the other keys of the section `objective` determine them for every objective.
    """

    labels: Mapping[str, str]
    """Name of each term of the loss -> its labels in a batch: masked_labels or next_sentence_labels. The loss is the
    sum of the terms' means over valid labels, which are those other than -100; a term NAME is reported as NAME_loss and
    NAME_accuracy. Without next_sentence_labels, BERT's pooler and pair head are frozen."""

    def plan(
        self, block: Block, *, sequence_length: int, short_sequence_probability: float, rng: np.random.Generator
    ) -> Plan:
        """Return all examples of a block of whole documents.

        It must be a pure function of its arguments and the state of `rng`, which depends only on seed, epoch and
        block: a resumed run then sees the same examples.

        Args:
            block: token ids, and the starts of sentences and documents.
            sequence_length: S; [CLS] A [SEP] B [SEP], or [CLS] A [SEP] without B, must fit into it.
            short_sequence_probability: share of examples to shorten at random.
            rng: source of all random numbers.

        Returns:
            int64 [examples, 5], in the order of training: a_start, a_end, b_start, b_end, and the value of
            next_sentence_labels. The first four are ranges of the block's tokens; A is not empty, B is empty for single
            sequences.
        """

    def losses(self, model: torch.nn.Module, batch: Mapping[str, Tensor], *, padded: bool) -> Mapping[str, Term]:
        """Return the terms of a micro batch, by the names in `labels`, without waiting for the device.

        Args:
            model: as configured; BERT is called with input_ids, token_type_ids, attention_mask (bool [B, S] or None)
                and masked_positions, and returns logits [B, P, V] and [B, 2].
            batch: input_ids, token_type_ids int64 [B, S]; lengths int64 [B]; masked_positions, masked_labels int64
                [B, P]; next_sentence_labels int64 [B]. A label of -100 does not count.
            padded: whether some sequence is shorter than S.
        """


class Model(Protocol):
    """A class of torch.nn.Module.

    The weights of a subclass of `train_jobs.models.bert.pretraining_heads.BertForPreTraining` are initialised and
    exported like BERT's; the keys of its class attribute `hugging_face` are added to config.json. Any other class
    initialises its weights in its constructor, with torch's generator seeded by train.seed. Its state is exported as
    model.safetensors and its settings as config.json, which transformers cannot load.
    """

    def __call__(self, config: ModelConfig, vocab_size: int, **options: Any) -> torch.nn.Module:
        """Return a new model.

        Args:
            config: the section `model`.
            vocab_size: V, a multiple of model.pad_vocab_to_multiple_of.
            options: the section's options.
        """


class OptimizerFactory(Protocol):
    """A subclass of torch.optim.Optimizer, such as torch.optim:RAdam, or a function that returns one."""

    def __call__(self, params: list[dict[str, Any]], *, lr: float, **options: Any) -> torch.optim.Optimizer:
        """Return a new optimizer.

        Its `state` is part of every checkpoint. It may contain tensors with the dtype of their parameter (torch casts
        them when they are loaded, except `step`), and numbers, None, or lists of them.

        Args:
            params: two groups, matrices with optimizer.weight_decay, biases and LayerNorm with a `weight_decay` of 0;
                `params` of each are (name, parameter).
            lr: optimizer.learning_rate; before each step the schedule sets `lr` of every group.
            options: the section's options.
        """


class Schedule(Protocol):
    """The learning rate as a pure function of the progress of the run."""

    def __call__(self, *, step: int, total_steps: int, time_used: float, peak: float, **options: Any) -> float:
        """Return the learning rate of a step.

        Args:
            step: optimizer steps made before it.
            total_steps: train.steps.
            time_used: used share of schedule.hours; 0 without such a budget.
            peak: optimizer.learning_rate.
            options: the section's options.
        """
