"""The sequences to validate on: a sample of all held-out documents, by source, the same for every run on a store.

Each document draws a number from its place in the store. A source contributes the documents with the smallest numbers,
so neither the training seed nor the weights of sources change the sample, and more sequences extend it. Sources get
sequences in proportion to their held-out tokens, and a small source at least some, so that it has a loss of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from train_jobs.config.errors import DataError
from train_jobs.config.pretrain import DataConfig, ObjectiveConfig
from train_jobs.corpus.examples.epoch_order import generator
from train_jobs.corpus.examples.example_stream import PLAN_STREAM, ExampleSpan, copy_ranges
from train_jobs.corpus.examples.masking import keys
from train_jobs.corpus.examples.pairs import PlanBlock
from train_jobs.corpus.store.token_store import Block, TokenStore

VALIDATION_SEED = 20181011  # the day BERT's paper appeared; validation is independent of the training seed
SAMPLE_STREAM = 7
LEAST_SEQUENCES = 32  # of a small source
SPARE = 4  # times the tokens of the sequences are drawn, so that a few long documents do not make up the sample


class HeldOutSample(NamedTuple):
    """The sequences of one source to validate on."""

    name: str
    """Name of the source."""
    share: float
    """Its share of the held-out tokens: the weight of its loss in the mean."""
    examples: ExampleSpan
    """Its examples; `tokens` are exactly theirs."""


def validation_sample(
    store: TokenStore,
    *,
    data: DataConfig,
    plan: PlanBlock,
    max_sequences: int,
    objective: ObjectiveConfig | None = None,
) -> list[HeldOutSample]:
    """Return the sample of each source with held-out text.

    Args:
        store: tokenised text.
        data: sequence_length and short_sequence_probability are used.
        plan: makes the examples of a block.
        max_sequences: of all sources together; a smaller split yields all of its examples.
        objective: decides whether sequences span documents. None: they do not.

    Raises:
        DataError: the held-out text has no example.
    """
    blocks, tokens = store.blocks_by_source("validation"), store.block_tokens("validation")
    sizes = {source: sum(tokens[number] for number in numbers) for source, numbers in blocks.items()}
    least = min(LEAST_SEQUENCES, max_sequences // len(sizes))
    room, left, found = max_sequences, sum(sizes.values()), {}
    for position, source in enumerate(sorted(sizes, key=lambda one: (sizes[one], one))):
        # The smallest first: what a small source cannot use goes to the larger ones, and each keeps its minimum.
        reserved = least * (len(sizes) - position - 1)
        wanted = min(max(round(room * sizes[source] / left), least), room - reserved)
        block = _documents(store, blocks[source], SPARE * wanted * data.sequence_length)
        separator = None if objective is None else store.separator(objective)
        block = block if separator is None else block.separated(separator)
        found[source] = _examples(block, source, data=data, plan=plan, most=wanted)
        room, left = room - len(found[source]), left - sizes[source]
    whole = sum(sizes[source] for source, examples in found.items() if len(examples))
    if whole == 0:
        raise DataError("cannot build any example from the held-out text", fix="--data PATH with more text")
    names = [source.name for source in store.manifest.sources]
    return [
        HeldOutSample(names[source], sizes[source] / whole, found[source])
        for source in sorted(found)
        if len(found[source])
    ]


def _documents(store: TokenStore, blocks: Sequence[int], tokens: int) -> Block:
    """Return the documents of these blocks with the smallest draws that have `tokens` tokens together, or all."""
    read = [store.block("validation", number) for number in blocks]
    counts = [len(block.document_offsets) - 1 for block in read]
    draws = np.concatenate(
        [
            keys(VALIDATION_SEED, SAMPLE_STREAM, number, np.arange(count))
            for number, count in zip(blocks, counts, strict=True)
        ]
    )
    sizes = np.concatenate([np.diff(block.sentence_offsets[block.document_offsets]) for block in read])
    order = np.argsort(draws, kind="stable")
    enough = int(np.searchsorted(np.cumsum(sizes[order], dtype=np.int64), tokens)) + 1
    firsts = np.cumsum([0, *counts])
    texts, sentences, documents = [], [], []
    for place in order[:enough].tolist():
        index = int(np.searchsorted(firsts, place, side="right")) - 1
        block, number = read[index], place - int(firsts[index])
        bounds = block.sentence_offsets[block.document_offsets[number] : block.document_offsets[number + 1] + 1]
        texts.append(block.tokens[bounds[0] : bounds[-1]])
        sentences.append(np.diff(bounds))
        documents.append(len(bounds) - 1)
    offsets = np.concatenate([[0], *sentences]).cumsum().astype(np.int32)
    return Block(np.concatenate(texts), offsets, np.cumsum([0, *documents]).astype(np.int32))


def _examples(block: Block, source: int, *, data: DataConfig, plan: PlanBlock, most: int) -> ExampleSpan:
    rows = plan(
        block,
        sequence_length=data.sequence_length,
        short_sequence_probability=data.short_sequence_probability,
        rng=generator(VALIDATION_SEED, PLAN_STREAM, source),
    )[:most]
    tokens, moved = copy_ranges(block.tokens, rows)
    count = len(rows)
    return ExampleSpan(np.zeros(count, np.int64), np.full(count, source, np.int64), np.arange(count), moved, tokens)
