"""Batches of numpy arrays for pretraining; they do not depend on the number of processes that share them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from train_jobs.artifacts.store_manifest import SpecialIds, Split
from train_jobs.config.pretrain import DataConfig, ObjectiveConfig
from train_jobs.corpus.examples.example_stream import Cursor, ExampleSpan, ExampleStream, source_blocks
from train_jobs.corpus.examples.masking import Flags, Ids, MaskingRule, keys, mask_tokens
from train_jobs.corpus.examples.pairs import Plan, PlanBlock
from train_jobs.corpus.examples.validation_sample import VALIDATION_SEED, HeldOutSample, validation_sample
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.corpus.tokenize.vocabulary import continuing_pieces

MASK_STREAM = 3
VALIDATION_PROBABILITY = 0.15  # of pieces, whatever training masks, so that losses are comparable


@dataclass(frozen=True)
class Batch:
    """Sequences [CLS] A [SEP] B [SEP], or [CLS] A [SEP], padded to one length; all arrays are int64."""

    input_ids: Ids
    """[sequences, length] masked, padded with [PAD]."""
    token_type_ids: Ids
    """[sequences, length] 0 for [CLS] A [SEP] and padding, 1 for B [SEP]."""
    lengths: Ids
    """[sequences] tokens without padding."""
    masked_positions: Ids
    """[sequences, max_predictions] of the tokens to predict, ascending, padded with 0."""
    masked_labels: Ids
    """[sequences, max_predictions] the tokens to predict, padded with -100."""
    next_sentence_labels: Ids
    """[sequences] 0 where B follows A, 1 where it is random."""

    def __len__(self) -> int:
        return len(self.input_ids)

    def slice(self, start: int, stop: int) -> Batch:
        """Return sequences start ... stop - 1."""
        return Batch(**{name: array[start:stop] for name, array in self.arrays().items()})

    @property
    def tokens(self) -> int:
        """Number of tokens without padding."""
        return int(self.lengths.sum())

    def arrays(self) -> dict[str, Ids]:
        """Return the arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class Sequences(NamedTuple):
    """Sequences before masking."""

    input_ids: Ids
    token_type_ids: Ids
    lengths: Ids
    candidates: Flags
    """[sequences, length] every position but [CLS], [SEP] (also between documents) and padding."""


def assemble(
    tokens: npt.NDArray[np.unsignedinteger], rows: Plan, *, sequence_length: int, special: SpecialIds
) -> Sequences:
    """Lay the ranges of a plan out as sequences.

    Args:
        tokens: [tokens] the text that the ranges refer to.
        rows: [sequences, 5], see `pairs`.
        sequence_length: length to pad to; no range needs more.
        special: ids of [PAD], [CLS], [SEP].
    """
    a_start, a_end, b_start, b_end = (rows[:, column, None] for column in range(4))
    a_length, b_length = a_end - a_start, b_end - b_start
    first_sep = a_length + 1
    last_sep = np.where(b_length > 0, first_sep + b_length + 1, first_sep)
    position = np.arange(sequence_length)
    in_a = (position > 0) & (position < first_sep)
    in_b = (position > first_sep) & (position < last_sep)
    source = np.where(in_a, a_start + position - 1, b_start + position - first_sep - 1)
    candidates = in_a | in_b
    ids = np.full(candidates.shape, special.pad, np.int64)
    ids[candidates] = tokens[source[candidates]]
    candidates &= ids != special.sep
    ids[:, 0] = special.cls
    ids[(position == first_sep) | (position == last_sep)] = special.sep
    return Sequences(
        input_ids=ids,
        token_type_ids=((position > first_sep) & (position <= last_sep)).astype(np.int64),
        lengths=last_sep[:, 0] + 1,
        candidates=candidates,
    )


class PretrainingData:
    """Batches of one split of a token store.

    Args:
        store: tokenised text.
        split: "train" or "validation".
        data: sequence_length and short_sequence_probability are used.
        plan: makes the examples of a block.
        objective: how training masks; validation ignores it.
        max_predictions: most tokens to predict in a training sequence.
        seed: decides order, pairs and masks of training batches.
    """

    def __init__(
        self,
        store: TokenStore,
        split: Split,
        *,
        data: DataConfig,
        plan: PlanBlock,
        objective: ObjectiveConfig,
        max_predictions: int,
        seed: int,
    ) -> None:
        self._store, self._data, self._seed = store, data, seed
        self._plan, self._objective = plan, objective
        self._stream = ExampleStream(
            store,
            split,
            data=data,
            plan=plan,
            seed=seed,
            objective=objective,
            sources=source_blocks(store, split, weighted=True),
        )
        self._samples: dict[int, list[HeldOutSample]] = {}
        self._rule = MaskingRule(
            probability=objective.masked_lm_probability,
            max_predictions=max_predictions,
            mask_id=store.manifest.special_ids.mask,
            vocab_size=store.manifest.vocab_size,
            continues_word=continuing_pieces(store.vocabulary) if objective.whole_word else None,
        )

    def batch(self, cursor: Cursor, *, global_batch_size: int, rank: int, world_size: int) -> tuple[Batch, Cursor]:
        """Return this process's share of the next global batch, and the cursor after the whole batch.

        Shares are consecutive and differ by at most one sequence. Together, in the order of ranks, they are the same
        for any number of processes.
        """
        assert global_batch_size >= world_size, "a process without a sequence"
        spans, following = self._stream.take(cursor, global_batch_size, _bounds(global_batch_size, rank, world_size))
        return self._collate(spans, self._rule, self._seed), following

    @cached_property
    def _validation_rule(self) -> MaskingRule:
        return self._rule._replace(
            probability=VALIDATION_PROBABILITY,
            max_predictions=math.ceil(self._data.sequence_length * VALIDATION_PROBABILITY),
            continues_word=None,
        )

    def sample(self, max_sequences: int) -> list[HeldOutSample]:
        """Return the sequences to validate on, by source, see `validation_sample`."""
        if max_sequences not in self._samples:
            self._samples[max_sequences] = validation_sample(
                self._store,
                data=self._data,
                plan=self._plan,
                max_sequences=max_sequences,
                objective=self._objective,
            )
        return self._samples[max_sequences]

    def validation_batches(
        self, max_sequences: int, batch_size: int, rank: int, world_size: int
    ) -> Iterator[tuple[int, Batch]]:
        """Yield this process's share of the sample, and the place of each batch's source in it.

        The examples and masks are always the same. 15% of the pieces are masked. Neither the seed nor the masking of
        training (rate, whole words, static) nor the weights of sources change them, so that the losses of recipes are
        comparable. A batch has one source, and batches do not depend on the number of processes; one may get none.
        """
        found = [
            (source, one.examples.slice(first, first + batch_size))
            for source, one in enumerate(self.sample(max_sequences))
            for first in range(0, len(one.examples), batch_size)
        ]
        start, stop = _bounds(len(found), rank, world_size)
        for source, examples in found[start:stop]:
            yield source, self._collate([examples], self._validation_rule, VALIDATION_SEED)

    def _collate(self, spans: list[ExampleSpan], rule: MaskingRule, seed: int) -> Batch:
        length, special = self._data.sequence_length, self._store.manifest.special_ids
        parts = [assemble(span.tokens, span.rows, sequence_length=length, special=special) for span in spans]
        input_ids, token_type_ids, lengths, candidates = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        # an example's masks are a function of the seed and of its own name
        names = [keys(seed, MASK_STREAM, span.copies, span.blocks, span.numbers) for span in spans]
        masked = mask_tokens(input_ids, candidates, lengths, np.concatenate(names), rule)
        return Batch(
            input_ids=masked.input_ids,
            token_type_ids=token_type_ids,
            lengths=lengths,
            masked_positions=masked.positions,
            masked_labels=masked.labels,
            next_sentence_labels=np.concatenate([span.rows[:, 4] for span in spans]),
        )


def _bounds(count: int, rank: int, world_size: int) -> tuple[int, int]:
    return count * rank // world_size, count * (rank + 1) // world_size
