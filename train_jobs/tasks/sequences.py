"""Texts as sequences of tokens, and batches of them: padded to the longest row, in an order that the seed decides."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from train_jobs.models.bert.encoder import PAD_ID
from train_jobs.tasks.rows.labelled import Examples

Ints = npt.NDArray[np.int64]
Targets = npt.NDArray[np.generic]

IGNORED = -100  # of a class; of a number it is NaN
GROUPED_BATCHES = 50  # global batches whose rows are put in order of length together


@dataclass(frozen=True)
class Batch:
    """Rows padded to the longest of them."""

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

    def slice(self, start: int, stop: int) -> Batch:
        """Rows start to stop, without the columns that all of them pad."""
        lengths, targets = self.lengths[start:stop], self.targets[start:stop]
        longest = lengths.max()
        of_tokens = self.targets.shape == self.input_ids.shape
        return Batch(
            self.input_ids[start:stop, :longest],
            self.token_type_ids[start:stop, :longest],
            lengths,
            targets[:, :longest] if of_tokens else targets,
        )

    @property
    def tokens(self) -> int:
        """Tokens, padding left out."""
        return int(self.lengths.sum())


@dataclass(frozen=True)
class Encoded:
    """All rows of a split as tokens: [CLS] text [SEP], or [CLS] text [SEP] pair [SEP]."""

    ids: list[Ints]
    seconds: Ints
    """[rows] where the second text begins; the row's length if there is none."""
    targets: Targets
    """[rows] or [rows, 2], as a batch has them."""
    cut: int = 0
    """Rows of which something was cut off."""

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def lengths(self) -> Ints:
        """[rows] tokens."""
        return np.fromiter(map(len, self.ids), np.int64, len(self.ids))

    @cached_property
    def begins(self) -> Ints:
        """[rows] number of each row's first token, among those of all rows."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def sha256(self) -> str:
        """Of what training sees."""
        digest = hashlib.sha256(self.targets.tobytes())
        for ids in self.ids:
            digest.update(ids.tobytes())
        return digest.hexdigest()

    def batch(self, rows: Ints, *, counted: bool = True) -> Batch:
        """Some rows; not `counted`, none of their targets counts."""
        ids = [self.ids[row] for row in rows]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        place = np.arange(lengths.max())
        padded = np.full((len(ids), len(place)), PAD_ID, np.int64)
        padded[place < lengths[:, None]] = np.concatenate(ids)
        segments = (place >= self.seconds[rows, None]) & (place < lengths[:, None])
        targets = self._batch_targets(rows, place < lengths[:, None])
        if not counted:
            targets = np.full_like(targets, IGNORED if targets.dtype.kind == "i" else np.nan)
        return Batch(padded, segments.astype(np.int64), lengths, targets)

    def tokens_of(self, rows: Ints) -> Ints:
        """Numbers of the tokens of some rows, one row behind the other, among those of all rows."""
        return np.concatenate([np.arange(self.begins[row], self.begins[row] + self.lengths[row]) for row in rows])

    def _batch_targets(self, rows: Ints, real: npt.NDArray[np.bool_]) -> Targets:
        """Targets of some rows, whose tokens are where `real`, [rows, length], is true."""
        return self.targets[rows]


class Tagged(Encoded):
    """Rows whose tokens have a target each: `targets` has those of all rows, one behind the other."""

    def _batch_targets(self, rows: Ints, real: npt.NDArray[np.bool_]) -> Targets:
        targets = np.full(real.shape, IGNORED, np.int64)
        targets[real] = self.targets[self.tokens_of(rows)]
        return targets


def encode(examples: Examples, tokenizer: Tokenizer, *, max_length: int, regression: bool) -> Encoded:
    """Tokens of a split.

    Args:
        examples: the split; without labels no target counts.
        tokenizer: splits text.
        max_length: tokens of a sequence. Of a text too long the end is cut off; of two that of the longer, then
            of both alike, as Hugging Face's `longest_first` does.
        regression: targets are numbers.
    """
    cls, sep = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    first = _tokens(tokenizer, examples.texts)
    second = None if examples.pairs is None else _tokens(tokenizer, examples.pairs)
    ids, seconds, cut = [], np.zeros(len(examples), np.int64), 0
    for row, one in enumerate(first):
        other = [] if second is None else second[row]
        kept, kept_other = fitted(len(one), len(other), max_length - (2 if second is None else 3))
        cut += (kept, kept_other) != (len(one), len(other))
        found = [cls, *one[:kept], sep]
        seconds[row] = len(found)
        ids.append(np.array(found if second is None else [*found, *other[:kept_other], sep], np.int64))
    if examples.labels is None:
        targets: Targets = np.full(len(ids), np.nan, np.float32) if regression else np.full(len(ids), IGNORED, np.int64)
    else:
        targets = np.array(examples.labels, np.float32 if regression else np.int64)
    return Encoded(ids, seconds, targets, cut)


def fitted(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each of two texts stay, if both together have room for so many."""
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    if shorter <= room // 2:
        return (shorter, room - shorter) if first <= second else (room - shorter, shorter)
    return (room // 2, room - room // 2) if first <= second else (room - room // 2, room // 2)


def epoch_batches(lengths: Ints, *, global_batch_size: int, seed: int, epoch: int, group_by_length: bool) -> list[Ints]:
    """Row numbers of each global batch of an epoch: every row once, the last batch has the rest.

    Args:
        lengths: tokens of each row.
        global_batch_size: rows of a batch.
        seed: with the epoch decides the order.
        epoch: counted from 0.
        group_by_length: rows of so many batches at a time are put in order of length before they are cut into
            batches, whose order then is drawn.
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


def by_length(lengths: Ints, size: int) -> list[Ints]:
    """Row numbers in batches of rows of about one length, the longest first: memory that lasts once lasts."""
    return _cut(np.argsort(-lengths, kind="stable"), size)


def _cut(rows: Ints, size: int) -> list[Ints]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [found.ids for found in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
