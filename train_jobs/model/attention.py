"""Scaled dot-product attention (Vaswani et al. 2017, 3.2.1), by the kernel that is fast where it runs."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from train_jobs.config.pretrain import LONGEST_PLAIN_ATTENTION
from train_jobs.model.dropout import dropout as drop


def attend(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, dropout: float) -> Tensor:
    """Weighted sums of the values.

    On CPUs plain matrix products take 1.6 to 3.7 times less time than torch's fused kernel on sequences as short as
    BERT's (forward and backward, bf16, lengths 64 to 256: benchmarks/attention_cpu.py).

    Args:
        query, key, value: [B, heads, S, D].
        mask: bool, broadcastable to [B, heads, S, S], True where a key may be looked at; None for everywhere.
        dropout: share of the probabilities to drop.

    Returns:
        [B, heads, S, D].
    """
    if query.device.type == "cpu" and key.shape[2] <= LONGEST_PLAIN_ATTENTION:
        return _plain(query, key, value, mask, dropout)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)


def _plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if mask is not None:  # added, since what is filled in has a gradient to fill as well
        scores += torch.zeros(mask.shape, dtype=scores.dtype).masked_fill_(~mask, -math.inf)
    probabilities = torch.softmax(scores, dim=-1)  # sums in fp32 inside, whatever the type
    return drop(probabilities, dropout) @ value
