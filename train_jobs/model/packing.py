"""Sequences one behind the other, without padding: what is no token is not computed.

Of the linear layers, LayerNorm, GELU and dropout none minds which sequence a token belongs to; attention alone does.
So the encoder works on [T, H] instead of [B, S, H], T being the tokens of a micro batch. GPUs have a kernel for the
attention of such sequences; elsewhere q, k and v are laid out padded for it and its result is gathered again, which
costs two copies.

T is rounded up, so that few shapes occur, by at least one token of a last sequence that holds nothing but [PAD]. None
of its results is used, so its gradients are zero: a padded position may be filled from it in either direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MULTIPLE = 64
"""T is rounded up to it: matrix units take such sizes best, and a kernel made for a size comes again."""
_PREFIX = "packing_"


class Packing(NamedTuple):
    """Where the tokens of B sequences of up to S tokens lie in T places."""

    tokens: Tensor
    """int64 [T] place in [B * S] of each token; of those that fill up, the first padded place."""
    places: Tensor
    """int64 [B, S] the reverse; of a padded place the last of the T."""
    starts: Tensor
    """int32 [B + 2] where each sequence begins, the one that fills up among them, and T."""
    kernel: bool = False
    """Attention takes them as they are: the encoder's to set."""

    @classmethod
    def of(cls, batch: Mapping[str, Tensor]) -> Packing | None:
        """The packing among the tensors of a batch, if it has one."""
        if _PREFIX + "tokens" not in batch:
            return None
        return cls(*(batch[_PREFIX + name] for name in ("tokens", "places", "starts")))

    def pack(self, padded: Tensor) -> Tensor:
        """[B, S, ...] -> [T, ...], for what has no gradient or may have one at padded places."""
        return padded.flatten(0, 1).index_select(0, self.tokens)

    def lay_out(self, packed: Tensor) -> Tensor:
        """[T, N] -> [B, S, N] for attention, which neither uses nor gives a gradient to padded places."""
        laid_out: Tensor = _Gather.apply(packed, self.places.flatten(), self.tokens)
        return laid_out.unflatten(0, self.places.shape)

    def collect(self, padded: Tensor) -> Tensor:
        """[B, S, N] -> [T, N], what attention made of `lay_out`."""
        collected: Tensor = _Gather.apply(padded.flatten(0, 1), self.tokens, self.places.flatten())
        return collected

    def first(self, packed: Tensor) -> Tensor:
        """[T, N] -> [B, N], of the first token of each sequence."""
        return packed.index_select(0, self.starts[:-2])

    def at(self, packed: Tensor, positions: Tensor) -> Tensor:
        """[T, N], int64 [B, P] positions within sequences -> [B, P, N]."""
        places = positions + self.starts[:-2, None]
        return packed.index_select(0, places.flatten()).unflatten(0, positions.shape)


def packing_arrays(lengths: npt.NDArray[np.int64], size: int) -> dict[str, npt.NDArray[Any]]:
    """What `Packing.of` finds in a batch, made on the host, where lengths are known without asking a device.

    Args:
        lengths: int64 [B], tokens of each sequence, at least 1.
        size: S.

    Returns:
        Nothing where that saves nothing: no sequence is padded, or so few that rounding eats it up.
    """
    total = int(lengths.sum())
    rounded = -(-(total + 1) // MULTIPLE) * MULTIPLE
    if rounded >= lengths.size * size:
        return {}
    real = np.arange(size) < lengths[:, None]
    tokens = np.full(rounded, np.argmin(real), np.int64)
    tokens[:total] = np.flatnonzero(real)
    places = np.full(real.shape, rounded - 1, np.int64)
    places[real] = np.arange(total)
    starts = np.concatenate([[0], np.cumsum(lengths), [rounded]]).astype(np.int32)
    return {_PREFIX + "tokens": tokens, _PREFIX + "places": places, _PREFIX + "starts": starts}


class _Gather(torch.autograd.Function):
    """Rows by index; the gradient is gathered by the reverse index instead of scattered.

    That is right for this module's indices alone: a row that is taken more than once, or that the reverse index does
    not lead back to, has a gradient of zero.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, reverse: Tensor) -> Tensor:
        ctx.save_for_backward(reverse)
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (reverse,) = ctx.saved_tensors
        return grad.index_select(0, reverse), None, None
