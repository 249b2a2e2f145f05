"""Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1) with the fastest kernel of the device."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from train_jobs.config.pretrain import LONGEST_PLAIN_ATTENTION
from train_jobs.engine.runtime.devices import is_out_of_memory
from train_jobs.models.bert.primitives import dropout as drop
from train_jobs.models.packing import Group, Packing, longest_sequence


def attend(joint: Tensor, *, mask: Tensor | None, dropout: float) -> Tensor:
    """Return weighted sums of the values of padded sequences.

    Args:
        joint: queries, keys and values, [B, S, 3, heads, D].
        mask: bool, broadcastable to [B, heads, S, S], True where a key may be attended to. None: everywhere.
        dropout: probability of dropping an attention weight, 0 to 1.

    Returns:
        [B, S, heads, D].
    """
    query, key, value = joint.permute(2, 0, 3, 1, 4).unbind(0)
    # On CPUs plain matrix products are 1.6 to 3.7 times as fast as torch's fused kernel at BERT's lengths (forward and
    # backward, bf16, lengths 64 to 256: benchmarks/attention_cpu.py). Longer sequences would need too much memory.
    if query.device.type == "cpu" and key.shape[2] <= LONGEST_PLAIN_ATTENTION:
        mixed = plain_attention(query, key, value, mask, dropout)
    else:
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    return mixed.transpose(1, 2)


def attend_packed(joint: Tensor, packing: Packing, *, dropout: float) -> Tensor:
    """Return weighted sums of the values of packed sequences, each of which attends to itself only.

    Args:
        joint: queries, keys and values, [T, 3, heads, D].
        packing: the sequence of each token.
        dropout: probability of dropping an attention weight, 0 to 1.

    Returns:
        [T, heads, D].
    """
    if packing.kernel:
        return _flash(joint, packing.starts, longest_sequence(packing.places.shape[1]), dropout)
    if packing.groups:
        return _attend_groups(joint, packing.groups, dropout)
    # padded positions point to the last filling token, see `Packing.places`: no second tensor for the mask
    mask = packing.places < len(joint) - 1
    laid_out = packing.lay_out(joint.flatten(1)).unflatten(-1, joint.shape[1:])
    mixed = attend(laid_out, mask=mask[:, None, None, :], dropout=dropout)
    return packing.collect(mixed.flatten(2)).unflatten(-1, joint.shape[2:])


def _attend_groups(joint: Tensor, groups: Sequence[Group], dropout: float) -> Tensor:
    """Attend group by group; return zeros for filling tokens, which belong to no sequence."""
    # Groups are consecutive in the packed order, so splitting makes views instead of copies.
    sizes = [len(group.tokens) for group in groups]
    *parts, fill = joint.flatten(1).split([*sizes, len(joint) - sum(sizes)])
    each = []
    for group, part in zip(groups, parts, strict=True):
        laid_out = group.lay_out(part).unflatten(-1, joint.shape[1:])
        each.append(group.collect(attend(laid_out, mask=group.mask, dropout=dropout).flatten(2)))
    return torch.cat([*each, fill.new_zeros(len(fill), each[0].shape[1])]).unflatten(-1, joint.shape[2:])


_refused: set[str] = set()  # reasons of this job for not using the packed kernel, although this device may have it


def refuse_packed_kernel(reason: str) -> None:
    """Compute packed sequences by the padded layout from now on, as when another process of the job has no kernel."""
    _refused.add(reason)
    packed_kernel_problem.cache_clear()


def has_packed_kernel(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Return whether attention of packed sequences uses torch's FlashAttention; see `packed_kernel_problem`."""
    return packed_kernel_problem(device, dtype, head_size) is None


@functools.cache
def packed_kernel_problem(device: torch.device, dtype: torch.dtype, head_size: int) -> str | None:
    """Return why torch's FlashAttention kernel (Dao 2023) cannot be used for packed sequences; None if it can.

    Args:
        device: device to compute on.
        dtype: type of queries, keys and values.
        head_size: D.

    Raises:
        RuntimeError: memory ran out during the trial.
    """
    # torch's public function for packed sequences (varlen_attn) has no dropout. The private operation that it calls
    # has, but its signature changes between releases, so it is compared once with plain attention instead of trusted.
    if _refused:
        return next(iter(_refused))
    if device.type != "cuda":
        return f"no such kernel exists for a {device.type}"
    if dtype not in (torch.float16, torch.bfloat16):
        return "no such kernel exists for fp32"
    try:
        with torch.autocast("cuda", enabled=False), torch.random.fork_rng([device]):
            agrees = _agrees_with_plain(device, dtype, head_size)
    except (RuntimeError, TypeError, AttributeError) as problem:  # an older GPU, another signature, no such operation
        if is_out_of_memory(problem):
            raise  # nothing about the kernel is known, and the cache would keep the answer for the whole run
        return f"{type(problem).__name__}: {str(problem).partition(chr(10))[0][:200]}"
    return None if agrees else "its results differ from plain attention"


@torch.enable_grad()
def _agrees_with_plain(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    lengths = [40, 64, 24]
    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
    joint = torch.randn(sum(lengths), 3, 2, head_size, device=device, dtype=dtype, requires_grad=True)
    mixed = _flash(joint, starts, max(lengths), 0.0)
    heads = [part[None].permute(2, 0, 3, 1, 4) for part in joint.split(lengths)]
    each = [plain_attention(part[0], part[1], part[2], None, 0.0) for part in heads]
    expected = torch.cat([part[0].transpose(0, 1) for part in each])
    # random weights: in the gradient of a plain sum, errors of different positions could cancel
    weights = torch.randn_like(mixed)
    grads = [torch.autograd.grad((found * weights).sum(), joint)[0] for found in (mixed, expected)]
    _flash(joint, starts, max(lengths), 0.5)  # raises if dropout is not supported
    close = functools.partial(torch.allclose, rtol=0.05, atol=0.05)
    return close(mixed, expected) and close(*grads)


def _flash(joint: Tensor, starts: Tensor, longest: int, dropout: float) -> Tensor:
    query, key, value = joint.unbind(1)
    return torch.ops.aten._flash_attention_forward(
        query, key, value, starts, starts, longest, longest, dropout, False, False
    )[0]


def plain_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Compute attention with plain matrix products.

    Args:
        query, key, value: [B, heads, S, D].
        mask: see `attend`.
        dropout: see `attend`.

    Returns:
        [B, heads, S, D].
    """
    # the query is scaled, not the scores: S x D multiplications instead of S x S
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    # Added in place: masked_fill of the scores would copy them, and its backward pass fills their gradient as well.
    if mask is not None:
        scores += torch.zeros(mask.shape, dtype=scores.dtype).masked_fill_(~mask, -math.inf)
    probabilities = torch.softmax(scores, dim=-1)  # torch accumulates in fp32 for every dtype
    return drop(probabilities, dropout) @ value
