"""Measures how sequences use a text, on a few blocks of a store."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from train_jobs.artifacts.sequence_figures import SequenceFigures, layout
from train_jobs.config.errors import DataError
from train_jobs.config.pretrain import DataConfig, ObjectiveConfig
from train_jobs.corpus.examples.epoch_order import generator
from train_jobs.corpus.examples.pairs import SPECIALS_OF_ONE, Plan, PlanBlock, plan_block
from train_jobs.corpus.store.token_store import TokenStore

BLOCKS = 4  # measured: 4 million tokens
FIGURES_STREAM = 8
RECORDED_LENGTHS = (64, 128, 512)
RECORDED_BLOCKS = 2  # measured for a manifest, within a second
RECORDED = (ObjectiveConfig(), ObjectiveConfig(next_sentence=False, sequences="doc-sentences"))


def recorded_figures(store: TokenStore) -> tuple[SequenceFigures, ...]:
    """Return the figures that a manifest records: of the usual lengths, with the default share of short sequences."""
    # Not of full-sentences: these fill every sequence of every text.
    return tuple(
        sequence_figures(
            store,
            data=DataConfig(sequence_length=length),
            objective=objective,
            plan=partial(plan_block, objective=objective),
            blocks=RECORDED_BLOCKS,
        )
        for objective in RECORDED
        for length in RECORDED_LENGTHS
    )


def sequence_figures(
    store: TokenStore, *, data: DataConfig, objective: ObjectiveConfig, plan: PlanBlock, blocks: int = BLOCKS
) -> SequenceFigures:
    """Measure the sequences of a job on a sample of its training text, in which sources have their weights.

    The same store and settings have the same figures.

    Args:
        store: tokenised text.
        data: sequence_length and short_sequence_probability are used.
        objective: decides whether sequences span documents.
        plan: makes the examples of a block.
        blocks: most blocks to measure.

    Raises:
        DataError: the sample has no example.
    """
    sums, short = np.zeros(5), data.short_sequence_probability
    for number, weight in _sample(store, blocks):
        block = store.block("train", number)
        if (separator := store.separator(objective)) is not None:
            block = block.separated(separator)
        text = block.tokens != store.manifest.special_ids.sep
        # Plans without and with only shortened documents are averaged: which of a few long books are shortened is
        # chance, and would decide the figures.
        for probability, part in ((0.0, 1 - short), (1.0, short)):
            if part:
                rows = plan(
                    block,
                    sequence_length=data.sequence_length,
                    short_sequence_probability=probability,
                    rng=generator(0, FIGURES_STREAM, number),
                )
                sums += part * weight * _sums(rows, text) / np.count_nonzero(text)
    sequences, tokens, random, used, whole = sums.tolist()
    if not sequences:
        raise DataError("cannot build any example from the text", fix="--data PATH with more text")
    return SequenceFigures(
        sequence_length=data.sequence_length,
        layout=layout(objective),
        tokens_per_sequence=tokens / sequences,
        text_used=used / whole,
        random_pairs=random / sequences,
    )


def _sample(store: TokenStore, blocks: int) -> Iterator[tuple[int, float]]:
    """Yield numbers of blocks and their weights: all, or some drawn systematically in proportion to their size."""
    weights = np.zeros(store.blocks("train"))
    for source, numbers in store.blocks_by_source("train").items():
        weights[numbers] = store.manifest.sources[source].weight
    weights *= store.block_tokens("train")
    if len(weights) <= blocks:
        yield from enumerate(weights.tolist())
        return
    ends = np.cumsum(weights)
    for place in np.searchsorted(ends, (np.arange(blocks) + 0.5) / blocks * ends[-1]).tolist():
        yield place, 1.0


def _sums(rows: Plan, text: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return sequences, their tokens with specials, sequences with label 1, used tokens of the text, and its tokens."""
    a_start, a_end, b_start, b_end, label = rows.T
    lengths = a_end - a_start + b_end - b_start + SPECIALS_OF_ONE + (b_end > b_start)
    depth = np.zeros(len(text) + 1, np.int64)
    for start, end in ((a_start, a_end), (b_start, b_end)):
        np.add.at(depth, start, 1)
        np.add.at(depth, end, -1)
    used = np.count_nonzero(text & (np.cumsum(depth[:-1]) > 0))
    return np.array([len(rows), lengths.sum(), label.sum(), used, np.count_nonzero(text)], np.float64)
