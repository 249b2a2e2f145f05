"""Packed sequences: the tokens of a batch without padding, one sequence after the other.

Linear layers, LayerNorm, GELU and dropout do not depend on which sequence a token belongs to; only attention does. So
the encoder works on [T, H] instead of [B, S, H], where T is the number of tokens of a micro batch. GPUs have a kernel
for the attention of packed sequences. On other devices q, k and v are copied to a padded layout and the result is
gathered again. Groups of sequences of similar length keep this layout small, so sequences are sorted by length.

T is rounded up so that few shapes occur, by last sequences of [PAD] with at least one token. Their results are not
used, so their gradients are zero: padded positions can be filled from them in the forward and the backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MULTIPLE = 64
"""T is a multiple of this: matrix units are fastest at such sizes, and few sizes need few compiled kernels."""
SHORTEST_OF_GROUP = 2 / 3  # shortest sequence of a group relative to its longest: at most a third is padding
_PREFIX = "packing_"


class Group(NamedTuple):
    """Consecutive sequences that share a padded layout."""

    tokens: Tensor
    """int64 [tokens of the group] position of each in [sequences * longest]."""
    places: Tensor
    """int64 [sequences, longest] the inverse; for padded positions, the first token."""
    mask: Tensor | None
    """bool [sequences, 1, 1, longest] True where a token is; None without padding."""
    padded: Tensor | None
    """int64 the padded positions in [sequences * longest]; None without padding."""

    def lay_out(self, packed: Tensor) -> Tensor:
        """Copy the group's tokens [tokens, N] to the padded layout [sequences, longest, N]; see `Packing.lay_out`."""
        return _lay_out(packed, self.places, self.tokens)

    def collect(self, padded: Tensor) -> Tensor:
        """Gather the group's tokens from the padded layout, the inverse of `lay_out`."""
        return _collect(padded, self.places, self.tokens, self.padded)


class Packing(NamedTuple):
    """Positions of the tokens of B sequences of up to S tokens in T places, the longest sequence first."""

    tokens: Tensor
    """int64 [T] position in [B * S] of each token; for filling tokens, a padded position, or 0 without padding."""
    places: Tensor
    """int64 [B, S] the inverse; for padded positions, the last of the T."""
    starts: Tensor
    """int32 [B + F + 1] start of each sequence, in packed order, then of F filling sequences, then T."""
    kernel: bool = False
    """Whether attention has a kernel for packed sequences; set by the encoder."""
    groups: tuple[Group, ...] = ()
    """Groups of sequences with a common padded layout; empty: one layout for all. Set by the encoder."""

    @classmethod
    def from_batch(cls, batch: Mapping[str, Tensor]) -> Packing | None:
        """Return the packing of a batch, made from its `packing_arrays`; None if it has none."""
        if _PREFIX + "tokens" not in batch:
            return None
        return cls(batch[_PREFIX + "tokens"], batch[_PREFIX + "places"], batch[_PREFIX + "starts"])

    def pack(self, padded: Tensor) -> Tensor:
        """Gather [B, S, ...] to [T, ...]; for tensors whose gradient at padded positions does not matter."""
        return padded.flatten(0, 1).index_select(0, self.tokens)

    def lay_out(self, packed: Tensor) -> Tensor:
        """Copy [T, N] to [B, S, N] for attention, which ignores padded positions and gives them no gradient."""
        # In a batch without padding, filling tokens have the position of a real one, whose gradient they must not get.
        numbers = torch.arange(len(self.tokens), device=packed.device)
        filling = self.places.flatten().index_select(0, self.tokens) != numbers
        return _lay_out(packed, self.places, self.tokens, filling)

    def collect(self, padded: Tensor) -> Tensor:
        """Gather [B, S, N], the result of attention, to [T, N]: the inverse of `lay_out`."""
        return _collect(padded, self.places, self.tokens)

    def grouped(self) -> Packing:
        """Return the packing with groups of sequences in which at most a third is padding."""
        # Only for a CPU: reading the lengths on the host would make a GPU synchronise. The 0 at the end closes the last
        # group.
        lengths = self.starts.diff()[: len(self.places)]
        groups, first = [], 0
        for sequence, length in enumerate([*lengths.tolist(), 0]):
            if length < SHORTEST_OF_GROUP * int(lengths[first]):
                groups.append(_group(lengths[first:sequence]))
                first = sequence
        return self._replace(groups=tuple(groups))

    def first(self, packed: Tensor) -> Tensor:
        """Gather the first token of each sequence: [T, N] to [B, N]."""
        return packed.index_select(0, self.places[:, 0])

    def at(self, packed: Tensor, positions: Tensor) -> Tensor:
        """Gather the tokens at positions within sequences, int64 [B, P]: [T, N] to [B, P, N]."""
        return packed.index_select(0, (positions + self.places[:, :1]).flatten()).unflatten(0, positions.shape)


def longest_sequence(size: int) -> int:
    """Return the most tokens of a packed sequence, filling sequences included, where padded ones have `size` tokens."""
    return max(size, MULTIPLE)


def graph_multiple(sequences: int, size: int) -> int:
    """Return the number of which T should be a multiple if each T has a CUDA graph of its own.

    Args:
        sequences: B, sequences of a micro batch.
        size: S, tokens of the padded sequences.
    """
    # A 32nd of all tokens: in 200 micro batches of pairs, T has up to 6 values with 128 tokens and up to 24 with 512,
    # for 0.8 to 2.7% more tokens (benchmarks/sequence_use.py).
    return max(MULTIPLE, sequences * size // 32 // MULTIPLE * MULTIPLE)


def packing_arrays(
    lengths: npt.NDArray[np.int64], size: int, *, always: bool = False, multiple: int = MULTIPLE
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a batch for `Packing.from_batch`, computed on the host.

    Args:
        lengths: int64 [B], tokens of each sequence, at least 1.
        size: S, tokens of the padded sequences.
        always: pack every batch, as on a GPU: attention with a mask needs more memory there than the packed kernel,
            and each kind of batch would be compiled.
        multiple: T is a multiple of this, itself a multiple of `MULTIPLE`.

    Returns:
        Name -> array; empty if there is so little padding that packing saves nothing, unless `always`.
    """
    total = int(lengths.sum())
    # Filling sequences of at least one and at most `longest_sequence` tokens, whose number is the same for every batch:
    # `starts` then has one shape.
    fillings = -(-(multiple - 1) // (longest_sequence(size) - 1))
    rounded = -(-(total + fillings) // multiple) * multiple
    if rounded >= lengths.size * size and not always:
        return {}
    # stable: equal lengths keep their order, so that the result does not depend on the sorting algorithm
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    sequences, positions = np.nonzero(np.arange(size) < ordered[:, None])
    tokens = np.empty(rounded, np.int64)
    tokens[:total] = order[sequences] * size + positions
    # a padded position of the shortest sequence; without padding, any position: nothing uses these results, and
    # `Packing.lay_out` gives them no gradient
    tokens[total:] = order[-1] * size + ordered[-1] if ordered[-1] < size else 0
    places = np.full(lengths.size * size, rounded - 1, np.int64)
    places[tokens[:total]] = np.arange(total)
    ends = total + np.arange(1, fillings + 1) * (rounded - total) // fillings
    starts = np.concatenate([[0], np.cumsum(ordered), ends]).astype(np.int32)
    return {_PREFIX + "tokens": tokens, _PREFIX + "places": places.reshape(-1, size), _PREFIX + "starts": starts}


def _group(lengths: Tensor) -> Group:
    """Return the group of consecutive sequences, given their lengths, int64 [sequences], the longest first."""
    real = torch.arange(int(lengths[0]), device=lengths.device) < lengths[:, None]
    tokens = real.flatten().nonzero().flatten()
    places = torch.zeros_like(real, dtype=torch.int64)
    places[real] = torch.arange(len(tokens), device=lengths.device)
    if len(tokens) == real.numel():
        return Group(tokens, places, None, None)
    return Group(tokens, places, real[:, None, None, :], real.logical_not().flatten().nonzero().flatten())


def _lay_out(packed: Tensor, places: Tensor, tokens: Tensor, filling: Tensor | None = None) -> Tensor:
    return _Gather.apply(packed, places.flatten(), tokens, filling).unflatten(0, places.shape)


def _collect(padded: Tensor, places: Tensor, tokens: Tensor, unused: Tensor | None = None) -> Tensor:
    return _Gather.apply(padded.flatten(0, 1), tokens, places.flatten(), unused)


class _Gather(torch.autograd.Function):
    """Selection of rows by index, whose gradient is gathered by the inverse index instead of scattered."""

    # index_select's own backward pass is index_add: atomic additions on a GPU, so neither fast nor deterministic. A
    # gather is both, but correct for the indices of this module only: a row that is selected more than once, or that
    # the inverse index does not reach, has a gradient of zero or is one of the `unused` rows, whose gradient is set to
    # zero. These are given by number, or by a mask.

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, reverse: Tensor, unused: Tensor | None) -> Tensor:
        ctx.save_for_backward(reverse, unused)
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        reverse, unused = ctx.saved_tensors
        selected = grad.index_select(0, reverse)
        if unused is not None and unused.dtype == torch.bool:
            selected = selected.masked_fill_(unused[:, None], 0)
        elif unused is not None:
            selected = selected.index_fill_(0, unused, 0)
        return selected, None, None, None
