"""Texts as token sequences, and batches of them: padded to the longest row, in an order that the seed decides."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from train_jobs.models.bert.encoder import PAD_ID
from train_jobs.models.bert.pretraining_heads import length_mask
from train_jobs.models.packing import Packing, packing_arrays

Ints = npt.NDArray[np.int64]
Targets = npt.NDArray[np.generic]

IGNORED = -100  # target of a class that does not count; NaN is that of a number
GROUPED_BATCHES = 50  # global batches whose rows are sorted by length together


class Tokens(NamedTuple):
    """One sequence: [CLS] text [SEP], or [CLS] text [SEP] pair [SEP]."""

    ids: Ints
    """[length]"""
    second: int
    """Position of the second segment; the length without one."""


class TokenBatch(NamedTuple):
    """Sequences on a device; the first four fields are the arguments of a model."""

    input_ids: Tensor
    """int64 [B, S]"""
    token_type_ids: Tensor
    """int64 [B, S]"""
    attention_mask: Tensor | None
    """bool [B, S]; None without padding, or with a packing."""
    packing: Packing | None
    lengths: Tensor
    """int64 [B] tokens of each."""
    rows: Sequence[int]
    """Numbers of the sequences."""

    @classmethod
    def on_device(
        cls,
        arrays: tuple[Ints, Ints, Ints],
        device: torch.device,
        *,
        unpad: bool = True,
        rows: Sequence[int] = (),
    ) -> TokenBatch:
        """Copy padded sequences to a device.

        Args:
            arrays: input ids, segments and lengths, as `padded` returns them.
            device: device of the model.
            unpad: pack the tokens where that saves computation.
            rows: numbers of the sequences.
        """
        input_ids, segments, lengths = arrays
        size = input_ids.shape[1]
        packed: dict[str, npt.NDArray[Any]] = packing_arrays(lengths, size) if unpad else {}
        named = {"input_ids": input_ids, "token_type_ids": segments, "lengths": lengths, **packed}
        there = {name: torch.from_numpy(array).to(device) for name, array in named.items()}
        packing = Packing.from_batch(there)
        masked = packing is None and bool(lengths.min() < size)
        mask = length_mask(there["lengths"], size) if masked else None
        return cls(there["input_ids"], there["token_type_ids"], mask, packing, there["lengths"], rows)


@dataclass(frozen=True)
class RowBatch:
    """Rows padded to the longest of them, with their targets."""

    input_ids: Ints
    """[rows, length]"""
    token_type_ids: Ints
    """[rows, length] 1 for the second text and its [SEP]."""
    lengths: Ints
    """[rows] tokens without padding."""
    targets: Targets
    """[rows] int64 classes or float32 numbers, [rows, 2] first and last tokens of answers, or [rows, length] tags of
    tokens; IGNORED or NaN where none counts."""

    def __len__(self) -> int:
        return len(self.lengths)

    def slice(self, start: int, stop: int) -> RowBatch:
        """Return rows start to stop, without the columns that are padding in all of them."""
        lengths, targets = self.lengths[start:stop], self.targets[start:stop]
        longest = lengths.max()
        of_tokens = self.targets.shape == self.input_ids.shape
        return RowBatch(
            self.input_ids[start:stop, :longest],
            self.token_type_ids[start:stop, :longest],
            lengths,
            targets[:, :longest] if of_tokens else targets,
        )

    @property
    def tokens(self) -> int:
        """Tokens without padding."""
        return int(self.lengths.sum())


@dataclass(frozen=True)
class EncodedRows:
    """All rows of a split as tokens: [CLS] text [SEP], or [CLS] text [SEP] pair [SEP]."""

    ids: list[Ints]
    seconds: Ints
    """[rows] position of the second text; the row's length without one."""
    targets: Targets
    """[rows] or [rows, 2], as in a batch."""
    truncated: int = 0
    """Number of truncated rows."""

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def lengths(self) -> Ints:
        """[rows] tokens."""
        return np.fromiter(map(len, self.ids), np.int64, len(self.ids))

    @cached_property
    def begins(self) -> Ints:
        """[rows] number of each row's first token, counted over all rows."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def sha256(self) -> str:
        """Hash of tokens and targets."""
        digest = hashlib.sha256(self.targets.tobytes())
        for ids in self.ids:
            digest.update(ids.tobytes())
        return digest.hexdigest()

    def batch(self, rows: Ints, *, counted: bool = True) -> RowBatch:
        """Return a batch of some rows; unless `counted`, none of their targets counts."""
        arrays = padded([self.ids[row] for row in rows], self.seconds[rows])
        targets = self._batch_targets(rows, arrays[0].shape[1])
        if not counted:
            targets = np.full_like(targets, IGNORED if targets.dtype.kind == "i" else np.nan)
        return RowBatch(*arrays, targets)

    def tokens_of(self, rows: Ints) -> Ints:
        """Return the numbers of the tokens of some rows, in their order, counted over all rows."""
        return np.concatenate([np.arange(self.begins[row], self.begins[row] + self.lengths[row]) for row in rows])

    def blank_targets(self, rows: int, size: int) -> Targets:
        """Return targets of `rows` rows of `size` tokens, all 0 and all counted."""
        return np.zeros((rows, *self.targets.shape[1:]), self.targets.dtype)

    def _batch_targets(self, rows: Ints, size: int) -> Targets:
        return self.targets[rows]


class TaggedRows(EncodedRows):
    """Rows with a target for each token: `targets` concatenates those of all rows."""

    def blank_targets(self, rows: int, size: int) -> Targets:
        return np.zeros((rows, size), np.int64)

    def _batch_targets(self, rows: Ints, size: int) -> Targets:
        real = np.arange(size) < self.lengths[rows, None]
        targets = np.full(real.shape, IGNORED, np.int64)
        targets[real] = self.targets[self.tokens_of(rows)]
        return targets


def padded(ids: Sequence[Ints], seconds: Ints) -> tuple[Ints, Ints, Ints]:
    """Pad sequences to the longest.

    Args:
        ids: tokens of each.
        seconds: [rows] position of the second segment of each.

    Returns:
        Input ids and segments, [rows, longest], and lengths, [rows].
    """
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    place = np.arange(lengths.max())
    real = place < lengths[:, None]
    input_ids = np.full(real.shape, PAD_ID, np.int64)
    input_ids[real] = np.concatenate(ids)
    return input_ids, ((place >= seconds[:, None]) & real).astype(np.int64), lengths


def special_ids(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the ids of [CLS] and [SEP]."""
    cls, sep = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    assert cls is not None, "every BERT vocabulary has both"
    assert sep is not None, "every BERT vocabulary has both"
    return cls, sep


def join_segments(cls: int, sep: int, first: Sequence[int], second: Sequence[int] | None = None) -> Tokens:
    """Return [CLS] first [SEP], or [CLS] first [SEP] second [SEP]."""
    ids = [cls, *first, sep]
    behind = [] if second is None else [*second, sep]
    return Tokens(np.array([*ids, *behind], np.int64), len(ids))


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int
) -> tuple[list[Tokens], int]:
    """Encode each text, or pair of texts, as one sequence.

    Args:
        tokenizer: tokenizer of the model.
        texts: first texts.
        pairs: second texts.
        max_length: tokens of a sequence. A text that is too long loses its end; of two the longer, then both by turns,
            as with Hugging Face's `longest_first`.

    Returns:
        The sequences, and the number of truncated ones.
    """
    cls, sep = special_ids(tokenizer)
    first = _token_ids(tokenizer, texts)
    second: Iterable[list[int] | None] = repeat(None) if pairs is None else _token_ids(tokenizer, pairs)
    room = max_length - (2 if pairs is None else 3)
    found, cut = [], 0
    for one, other in zip(first, second, strict=False):
        kept, kept_other = truncated_lengths(len(one), len(other or ()), room)
        cut += kept + kept_other < len(one) + len(other or ())
        found.append(join_segments(cls, sep, one[:kept], None if other is None else other[:kept_other]))
    return found, cut


def truncated_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of each of two texts are kept if `room` tokens fit."""
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    if shorter <= room // 2:
        return (shorter, room - shorter) if first <= second else (room - shorter, shorter)
    return (room // 2, room - room // 2) if first <= second else (room - room // 2, room // 2)


def epoch_batches(lengths: Ints, *, global_batch_size: int, seed: int, epoch: int, group_by_length: bool) -> list[Ints]:
    """Return the row numbers of each global batch of an epoch: every row once, the last batch has the rest.

    Args:
        lengths: tokens of each row.
        global_batch_size: rows of a batch.
        seed: decides the order, together with the epoch.
        epoch: counted from 0.
        group_by_length: sort the rows of GROUPED_BATCHES batches by length before they are cut into batches, then draw
            the order of the batches.
    """
    rng = np.random.default_rng([seed, epoch])
    rows = rng.permutation(len(lengths))
    if not group_by_length:
        return _cut(rows, global_batch_size)
    ordered = [
        group[np.argsort(-lengths[group], kind="stable")] for group in _cut(rows, GROUPED_BATCHES * global_batch_size)
    ]
    *whole, last = _cut(np.concatenate(ordered), global_batch_size)
    return [*(whole[number] for number in rng.permutation(len(whole))), last]


def batches_by_length(lengths: Ints, size: int) -> list[Ints]:
    """Return row numbers in batches of similar length, longest first: memory runs out in the first batch or never."""
    return _cut(np.argsort(-lengths, kind="stable"), size)


def _cut(rows: Ints, size: int) -> list[Ints]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _token_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [one.ids for one in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
