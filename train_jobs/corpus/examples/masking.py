"""Chooses the tokens to predict and hides them, by the rules of Devlin et al. 2019, section 3.1.

Every position but [CLS], [SEP] and padding is a candidate; min(max_predictions, max(1, round(length x probability)))
are chosen without replacement, length counting [CLS] and [SEP]; of these 80% become [MASK], 10% stay, 10% become a
piece drawn from the whole vocabulary, special ones included (`create_pretraining_data.py`).

Whole words are chosen by the rules of that program's `--do_whole_word_mask`: a ## piece belongs to the candidate before
it; words come in random order, one that would exceed the number is passed over, and of those taken all pieces are
predicted, each treated by a draw of its own. So there may be fewer predictions, or none. A ## piece that opens the
second segment, its word's start cut off, belongs to the last word of the first, [SEP] between them or not: as there.


Draws have no state: each is a function of a key and a counter, so any draw can be computed without the others. A key is
the hash of a seed and of the numbers that identify an example. Draw n of a key is the n-th number of a splitmix64
generator that starts there (Steele, Lea and Flood 2014; the finaliser is Stafford's variant 13 of murmur3's), which a
closed formula gives for whole arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

IGNORED_LABEL = -100  # torch's cross_entropy leaves it out
MASKED, KEPT = 0.8, 0.9  # bounds of one draw: below the first [MASK], below the second as it was, else random
CHOICE, TREATMENT, PIECE = 0, 1, 2  # what a position's draws are for
DRAWS_PER_POSITION = 4


class MaskingRule(NamedTuple):
    """A rule for choosing and hiding tokens."""

    probability: float
    """Share of the tokens to predict."""
    max_predictions: int
    """Most tokens to predict in a sequence."""
    mask_id: int
    """Id of [MASK]."""
    vocab_size: int
    """Random pieces are below this."""
    continues_word: Flags | None = None
    """[vocab_size] True for ids of ## pieces, to choose whole words. None: pieces are chosen."""


class Masked(NamedTuple):
    """Sequences with some tokens hidden."""

    input_ids: Ids
    """[sequences, length] after masking."""
    positions: Ids
    """[sequences, max_predictions] of the tokens to predict, ascending, padded with 0."""
    labels: Ids
    """[sequences, max_predictions] the tokens before masking, padded with -100."""


def mask_tokens(input_ids: Ids, candidates: Flags, lengths: Ids, key: Keys, rule: MaskingRule) -> Masked:
    """Mask a batch.

    Args:
        input_ids: [sequences, length] whole sequences.
        candidates: [sequences, length] positions that may be chosen.
        lengths: [sequences] tokens with [CLS] and [SEP], without padding.
        key: [sequences] each sequence's source of draws: equal keys and lengths choose equal positions.
        rule: how to mask.
    """
    wanted = np.clip(np.rint(lengths * rule.probability), 1, None)
    counts = np.minimum(np.minimum(wanted, rule.max_predictions).astype(np.int64), candidates.sum(axis=1))
    choice = uniform(key[:, None], np.arange(input_ids.shape[1]) * DRAWS_PER_POSITION + CHOICE)
    if rule.continues_word is not None:
        candidates = _whole_words(candidates, rule.continues_word[input_ids], counts, choice)
        counts = candidates.sum(axis=1)
    positions = _choose(candidates, counts, choice, max_predictions=rule.max_predictions)
    real = np.arange(rule.max_predictions) < counts[:, None]
    rows = np.arange(len(input_ids))[:, None]
    originals = input_ids[rows, positions]
    draws = positions * DRAWS_PER_POSITION
    treatment = uniform(key[:, None], draws + TREATMENT)
    random_pieces = integers(key[:, None], draws + PIECE, below=rule.vocab_size)
    shown = np.where(treatment < MASKED, rule.mask_id, np.where(treatment < KEPT, originals, random_pieces))
    hidden = input_ids.copy()
    hidden[np.broadcast_to(rows, real.shape)[real], positions[real]] = shown[real]
    return Masked(input_ids=hidden, positions=positions, labels=np.where(real, originals, IGNORED_LABEL))


def _choose(candidates: Flags, counts: Ids, draws: npt.NDArray[np.float64], *, max_predictions: int) -> Ids:
    """Return the candidates with the smallest draws: `counts` in each row, ascending, then zeros."""
    sequences, length = candidates.shape
    order = np.argsort(np.where(candidates, draws, 2.0), axis=1, kind="stable")[:, :max_predictions]
    chosen = np.full((sequences, max_predictions), length)
    chosen[:, : order.shape[1]] = order
    real = np.arange(max_predictions) < counts[:, None]
    return np.where(real, np.sort(np.where(real, chosen, length), axis=1), 0)


def _whole_words(candidates: Flags, continuing: Flags, counts: Ids, draws: npt.NDArray[np.float64]) -> Flags:
    """Return the candidates of the words with the smallest draws (of their first pieces) that fit into `counts`."""
    sequences, length = candidates.shape
    rows = np.arange(sequences)
    starts = candidates & ~continuing
    starts[rows, candidates.argmax(axis=1)] = candidates.any(axis=1)  # a piece without a word before it opens one
    words = starts.cumsum(axis=1) - 1
    place = rows[:, None] * length + words
    sizes = np.bincount(place[candidates], minlength=sequences * length).reshape(sequences, length)
    word_draws = np.full(sequences * length, 2.0)
    word_draws[place[starts]] = draws[starts]
    order = np.argsort(word_draws.reshape(sequences, length), axis=1, kind="stable")
    taken = np.zeros((sequences, length), np.bool_)
    room = counts.copy()
    for word in order.T[: starts.sum(axis=1).max()]:  # a sequence of fewer words has words without pieces at the end
        size = sizes[rows, word]
        fits = size <= room
        taken[rows, word] = fits
        room -= np.where(fits, size, 0)
        if not room.any():
            break
    return candidates & taken[rows[:, None], words]


Keys = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_TO_DOUBLE = np.uint64(11)  # a double holds 53 bits


def keys(seed: int, *path: int | npt.NDArray[np.integer]) -> Keys:
    """Hash a seed and the parts of a path, in order, into keys.

    Args:
        seed: in [0, 2**64).
        path: numbers or arrays of numbers, not negative, that broadcast together.

    Returns:
        uint64 array of the broadcast shape, at least one-dimensional.
    """
    key = _mix(np.array([seed], np.uint64))
    for part in path:
        key = _mix(key ^ _mix(np.atleast_1d(np.asarray(part)).astype(np.uint64) + _GOLDEN))
    return key


def uniform(key: Keys, counters: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Return draws `counters` of `key`, which broadcast together, uniform in [0, 1) with 53 bits."""
    bits = _mix(key + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (bits >> _TO_DOUBLE).astype(np.float64) * 2.0**-53


def integers(key: Keys, counters: npt.NDArray[np.integer], *, below: int) -> npt.NDArray[np.int64]:
    """Return draws `counters` of `key`, uniform in 0 ... below - 1 (uneven by less than below / 2**53)."""
    return (uniform(key, counters) * below).astype(np.int64)


def _mix(x: Keys) -> Keys:
    """Mix the bits of a key. uint64 arrays wrap around silently, as the formula requires; scalars would warn."""
    x = (x ^ (x >> _SHIFTS[0])) * _MULTIPLIERS[0]
    x = (x ^ (x >> _SHIFTS[1])) * _MULTIPLIERS[1]
    return x ^ (x >> _SHIFTS[2])
