"""Masking: choose the tokens to predict and hide them, by the rules of Devlin et al. 2019, section 3.1.

Every position except [CLS], [SEP] and padding is a candidate. Chosen without replacement are min(max_predictions,
max(1, round(length x probability))), where length counts [CLS] and [SEP]. Of these, 80% become [MASK], 10% stay, and
10% become a piece drawn from the whole vocabulary, special pieces included (Google's `create_pretraining_data.py`).

Whole words follow that program's `--do_whole_word_mask`. A ## piece belongs to the candidate before it. Words are taken
in random order, and one that would exceed the number is skipped. All pieces of a taken word are predicted, each with
its own draw, so there may be fewer predictions, or none. As in that program, a ## piece that opens the second segment
belongs to the last word of the first, even with [SEP] between them.

Draws have no state: each is a function of a key and a counter, so any draw can be computed without the others. A key is
the hash of a seed and of the numbers that identify an example. Draw n of a key is the n-th number of a splitmix64
generator that starts there (Steele, Lea and Flood 2014; the finaliser is Stafford's variant 13 of murmur3's). A closed
formula computes it for whole arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

IGNORED_LABEL = -100  # torch's cross_entropy leaves it out
MASKED, KEPT = 0.8, 0.9  # bounds of one draw: below the first [MASK], below the second unchanged, else random
CHOICE, TREATMENT, PIECE = 0, 1, 2  # purposes of a position's draws
DRAWS_PER_POSITION = 4


class MaskingRule(NamedTuple):
    """A rule for choosing and hiding tokens."""

    probability: float
    """Share of the tokens to predict."""
    max_predictions: int
    """Maximum number of tokens to predict in a sequence."""
    mask_id: int
    """Id of [MASK]."""
    vocab_size: int
    """Number of pieces; a random piece is any of them."""
    continues_word: Flags | None = None
    """[vocab_size] True for ids of ## pieces, to choose whole words. None: choose pieces."""


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
        input_ids: [sequences, length] before masking; not modified.
        candidates: [sequences, length] True at positions that may be chosen.
        lengths: [sequences] tokens with [CLS] and [SEP], without padding.
        key: [sequences] source of each sequence's draws; equal keys and lengths choose equal positions.
        rule: rule to apply.
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
    # 2.0 is above every draw, so other positions sort last. A stable sort makes ties independent of numpy's version.
    order = np.argsort(np.where(candidates, draws, 2.0), axis=1, kind="stable")[:, :max_predictions]
    chosen = np.full((sequences, max_predictions), length)
    chosen[:, : order.shape[1]] = order
    real = np.arange(max_predictions) < counts[:, None]
    return np.where(real, np.sort(np.where(real, chosen, length), axis=1), 0)


def _whole_words(candidates: Flags, continuing: Flags, counts: Ids, draws: npt.NDArray[np.float64]) -> Flags:
    """Return the candidates of the chosen words: smallest draw of the first piece first, while they fit `counts`."""
    sequences, length = candidates.shape
    rows = np.arange(sequences)
    starts = candidates & ~continuing
    starts[rows, candidates.argmax(axis=1)] = candidates.any(axis=1)  # a leading ## piece has no word to belong to
    words = starts.cumsum(axis=1) - 1
    place = rows[:, None] * length + words
    sizes = np.bincount(place[candidates], minlength=sequences * length).reshape(sequences, length)
    word_draws = np.full(sequences * length, 2.0)
    word_draws[place[starts]] = draws[starts]
    order = np.argsort(word_draws.reshape(sequences, length), axis=1, kind="stable")
    taken = np.zeros((sequences, length), np.bool_)
    room = counts.copy()
    # A loop over the ranks of words, each step for all sequences: which word fits depends on those taken before.
    for word in order.T[: starts.sum(axis=1).max()]:  # sequences with fewer words have words of no pieces at the end
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
_TO_DOUBLE = np.uint64(11)  # drops all but the 53 bits of a double's mantissa


def keys(seed: int, *path: int | npt.NDArray[np.integer]) -> Keys:
    """Hash a seed and the parts of a path, in order, into keys.

    Args:
        seed: in [0, 2**64).
        path: non-negative numbers or arrays of them, which broadcast together.

    Returns:
        uint64 array of the broadcast shape, at least one-dimensional.
    """
    key = _mix(np.array([seed], np.uint64))
    for part in path:
        # Mixed before the XOR: small numbers differ in few bits, and (1, 2) and (2, 1) must give different keys.
        key = _mix(key ^ _mix(np.atleast_1d(np.asarray(part)).astype(np.uint64) + _GOLDEN))
    return key


def uniform(key: Keys, counters: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Return draws that are uniform in [0, 1), with 53 random bits.

    Args:
        key: uint64 keys.
        counters: numbers of the draws, broadcast with `key`.
    """
    bits = _mix(key + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (bits >> _TO_DOUBLE).astype(np.float64) * 2.0**-53


def integers(key: Keys, counters: npt.NDArray[np.integer], *, below: int) -> npt.NDArray[np.int64]:
    """Return draws that are uniform in 0 ... below - 1, with a bias of less than below / 2**53.

    Args:
        key: uint64 keys.
        counters: numbers of the draws, broadcast with `key`.
        below: exclusive upper limit.
    """
    return (uniform(key, counters) * below).astype(np.int64)


def _mix(x: Keys) -> Keys:
    """Mix the bits of keys: the finaliser of splitmix64."""
    # uint64 arrays wrap around silently, as the formula requires; numpy scalars would warn of an overflow.
    x = (x ^ (x >> _SHIFTS[0])) * _MULTIPLIERS[0]
    x = (x ^ (x >> _SHIFTS[1])) * _MULTIPLIERS[1]
    return x ^ (x >> _SHIFTS[2])
