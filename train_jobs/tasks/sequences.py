"""Texts as token sequences, and batches of them: padded to the longest row, in an order that depends on the seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from train_jobs.engine.loop.staging import to_device
from train_jobs.models.bert.encoder import PAD_ID
from train_jobs.models.bert.pretraining_heads import length_mask
from train_jobs.models.packing import Packing, packing_arrays

Ints = npt.NDArray[np.int64]
Targets = npt.NDArray[np.generic]

IGNORED = -100  # target of an unlabelled class; NaN for numbers
# Global batches whose rows are sorted by length together: transformers' group_by_length uses 50 batches as well.
# Sorting a whole epoch would make its batches the same in every epoch.
GROUPED_BATCHES = 50


class Tokens(NamedTuple):
    """One sequence: [CLS] text [SEP], or [CLS] text [SEP] pair [SEP]."""

    ids: Ints
    """[length]"""
    second: int
    """Position of the second segment, or the length of a single text."""


class TokenBatch(NamedTuple):
    """Token sequences on a device; the first four fields are the arguments of a model."""

    input_ids: Tensor
    """int64 [B, S]"""
    token_type_ids: Tensor
    """int64 [B, S]"""
    attention_mask: Tensor | None
    """bool [B, S]; None without padding, or with a packing."""
    packing: Packing | None
    lengths: Tensor
    """int64 [B] tokens of each sequence."""
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
            unpad: whether to pack the tokens if that saves computation.
            rows: numbers of the sequences.
        """
        tensors = to_device(token_arrays(arrays, unpad=unpad, always=device.type == "cuda"), device)
        return cls.of_tensors(tensors, is_padded=bool(arrays[2].min() < arrays[0].shape[1]), rows=rows)

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], *, is_padded: bool, rows: Sequence[int] = ()) -> TokenBatch:
        """Return the batch of the tensors of `token_arrays`.

        Args:
            tensors: on one device, by name; others are ignored.
            is_padded: whether any sequence is shorter than the longest; the caller knows it from the host.
            rows: numbers of the sequences.
        """
        input_ids, packing = tensors["input_ids"], Packing.from_batch(tensors)
        mask = length_mask(tensors["lengths"], input_ids.shape[1]) if is_padded and packing is None else None
        return cls(input_ids, tensors["token_type_ids"], mask, packing, tensors["lengths"], rows)


def token_arrays(arrays: tuple[Ints, Ints, Ints], *, unpad: bool, always: bool = False) -> dict[str, npt.NDArray[Any]]:
    """Return padded sequences by name, as `TokenBatch.of_tensors` needs them.

    Args:
        arrays: input ids, segments and lengths, as `padded` returns them.
        unpad: whether to pack the tokens if that saves computation.
        always: whether to pack every batch, as on GPUs.
    """
    input_ids, segments, lengths = arrays
    packed = packing_arrays(lengths, input_ids.shape[1], always=always) if unpad else {}
    return {"input_ids": input_ids, "token_type_ids": segments, "lengths": lengths, **packed}


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
        """Return the rows from start to stop, without the columns that are padding in all of them."""
        lengths, targets = self.lengths[start:stop], self.targets[start:stop]
        longest = lengths.max()
        # the shape decides: only tags have one target for each token
        of_tokens = self.targets.shape == self.input_ids.shape
        return RowBatch(
            self.input_ids[start:stop, :longest],
            self.token_type_ids[start:stop, :longest],
            lengths,
            targets[:, :longest] if of_tokens else targets,
        )

    @property
    def tokens(self) -> int:
        """Number of tokens, without padding."""
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
        """[rows] index of each row's first token among the tokens of the split."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of tokens and targets, in hexadecimal."""
        # It identifies the data in checkpoints and in the lineage: other rows, labels or truncation change it.
        digest = hashlib.sha256(self.targets.tobytes())
        for ids in self.ids:
            digest.update(ids.tobytes())
        return digest.hexdigest()

    def batch(self, rows: Ints, *, counted: bool = True) -> RowBatch:
        """Return a padded batch.

        Args:
            rows: indices of the rows.
            counted: False: replace all targets by IGNORED or NaN.
        """
        arrays = padded([self.ids[row] for row in rows], self.seconds[rows])
        targets = self._batch_targets(rows, arrays[0].shape[1])
        if not counted:
            targets = np.full_like(targets, IGNORED if targets.dtype.kind == "i" else np.nan)
        return RowBatch(*arrays, targets)

    def tokens_of(self, rows: Ints) -> Ints:
        """Return the indices of the tokens of `rows` among the tokens of the split, in the order of `rows`."""
        return np.concatenate([np.arange(self.begins[row], self.begins[row] + self.lengths[row]) for row in rows])

    def blank_targets(self, rows: int, size: int) -> Targets:
        """Return targets for synthetic rows, all 0.

        Args:
            rows: number of rows.
            size: tokens of each row.
        """
        return np.zeros((rows, *self.targets.shape[1:]), self.targets.dtype)

    def _batch_targets(self, rows: Ints, size: int) -> Targets:
        return self.targets[rows]


class TaggedRows(EncodedRows):
    """Rows with a target for each token; `targets` is the concatenation of those of all rows."""

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
        ids: tokens of each sequence.
        seconds: [rows] position of the second segment of each sequence.

    Returns:
        Input ids and segments (0 or 1; 0 for padding), [rows, longest], and lengths, [rows].
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
    """Return [CLS] first [SEP], or [CLS] first [SEP] second [SEP].

    Args:
        cls: id of [CLS].
        sep: id of [SEP].
        first: ids of the first segment.
        second: ids of the second segment. None: one segment.
    """
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
        pairs: second texts. None: single texts.
        max_length: maximum tokens of a sequence, special tokens included. A text that is too long loses its end; of a
            pair the longer text does, then both alternately, as with Hugging Face's `longest_first`.

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
    """Return the number of tokens to keep of each of two texts.

    Args:
        first: tokens of the first text.
        second: tokens of the second text.
        room: tokens that fit, without special tokens.
    """
    # The result of removing one token at a time from the longer text, in one step. An odd `room` leaves one token more
    # to the longer text, and in a tie to the second, as Hugging Face's fast tokenizer does.
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    if shorter <= room // 2:
        return (shorter, room - shorter) if first <= second else (room - shorter, shorter)
    return (room // 2, room - room // 2) if first <= second else (room - room // 2, room // 2)


def epoch_batches(lengths: Ints, *, global_batch_size: int, seed: int, epoch: int, group_by_length: bool) -> list[Ints]:
    """Return the row indices of each global batch of an epoch; every row occurs once, the last batch may be smaller.

    Args:
        lengths: tokens of each row.
        global_batch_size: rows per batch.
        seed: decides the order, together with the epoch.
        epoch: number of the epoch, from 0.
        group_by_length: sort the rows of GROUPED_BATCHES batches by length before they are split into batches, then
            shuffle the batches.
    """
    rng = np.random.default_rng([seed, epoch])
    rows = rng.permutation(len(lengths))
    if not group_by_length:
        return _split(rows, global_batch_size)
    ordered = [
        group[np.argsort(-lengths[group], kind="stable")] for group in _split(rows, GROUPED_BATCHES * global_batch_size)
    ]
    # Shuffled, or an epoch would go from long to short sequences 50 batches at a time. The smaller batch stays the
    # last.
    *full, last = _split(np.concatenate(ordered), global_batch_size)
    return [*(full[number] for number in rng.permutation(len(full))), last]


def batches_by_length(lengths: Ints, size: int) -> list[Ints]:
    """Return row indices in batches of similar length, the longest first.

    Args:
        lengths: tokens of each row.
        size: rows per batch.
    """
    # The longest first: memory runs out in the first batch or never. Stable, so that all processes form the same
    # batches.
    return _split(np.argsort(-lengths, kind="stable"), size)


def _split(rows: Ints, size: int) -> list[Ints]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _token_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [one.ids for one in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
