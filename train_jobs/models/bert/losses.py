"""The pretraining objective as sums: the mean over a global batch is the engine's to take, it alone sees all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from train_jobs.models.packing import Packing

IGNORED = (
    -100
)  # a label that counts for nothing: an unused slot of masked_labels, a sequence that only fills up a batch


class Sums(NamedTuple):
    """Losses in nats and counts, summed over a micro batch: 0-dim tensors on its device, losses fp32, counts int64."""

    mlm_loss_sum: Tensor
    mlm_correct: Tensor
    mlm_count: Tensor
    nsp_loss_sum: Tensor
    nsp_correct: Tensor
    nsp_count: Tensor


def pretraining_sums(model: torch.nn.Module, batch: Mapping[str, Tensor], *, next_sentence: bool, padded: bool) -> Sums:
    """Runs the model on a micro batch and sums up both losses, without waiting for the device.

    Args:
        model: the model, or what wraps it and is called alike.
        batch: input_ids, token_type_ids int64 [B, S]; lengths int64 [B]; masked_positions, masked_labels int64
            [B, P]; next_sentence_labels int64 [B]. A label of -100 is left out of every sum. With the arrays of
            `packing_arrays` among them padding is not computed.
        next_sentence: count next-sentence prediction; if not, its three sums are zero and carry no gradient.
        padded: whether some sequence is shorter than S. The caller knows without asking the device.

    Returns:
        The sums; gradients flow through the two losses.
    """
    input_ids, packing = batch["input_ids"], Packing.of(batch)
    mask = length_mask(batch["lengths"], input_ids.shape[1]) if padded and packing is None else None
    places = {} if packing is None else {"packing": packing}
    mlm_logits, nsp_logits = model(input_ids, batch["token_type_ids"], mask, batch["masked_positions"], **places)
    mlm = _sums(mlm_logits.flatten(0, 1), batch["masked_labels"].flatten())
    if next_sentence:
        return Sums(*mlm, *_sums(nsp_logits, batch["next_sentence_labels"]))
    return Sums(*mlm, *(torch.zeros_like(value) for value in mlm))


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """int64 [B] -> bool [B, size], True at the first `lengths` positions."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def _sums(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[N, C], int64 [N] -> sum of cross entropies, number right, number counted.

    Right is a prediction that no other one exceeds: argmax, which also says which of equals comes first, takes a CPU
    ten times as long as the maximum.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    counted = labels != IGNORED
    chosen = logits.detach().gather(1, labels.clamp(min=0)[:, None])[:, 0]
    correct = (counted & (chosen >= logits.detach().amax(dim=-1))).sum()
    return loss, correct, counted.sum()
