"""Packed sequences: all tokens of a batch one after the other, so that padding is not computed.

Linear layers, LayerNorm, GELU and dropout do not depend on which sequence a token belongs to; only attention does. So
the encoder works on [T, H] instead of [B, S, H], where T is the number of tokens of a micro batch. GPUs have a kernel
for the attention of packed sequences. Elsewhere q, k and v are laid out padded and the result is gathered again, at the
cost of two copies. There, sequences of similar length form groups, so that little of the layout is padding; for that,
sequences are in order of length.

T is rounded up so that few shapes occur, by at least one token of a last sequence that holds only [PAD]. Its results
are not used, so its gradients are zero: a padded position may be filled from it in either direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MULTIPLE = 64
"""T is a multiple of it: matrix units prefer such sizes, and kernels compiled for a size are reused."""
SHORTEST_OF_GROUP = 2 / 3  # as a share of its longest
_PREFIX = "packing_"


class Group(NamedTuple):
    """Consecutive sequences that are laid out together."""

    tokens: Tensor
    """int64 [tokens of the group] position of each in [sequences * longest]."""
    places: Tensor
    """int64 [sequences, longest] the reverse; for padded positions, the first token."""
    mask: Tensor | None
    """bool [sequences, 1, 1, longest] True where a token is; None without padding."""
    padded: Tensor | None
    """int64 the padded positions in [sequences * longest]; None without padding."""

    def lay_out(self, packed: Tensor) -> Tensor:
        """Lay out the group's tokens, see `Packing.lay_out`."""
        return _lay_out(packed, self.places, self.tokens)

    def collect(self, padded: Tensor) -> Tensor:
        """Collect the group's tokens, see `Packing.collect`."""
        return _collect(padded, self.places, self.tokens, self.padded)


class Packing(NamedTuple):
    """Positions of the tokens of B sequences of up to S tokens in T places, the longest sequence first."""

    tokens: Tensor
    """int64 [T] position in [B * S] of each token; for filling tokens, the first padded position."""
    places: Tensor
    """int64 [B, S] the reverse; for padded positions, the last of the T."""
    starts: Tensor
    """int32 [B + 2] start of each sequence, in packed order, then of the filling sequence, then T."""
    kernel: bool = False
    """Whether attention takes packed sequences; set by the encoder."""
    groups: tuple[Group, ...] = ()
    """Groups that attention lays out together; empty: all sequences together. Set by the encoder."""

    @classmethod
    def from_batch(cls, batch: Mapping[str, Tensor]) -> Packing | None:
        """Return the packing among the tensors of a batch, or None."""
        if _PREFIX + "tokens" not in batch:
            return None
        return cls(batch[_PREFIX + "tokens"], batch[_PREFIX + "places"], batch[_PREFIX + "starts"])

    def pack(self, padded: Tensor) -> Tensor:
        """[B, S, ...] -> [T, ...], for tensors without a gradient, or with any gradient at padded positions."""
        return padded.flatten(0, 1).index_select(0, self.tokens)

    def lay_out(self, packed: Tensor) -> Tensor:
        """[T, N] -> [B, S, N] for attention, which neither uses padded positions nor gives them a gradient."""
        return _lay_out(packed, self.places, self.tokens)

    def collect(self, padded: Tensor) -> Tensor:
        """[B, S, N] -> [T, N], the result of attention on `lay_out`."""
        return _collect(padded, self.places, self.tokens)

    def grouped(self) -> Packing:
        """Add groups of sequences with at most a third of padding; only for a CPU, since it reads lengths."""
        lengths = self.starts.diff()[:-1]
        groups, first = [], 0
        for sequence, length in enumerate([*lengths.tolist(), 0]):
            if length < SHORTEST_OF_GROUP * int(lengths[first]):
                groups.append(_group(lengths[first:sequence]))
                first = sequence
        return self._replace(groups=tuple(groups))

    def first(self, packed: Tensor) -> Tensor:
        """[T, N] -> [B, N], the first token of each sequence."""
        return packed.index_select(0, self.places[:, 0])

    def at(self, packed: Tensor, positions: Tensor) -> Tensor:
        """[T, N], int64 [B, P] positions within sequences -> [B, P, N]."""
        return packed.index_select(0, (positions + self.places[:, :1]).flatten()).unflatten(0, positions.shape)


def packing_arrays(lengths: npt.NDArray[np.int64], size: int) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a batch for `Packing.from_batch`, computed on the host, which knows the lengths.

    Args:
        lengths: int64 [B], tokens of each sequence, at least 1.
        size: S.

    Returns:
        The arrays; none if packing saves nothing, because of little or no padding.
    """
    total = int(lengths.sum())
    rounded = -(-(total + 1) // MULTIPLE) * MULTIPLE
    if rounded >= lengths.size * size:
        return {}
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    sequences, positions = np.nonzero(np.arange(size) < ordered[:, None])
    tokens = np.empty(rounded, np.int64)
    tokens[:total] = order[sequences] * size + positions
    tokens[total:] = order[-1] * size + ordered[-1]  # a padded position, since the shortest sequence is padded
    places = np.full(lengths.size * size, rounded - 1, np.int64)
    places[tokens[:total]] = np.arange(total)
    starts = np.concatenate([[0], np.cumsum(ordered), [rounded]]).astype(np.int32)
    return {_PREFIX + "tokens": tokens, _PREFIX + "places": places.reshape(-1, size), _PREFIX + "starts": starts}


def _group(lengths: Tensor) -> Group:
    """Return the group of some sequences, given their lengths, the longest first."""
    real = torch.arange(int(lengths[0]), device=lengths.device) < lengths[:, None]
    tokens = real.flatten().nonzero().flatten()
    places = torch.zeros_like(real, dtype=torch.int64)
    places[real] = torch.arange(len(tokens), device=lengths.device)
    if len(tokens) == real.numel():
        return Group(tokens, places, None, None)
    return Group(tokens, places, real[:, None, None, :], real.logical_not().flatten().nonzero().flatten())


def _lay_out(packed: Tensor, places: Tensor, tokens: Tensor) -> Tensor:
    return _Gather.apply(packed, places.flatten(), tokens, None).unflatten(0, places.shape)


def _collect(padded: Tensor, places: Tensor, tokens: Tensor, unused: Tensor | None = None) -> Tensor:
    return _Gather.apply(padded.flatten(0, 1), tokens, places.flatten(), unused)


class _Gather(torch.autograd.Function):
    """Rows by index, whose gradient is gathered by the reverse index instead of scattered.

    This is correct for the indices of this module only: a row that is taken more than once, or that the reverse index
    does not reach, has a gradient of zero or is among the `unused` rows, whose gradient is set to zero.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, reverse: Tensor, unused: Tensor | None) -> Tensor:
        ctx.save_for_backward(reverse, unused)
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        reverse, unused = ctx.saved_tensors
        selected = grad.index_select(0, reverse)
        return selected if unused is None else selected.index_fill_(0, unused, 0), None, None, None
