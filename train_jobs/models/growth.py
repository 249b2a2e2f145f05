"""Rows for words that a trained model's vocabulary did not have."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Spellings = Sequence[Sequence[int]]


def with_words(rows: Tensor, pieces: int, spellings: Spellings) -> Tensor:
    """The rows of a vocabulary, and behind them one for each new word: the mean of the pieces it was spelled with.

    So was a vocabulary transferred by Gee et al. 2022 (Fast Vocabulary Transfer for Language Model Compression). Of
    the embedding table and the language model's bias alike, the mean makes a new word's logit the mean of its pieces'
    logits: never the largest one, so the words come in without taking a prediction from those that were learned.

    Args:
        rows: [R, ...] the embedding table, or the bias [R]; rows from `pieces` on are padding, and left out.
        pieces: pieces of the vocabulary so far.
        spellings: for each new word the ids of its pieces.

    Returns:
        [pieces + words, ...] of the same type.
    """
    new = [rows[list(ids)].float().mean(dim=0).to(rows.dtype) for ids in spellings]
    return torch.cat([rows[:pieces], torch.stack(new)]) if new else rows
