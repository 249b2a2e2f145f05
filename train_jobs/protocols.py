"""What a class or function of the user's own has to be to stand in a configuration as MODULE:NAME.

    objective: sentence_order:SentenceOrder      # short for {name: sentence_order:SentenceOrder}
    optimizer:
      name: lion:Lion                            # beside it what every optimizer has: learning_rate, weight_decay
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
    """How text becomes examples, and what is learned from them. Called with its options.

    Masks are not its business: the section's keys decide them, whatever the objective.
    """

    labels: Mapping[str, str]
    """Name of each term of the loss -> which labels of a batch it is about: masked_labels or next_sentence_labels. The
    loss is the sum over the terms of their means over labels that count, which are those other than -100; a term NAME
    is reported as NAME_loss and NAME_accuracy. Without next_sentence_labels, BERT's pooler and pair head are frozen."""

    def plan(
        self, block: Block, *, sequence_length: int, short_sequence_probability: float, rng: np.random.Generator
    ) -> Plan:
        """All examples of a block of whole documents.

        A pure function of its arguments and the state of `rng`, which is one of seed, epoch and block: so a run that
        was interrupted sees what it would have seen.

        Args:
            block: token ids, and where sentences and documents begin.
            sequence_length: S; [CLS] A [SEP] B [SEP], or without B [CLS] A [SEP], is to fit into it.
            short_sequence_probability: share of examples to make shorter on purpose.
            rng: source of all draws.

        Returns:
            int64 [examples, 5]: a_start, a_end, b_start, b_end, ranges of the block's tokens, A not empty, B empty for
            single sequences; and the label that becomes next_sentence_labels. In the order of training.
        """
        ...

    def losses(self, model: torch.nn.Module, batch: Mapping[str, Tensor], *, padded: bool) -> Mapping[str, Term]:
        """The terms of a micro batch, by the names in `labels`; without waiting for the device.

        Args:
            model: as configured; BERT's own is called with input_ids, token_type_ids, attention_mask (bool [B, S] or
                None) and masked_positions, and gives logits [B, P, V] and [B, 2].
            batch: input_ids, token_type_ids int64 [B, S]; lengths int64 [B]; masked_positions, masked_labels int64
                [B, P]; next_sentence_labels int64 [B]. A label of -100 does not count.
            padded: whether some sequence is shorter than S.
        """
        ...


class Model(Protocol):
    """A class of torch.nn.Module.

    One derived from `train_jobs.models.bert.pretraining_heads.BertForPreTraining` needs nothing else: its weights are
    drawn and exported as BERT's are, with what a class attribute `hugging_face` adds to config.json. Of any other the
    weights are those that its constructor draws, torch's generator being seeded with train.seed; model.safetensors has
    its state and config.json its settings, and transformers does not know it.
    """

    def __call__(self, config: ModelConfig, vocab_size: int, **options: Any) -> torch.nn.Module:
        """Builds one.

        Args:
            config: the section `model`.
            vocab_size: V, a multiple of model.pad_vocab_to_multiple_of.
            options: the section's options.
        """
        ...


class OptimizerFactory(Protocol):
    """A class of torch.optim.Optimizer, torch's own among them (torch.optim:RAdam), or what returns one."""

    def __call__(self, params: list[dict[str, Any]], *, lr: float, **options: Any) -> torch.optim.Optimizer:
        """Builds one.

        What it keeps in its `state` goes into every checkpoint: tensors of the type of their parameter (torch casts
        them when they are loaded; `step` it leaves alone), and numbers, None, or lists of them.

        Args:
            params: two groups, matrices with optimizer.weight_decay, biases and LayerNorm with a `weight_decay` of 0;
                `params` of each are (name, parameter).
            lr: optimizer.learning_rate; before each step the schedule sets `lr` of every group.
            options: the section's options.
        """
        ...


class Schedule(Protocol):
    """The learning rate as a pure function of how far the run is."""

    def __call__(self, *, step: int, total_steps: int, time_used: float, peak: float, **options: Any) -> float:
        """The learning rate of a step.

        Args:
            step: optimizer steps made before it.
            total_steps: train.steps.
            time_used: share of schedule.hours that is over; 0 without such a budget.
            peak: optimizer.learning_rate.
            options: the section's options.
        """
        ...
