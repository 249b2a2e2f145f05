"""Sentence-order prediction (ALBERT: Lan et al. 2020, arXiv 1909.11942) in place of next-sentence prediction.

orchestrator submit pretrain --code docs/examples --set objective=sentence_order:SentenceOrder
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch

from train_jobs.corpus.examples.pairs import Plan
from train_jobs.corpus.store.token_store import Block
from train_jobs.models.bert.pretraining_heads import pretraining_sums
from train_jobs.protocols import Term

SPECIALS = 3  # [CLS] A [SEP] B [SEP]


class SentenceOrder:
    """Two stretches of a document that follow one another: in their order (0), or swapped (1).

    Args:
        swapped: share of pairs to swap.
    """

    labels: ClassVar = {"mlm": "masked_labels", "sop": "next_sentence_labels"}

    def __init__(self, *, swapped: float = 0.5) -> None:
        self.swapped = swapped

    def plan(
        self, block: Block, *, sequence_length: int, short_sequence_probability: float, rng: np.random.Generator
    ) -> Plan:
        """All pairs of a block; documents of one sentence have none."""
        offsets, documents = block.sentence_offsets.tolist(), block.document_offsets.tolist()
        rows = []
        for first, last in pairwise(documents):
            target = sequence_length - SPECIALS
            if rng.random() < short_sequence_probability:
                target = int(rng.integers(2, target, endpoint=True))
            while last - first >= 2:
                end = first + 2
                while end < last and offsets[end] - offsets[first] < target:
                    end += 1
                cut = int(rng.integers(first + 1, end))
                a_tokens, b_tokens = offsets[cut] - offsets[first], offsets[end] - offsets[cut]
                a_kept = min(a_tokens, max(target - b_tokens, target // 2))  # what is too long loses its outer ends
                b_kept = min(b_tokens, target - a_kept)
                a, b = (offsets[cut] - a_kept, offsets[cut]), (offsets[cut], offsets[cut] + b_kept)
                rows.append((*b, *a, 1) if rng.random() < self.swapped else (*a, *b, 0))
                first = end
        return rng.permutation(np.array(rows, np.int64).reshape(-1, 5))

    def losses(self, model: torch.nn.Module, batch: Mapping[str, torch.Tensor], *, padded: bool) -> Mapping[str, Term]:
        """Both heads are BERT's own; the second one learns the order."""
        sums = pretraining_sums(model, batch, next_sentence=True, padded=padded)
        return {
            "mlm": Term(sums.mlm_loss_sum, sums.mlm_correct, sums.mlm_count),
            "sop": Term(sums.nsp_loss_sum, sums.nsp_correct, sums.nsp_count),
        }
