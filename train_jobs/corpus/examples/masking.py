"""Chooses the tokens to predict and hides them, by the rules of Devlin et al. 2019, section 3.1.

Every position but [CLS], [SEP] and padding is a candidate; min(max_predictions, max(1, round(length x probability)))
are chosen without replacement, length counting [CLS] and [SEP]; of these 80% become [MASK], 10% stay, 10% become a
piece drawn from the whole vocabulary, special ones included (`create_pretraining_data.py`).

Whole words are chosen by the rules of that program's `--do_whole_word_mask`: a ## piece belongs to the candidate before
it; words come in random order, one that would exceed the number is passed over, and of those taken all pieces are
predicted, each treated by a draw of its own. So there may be fewer predictions, or none. A ## piece that opens the
second segment, its word's start cut off, belongs to the last word of the first, [SEP] between them or not: as there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from train_jobs.corpus.examples.randomness import Keys, integers, uniform

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

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
    candidates: Flags,
    lengths: Ids,
    key: Keys,
    *,
    probability: float,
    max_predictions: int,
    mask_id: int,
    vocab_size: int,
    continues_word: Flags | None = None,
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
        continues_word: [vocab_size] True for ids of ## pieces, to choose whole words. None: pieces are chosen.
    """
    wanted = np.minimum(np.maximum(np.rint(lengths * probability), 1), max_predictions).astype(np.int64)
    counts = np.minimum(wanted, candidates.sum(axis=1))
    choice = uniform(key[:, None], np.arange(input_ids.shape[1]) * DRAWS_PER_POSITION + CHOICE)
    if continues_word is not None:
        candidates = _whole_words(candidates, continues_word[input_ids], counts, choice)
        counts = candidates.sum(axis=1)
    positions = _choose(candidates, counts, choice, max_predictions=max_predictions)
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


def _choose(candidates: Flags, counts: Ids, draws: npt.NDArray[np.float64], *, max_predictions: int) -> Ids:
    """The candidates with the smallest draws: `counts` of them in each row, ascending, then zeros."""
    sequences, length = candidates.shape
    order = np.argsort(np.where(candidates, draws, 2.0), axis=1, kind="stable")[:, :max_predictions]
    chosen = np.full((sequences, max_predictions), length)
    chosen[:, : order.shape[1]] = order
    real = np.arange(max_predictions) < counts[:, None]
    ascending = np.sort(np.where(real, chosen, length), axis=1)
    return np.where(real, ascending, 0)


def _whole_words(candidates: Flags, continuing: Flags, counts: Ids, draws: npt.NDArray[np.float64]) -> Flags:
    """The candidates of the words with the smallest draws that fit into `counts`; a word's is its first piece's."""
    sequences, length = candidates.shape
    rows = np.arange(sequences)
    starts = candidates & ~continuing
    starts[rows, candidates.argmax(axis=1)] = candidates.any(axis=1)  # nothing is before it to belong to
    words = starts.cumsum(axis=1) - 1
    place = rows[:, None] * length + words
    sizes = np.bincount(place[candidates], minlength=sequences * length).reshape(sequences, length)
    word_draws = np.full(sequences * length, 2.0)
    word_draws[place[starts]] = draws[starts]
    order = np.argsort(word_draws.reshape(sequences, length), axis=1, kind="stable")
    taken = np.zeros((sequences, length), np.bool_)
    room = counts.copy()
    for word in order.T[: starts.sum(axis=1).max()]:  # in sequences of fewer words, words of no piece
        size = sizes[rows, word]
        fits = size <= room
        taken[rows, word] = fits
        room -= np.where(fits, size, 0)
        if not room.any():
            break
    return candidates & taken[rows[:, None], words]
