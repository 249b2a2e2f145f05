"""Batches of numpy arrays for pretraining, the same whatever number of processes share them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from train_jobs.artifacts.store_manifest import SpecialIds, Split
from train_jobs.config.pretrain import DataConfig, ObjectiveConfig
from train_jobs.corpus.examples.example_stream import Cursor, ExampleStream, Span, share
from train_jobs.corpus.examples.masking import Flags, Ids, mask_tokens
from train_jobs.corpus.examples.order import SourceBlocks
from train_jobs.corpus.examples.pairs import Plan, PlanBlock
from train_jobs.corpus.examples.randomness import Keys, keys
from train_jobs.corpus.store.token_store import Block, TokenStore
from train_jobs.corpus.tokenize.vocabulary import continuing_pieces

MASK_STREAM = 3
VALIDATION_SEED = 20181011  # the day BERT's paper appeared; validation never depends on the seed of training
VALIDATION_PROBABILITY = 0.15  # of pieces, not of words, whatever is trained with: so that losses compare


@dataclass(frozen=True)
class Batch:
    """Sequences [CLS] A [SEP] B [SEP], or [CLS] A [SEP], padded to one length; all arrays are int64."""

    input_ids: Ids
    """[sequences, length] with masks in, padded with [PAD]."""
    token_type_ids: Ids
    """[sequences, length] 0 for [CLS] A [SEP] and padding, 1 for B [SEP]."""
    lengths: Ids
    """[sequences] tokens without padding."""
    masked_positions: Ids
    """[sequences, max_predictions] of the tokens to predict, ascending, padded with 0."""
    masked_labels: Ids
    """[sequences, max_predictions] the tokens to predict, padded with -100."""
    next_sentence_labels: Ids
    """[sequences] 0 where B follows A, 1 where it is from elsewhere."""

    def __len__(self) -> int:
        return len(self.input_ids)

    def slice(self, start: int, stop: int) -> Batch:
        """Sequences start ... stop - 1."""
        return Batch(**{name: array[start:stop] for name, array in self.arrays().items()})

    @property
    def tokens(self) -> int:
        """Tokens, padding left out."""
        return int(self.lengths.sum())

    def arrays(self) -> dict[str, Ids]:
        """The arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Sequences:
    """Sequences before masking."""

    input_ids: Ids
    token_type_ids: Ids
    lengths: Ids
    candidates: Flags
    """[sequences, length] every position but [CLS], [SEP] and padding."""


def assemble(block: Block, rows: Plan, *, sequence_length: int, special: SpecialIds) -> Sequences:
    """Lays the ranges of a plan out as sequences.

    Args:
        block: what the ranges refer to.
        rows: [sequences, 5], see `pairs.plan_block`.
        sequence_length: length to pad to; no sequence is longer.
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
    ids[candidates] = block.tokens[source[candidates]]
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
        objective: how training masks; validation uses nothing of it.
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
        self._store, self._split, self._data, self._plan, self._objective = store, split, data, plan, objective
        self._max_predictions, self._seed = max_predictions, seed
        sources = store.manifest.sources
        weighted = [
            SourceBlocks(blocks, sources[number].weight) for number, blocks in store.blocks_by_source(split).items()
        ]
        self._stream = self._examples(seed, weighted)
        self._continues_word = continuing_pieces(store.vocabulary) if objective.whole_word else None

    def batch(self, cursor: Cursor, *, global_batch_size: int, rank: int, world_size: int) -> tuple[Batch, Cursor]:
        """This process's share of the next global batch, and the cursor after all of it.

        Shares are consecutive and differ by at most one sequence. Together, and in the order of ranks, they are the
        same for any number of processes.
        """
        assert global_batch_size >= world_size, "a process without a sequence"
        spans, following = self._stream.take(cursor, global_batch_size)
        start, stop = _bounds(global_batch_size, rank, world_size)
        batch = self._collate(
            self._stream,
            list(share(spans, start, stop)),
            probability=self._objective.masked_lm_probability,
            max_predictions=self._max_predictions,
            continues_word=self._continues_word,
            seed=self._seed,
        )
        return batch, following

    def validation_batches(self, max_sequences: int, batch_size: int, rank: int, world_size: int) -> Iterator[Batch]:
        """This process's share of the first `max_sequences` examples: the same ones with the same masks, always.

        Their masks are 15% of the pieces, and like them they depend neither on the seed nor on how training masks
        (at which rate, whole words, static) nor on the weights of sources, so that the losses of recipes compare. A
        split with fewer examples gives what it has; a process may get none.
        """
        stream = self._examples(VALIDATION_SEED, None)
        spans = stream.first_epoch(max_sequences)
        start, stop = _bounds(sum(map(len, spans)), rank, world_size)
        for first in range(start, stop, batch_size):
            yield self._collate(
                stream,
                list(share(spans, first, min(first + batch_size, stop))),
                probability=VALIDATION_PROBABILITY,
                max_predictions=math.ceil(self._data.sequence_length * VALIDATION_PROBABILITY),
                continues_word=None,
                seed=VALIDATION_SEED,
            )

    def _examples(self, seed: int, sources: Sequence[SourceBlocks] | None) -> ExampleStream:
        return ExampleStream(
            self._store,
            self._split,
            data=self._data,
            plan=self._plan,
            seed=seed,
            duplicates=self._objective.duplicates,  # of which epoch 0, all that validation reads, knows nothing
            sources=sources,
        )

    def _collate(
        self,
        stream: ExampleStream,
        spans: list[Span],
        *,
        probability: float,
        max_predictions: int,
        continues_word: Flags | None,
        seed: int,
    ) -> Batch:
        special = self._store.manifest.special_ids
        parts = [
            assemble(stream.block(span.block), span.rows, sequence_length=self._data.sequence_length, special=special)
            for span in spans
        ]
        lengths = np.concatenate([part.lengths for part in parts])
        masked = mask_tokens(
            np.concatenate([part.input_ids for part in parts]),
            np.concatenate([part.candidates for part in parts]),
            lengths,
            np.concatenate([_mask_keys(span, seed) for span in spans]),
            probability=probability,
            max_predictions=max_predictions,
            mask_id=special.mask,
            vocab_size=self._store.manifest.vocab_size,
            continues_word=continues_word,
        )
        return Batch(
            input_ids=masked.input_ids,
            token_type_ids=np.concatenate([part.token_type_ids for part in parts]),
            lengths=lengths,
            masked_positions=masked.positions,
            masked_labels=masked.labels,
            next_sentence_labels=np.concatenate([span.rows[:, 4] for span in spans]),
        )


def _mask_keys(span: Span, seed: int) -> Keys:
    """An example's masks are a function of the seed and of its own name."""
    return keys(seed, MASK_STREAM, span.copy, span.block, span.numbers)


def _bounds(count: int, rank: int, world_size: int) -> tuple[int, int]:
    return count * rank // world_size, count * (rank + 1) // world_size
