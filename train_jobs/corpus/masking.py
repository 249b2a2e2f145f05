"""Chooses the tokens to predict and hides them: dynamic masking, by the rules of Devlin et al. 2019, section 3.1.

Every position but [CLS], [SEP] and padding is a candidate; min(max_predictions, max(1, round(length x probability)))
are chosen without replacement, length counting [CLS] and [SEP]; of these 80% become [MASK], 10% stay, 10% become a
piece drawn from the whole vocabulary, special ones included (`create_pretraining_data.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from train_jobs.corpus.randomness import Keys, integers, uniform

Ids = npt.NDArray[np.int64]

IGNORED_LABEL = -100  # torch's cross_entropy leaves it out
MASKED, KEPT = 0.8, 0.9  # bounds of one draw: below the first [MASK], below the second as it was, else random
CHOICE, TREATMENT, PIECE = 0, 1, 2  # what a position's draws are for
DRAWS_PER_POSITION = 4


@dataclass(frozen=True)
class Masked:
    """Sequences with some tokens hidden."""

    input_ids: Ids
    """[sequences, length] after masking."""
    positions: Ids
    """[sequences, max_predictions] of the tokens to predict, ascending, padded with 0."""
    labels: Ids
    """[sequences, max_predictions] what stood there, padded with -100."""


def mask_tokens(
    input_ids: Ids,
    candidates: npt.NDArray[np.bool_],
    lengths: Ids,
    key: Keys,
    *,
    probability: float,
    max_predictions: int,
    mask_id: int,
    vocab_size: int,
) -> Masked:
    """Masks a batch.

    Args:
        input_ids: [sequences, length] whole sequences.
        candidates: [sequences, length] positions that may be chosen.
        lengths: [sequences] tokens with [CLS] and [SEP], without padding.
        key: [sequences] each sequence's source of draws: equal keys and lengths choose equal positions.
        probability: share of the tokens to predict.
        max_predictions: most tokens to predict in a sequence.
        mask_id: id of [MASK].
        vocab_size: random pieces are below this.
    """
    wanted = np.minimum(np.maximum(np.rint(lengths * probability), 1), max_predictions).astype(np.int64)
    counts = np.minimum(wanted, candidates.sum(axis=1))
    positions = _choose(candidates, counts, key, max_predictions=max_predictions)
    real = np.arange(max_predictions) < counts[:, None]
    rows = np.arange(len(input_ids))[:, None]
    originals = input_ids[rows, positions]
    draws = positions * DRAWS_PER_POSITION
    treatment = uniform(key[:, None], draws + TREATMENT)
    random_pieces = integers(key[:, None], draws + PIECE, below=vocab_size)
    shown = np.where(treatment < MASKED, mask_id, np.where(treatment < KEPT, originals, random_pieces))
    hidden = input_ids.copy()
    hidden[np.broadcast_to(rows, real.shape)[real], positions[real]] = shown[real]
    return Masked(input_ids=hidden, positions=positions, labels=np.where(real, originals, IGNORED_LABEL))


def _choose(candidates: npt.NDArray[np.bool_], counts: Ids, key: Keys, *, max_predictions: int) -> Ids:
    """The candidates with the smallest draws: `counts` of them in each row, ascending, then zeros."""
    sequences, length = candidates.shape
    draws = uniform(key[:, None], np.arange(length) * DRAWS_PER_POSITION + CHOICE)
    order = np.argsort(np.where(candidates, draws, 2.0), axis=1, kind="stable")[:, :max_predictions]
    chosen = np.full((sequences, max_predictions), length)
    chosen[:, : order.shape[1]] = order
    real = np.arange(max_predictions) < counts[:, None]
    ascending = np.sort(np.where(real, chosen, length), axis=1)
    return np.where(real, ascending, 0)
