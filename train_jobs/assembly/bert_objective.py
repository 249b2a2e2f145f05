"""BERT's own objective: masked language model and next-sentence prediction."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from train_jobs.config import ObjectiveConfig
from train_jobs.corpus.examples.pairs import Plan, plan_block
from train_jobs.corpus.store.token_store import Block
from train_jobs.models.bert.losses import pretraining_sums
from train_jobs.protocols import Term


class BertObjective:
    """As `train_jobs.protocols.Objective` has it.

    Args:
        config: next_sentence is used; off, examples are single sequences and the loss has one term.
    """

    def __init__(self, config: ObjectiveConfig) -> None:
        self._next_sentence = config.next_sentence
        pairs = {"nsp": "next_sentence_labels"} if config.next_sentence else {}
        self.labels: Mapping[str, str] = {"mlm": "masked_labels", **pairs}

    def plan(
        self, block: Block, *, sequence_length: int, short_sequence_probability: float, rng: np.random.Generator
    ) -> Plan:
        """Sentence pairs, or stretches of text."""
        return plan_block(
            block,
            sequence_length=sequence_length,
            short_sequence_probability=short_sequence_probability,
            next_sentence=self._next_sentence,
            rng=rng,
        )

    def losses(self, model: torch.nn.Module, batch: Mapping[str, Tensor], *, padded: bool) -> Mapping[str, Term]:
        """Cross entropies of both heads."""
        sums = pretraining_sums(model, batch, next_sentence=self._next_sentence, padded=padded)
        terms = {"mlm": Term(*sums[:3]), "nsp": Term(*sums[3:])}
        return {name: terms[name] for name in self.labels}
