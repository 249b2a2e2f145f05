"""Sequences one behind the other, without padding: what is no token is not computed.

Of the linear layers, LayerNorm, GELU and dropout none minds which sequence a token belongs to; attention alone does.
So the encoder works on [T, H] instead of [B, S, H], T being the tokens of a micro batch. GPUs have a kernel for the
attention of such sequences; elsewhere q, k and v are laid out padded for it and its result is gathered again, which
costs two copies. There sequences of about one length are taken together, so that little of it is padding either; for
that they lie in order of length.

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
SHORTEST_OF_GROUP = 2 / 3  # times its longest
_PREFIX = "packing_"


class Group(NamedTuple):
    """Some of the sequences, one behind the other, that are laid out together."""

    tokens: Tensor
    """int64 [tokens of the group] place in [sequences * longest] of each."""
    places: Tensor
    """int64 [sequences, longest] the reverse; of a padded place the first token."""
    mask: Tensor | None
    """bool [sequences, 1, 1, longest] True where a token is; None if no place is padded."""
    padded: Tensor | None
    """int64 the padded places in [sequences * longest]; None if there is none."""

    def lay_out(self, packed: Tensor) -> Tensor:
        """As `Packing.lay_out`, of the group's tokens."""
        return _lay_out(packed, self.places, self.tokens)

    def collect(self, padded: Tensor) -> Tensor:
        """As `Packing.collect`."""
        return _collect(padded, self.places, self.tokens, self.padded)


class Packing(NamedTuple):
    """Where the tokens of B sequences of up to S tokens lie in T places, the longest sequence first."""

    tokens: Tensor
    """int64 [T] place in [B * S] of each token; of those that fill up, the first padded place."""
    places: Tensor
    """int64 [B, S] the reverse; of a padded place the last of the T."""
    starts: Tensor
    """int32 [B + 2] where each sequence begins, in the order in which they lie, the one that fills up last, and T."""
    kernel: bool = False
    """Attention takes them as they are: the encoder's to set."""
    groups: tuple[Group, ...] = ()
    """What attention lays out together, if not all: the encoder's to set."""

    @classmethod
    def of(cls, batch: Mapping[str, Tensor]) -> Packing | None:
        """The packing among the tensors of a batch, if it has one."""
        if _PREFIX + "tokens" not in batch:
            return None
        return cls(batch[_PREFIX + "tokens"], batch[_PREFIX + "places"], batch[_PREFIX + "starts"])

    def pack(self, padded: Tensor) -> Tensor:
        """[B, S, ...] -> [T, ...], for what has no gradient or may have one at padded places."""
        return padded.flatten(0, 1).index_select(0, self.tokens)

    def lay_out(self, packed: Tensor) -> Tensor:
        """[T, N] -> [B, S, N] for attention, which neither uses nor gives a gradient to padded places."""
        return _lay_out(packed, self.places, self.tokens)

    def collect(self, padded: Tensor) -> Tensor:
        """[B, S, N] -> [T, N], what attention made of `lay_out`."""
        return _collect(padded, self.places, self.tokens)

    def grouped(self) -> Packing:
        """With groups of sequences that are padded by a third at most, for a device that need not be waited for."""
        lengths = self.starts.diff()[:-1]
        groups, first = [], 0
        for sequence, length in enumerate([*lengths.tolist(), 0]):
            if length < SHORTEST_OF_GROUP * int(lengths[first]):
                groups.append(_group(lengths[first:sequence]))
                first = sequence
        return self._replace(groups=tuple(groups))

    def first(self, packed: Tensor) -> Tensor:
        """[T, N] -> [B, N], of the first token of each sequence."""
        return packed.index_select(0, self.places[:, 0])

    def at(self, packed: Tensor, positions: Tensor) -> Tensor:
        """[T, N], int64 [B, P] positions within sequences -> [B, P, N]."""
        places = positions + self.places[:, :1]
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
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    sequences, positions = np.nonzero(np.arange(size) < ordered[:, None])
    tokens = np.empty(rounded, np.int64)
    tokens[:total] = order[sequences] * size + positions
    tokens[total:] = order[-1] * size + ordered[-1]  # a padded place, since the shortest sequence is padded
    places = np.full(lengths.size * size, rounded - 1, np.int64)
    places[tokens[:total]] = np.arange(total)
    starts = np.concatenate([[0], np.cumsum(ordered), [rounded]]).astype(np.int32)
    return {_PREFIX + "tokens": tokens, _PREFIX + "places": places.reshape(-1, size), _PREFIX + "starts": starts}


def _group(lengths: Tensor) -> Group:
    """The group of some sequences, the longest of them first."""
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
    """Rows by index; the gradient is gathered by the reverse index instead of scattered.

    That is right for this module's indices alone: a row that is taken more than once, or that the reverse index does
    not lead back to, has a gradient of zero, or is one of the `unused`, whose gradient is made zero.
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
