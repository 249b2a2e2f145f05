"""Whole-word masking with the rules of create_pretraining_data.py: by hand, by enumeration and on text."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from train_jobs.corpus.examples.masking import Masked, MaskingRule, keys, mask_tokens
from train_jobs.corpus.tokenize.vocabulary import continuing_pieces

CLS, SEP, MASK, WORD, REST = 2, 3, 4, 5, 6  # the last two: a piece that begins a word and one that continues it
VOCAB = 40
CONTINUES = np.arange(VOCAB) % 2 == 0
CONTINUES[:WORD] = False
PIECES = {"C": CLS, "S": SEP, "w": WORD, "#": REST}

Words = list[set[int]]


def words_of(ids: list[int]) -> Words:
    """Return the positions of the pieces of each word, by a loop over the sequence."""
    words: Words = []
    for position, piece in enumerate(ids):
        if piece in (CLS, SEP):
            continue
        if CONTINUES[piece] and words:
            words[-1].add(position)
        else:
            words.append({position})
    return words


def chosen_in_order(words: Words, most: int) -> frozenset[int]:
    """Return the predicted positions if words are chosen in this order."""
    chosen: set[int] = set()
    for word in words:
        if len(chosen) >= most:
            break
        if len(chosen) + len(word) <= most:
            chosen |= word
    return frozenset(chosen)


def mask(ids: np.ndarray, *, most: int, seed: int = 0, probability: float = 0.999, whole: bool = True) -> Masked:
    """Mask sequences without padding; at the default probability `most` limits the number of predictions."""
    return mask_tokens(
        ids,
        (ids != CLS) & (ids != SEP),
        np.full(len(ids), ids.shape[1]),
        keys(seed, np.arange(len(ids))),
        MaskingRule(probability, most, MASK, VOCAB, CONTINUES if whole else None),
    )


def predicted(masked: Masked) -> list[frozenset[int]]:
    """Return the predicted positions of each sequence."""
    return [frozenset(row[real].tolist()) for row, real in zip(masked.positions, masked.labels >= 0, strict=True)]


def repeated(pattern: str, times: int) -> np.ndarray:
    return np.array([[PIECES[piece] for piece in pattern]] * times)


@pytest.mark.parametrize(
    ("pattern", "most", "outcomes"),
    [
        ("Cw#w#wS", 2, {(1, 2), (3, 4), (5,)}),  # a single piece chosen first leaves no room for a pair
        ("Cw##w##wS", 2, {(7,)}),  # words of three never fit
        ("Cw##w##S", 2, {()}),  # nor is a part of a word chosen
        ("Cw#w#wS", 3, {(1, 2, 5), (3, 4, 5)}),  # the second pair is skipped, later words are not
        ("C##wS", 2, {(1, 2), (3,)}),  # pieces without a beginning form one word
        ("CwSwS", 1, {(1,), (3,)}),
        ("CwwS#wS", 2, {(1, 5), (2, 4)}),  # (2, 4): a piece that opens segment two continues the last word of one
        ("Cw#w#S", 4, {(1, 2, 3, 4)}),
    ],
)
def test_small_sequences_match_manual_outcomes(pattern: str, most: int, outcomes: set[tuple[int, ...]]) -> None:
    found = set(predicted(mask(repeated(pattern, 200), most=most)))
    assert found == {frozenset(outcome) for outcome in outcomes}


def test_short_and_long_sequences_share_batch() -> None:
    ids = np.concatenate([repeated("Cw####S", 1), repeated("CwwwwwS", 1)])
    assert predicted(mask(ids, most=5)) == [frozenset(range(1, 6))] * 2


def test_words_chosen_as_often_as_random_order() -> None:
    pattern, most, times = "Cw#ww##wS#wS", 4, 20_000
    words = words_of(repeated(pattern, 1)[0].tolist())
    assert sorted(map(len, words)) == [1, 1, 2, 2, 3]
    orders = [chosen_in_order(list(order), most) for order in permutations(words)]
    expected = {outcome: count / len(orders) for outcome, count in Counter(orders).items()}
    found = Counter(predicted(mask(repeated(pattern, times), most=most)))
    assert found.keys() == expected.keys()
    for outcome, share in expected.items():
        assert abs(found[outcome] / times - share) < 4.5 * (share * (1 - share) / times) ** 0.5, sorted(outcome)


def test_random_sequences_predict_maximal_whole_words() -> None:
    rng = np.random.default_rng(3)
    ids = rng.integers(WORD, VOCAB, (400, 60))
    ids[:, 0], ids[:, 30], ids[:, -1] = CLS, SEP, SEP
    masked = mask(ids, most=12, probability=0.15)
    wanted = 9  # round(60 x 0.15)
    counts = Counter()
    for row, chosen in zip(ids.tolist(), predicted(masked), strict=True):
        words = words_of(row)
        assert all(word <= chosen or not word & chosen for word in words)
        room = wanted - len(chosen)
        assert room >= 0
        assert all(len(word) > room for word in words if not word & chosen)
        counts[len(chosen)] += 1
    assert counts[9] > 300
    assert (np.diff(np.where(masked.labels >= 0, masked.positions, 99 + np.arange(12)), axis=1) > 0).all()
    rows = np.arange(400)[:, None]
    real = masked.labels >= 0
    np.testing.assert_array_equal(masked.labels[real], ids[rows, masked.positions][real])


def test_pieces_of_word_are_replaced_independently() -> None:
    ids = repeated("Cw#S", 20_000)
    masked = mask(ids, most=2)
    hidden = masked.input_ids[:, 1:3] == MASK
    share = 0.8 + 0.1 / VOCAB
    assert abs(hidden.mean(axis=0) - share).max() < 0.012
    assert abs(hidden.all(axis=1).mean() - share**2) < 0.013


def test_single_piece_words_equal_piece_masking() -> None:
    ids = np.where(np.arange(50) % 49 == 0, CLS, np.random.default_rng(0).integers(0, 17, (30, 50)) * 2 + WORD)
    words, pieces = (mask(ids, most=8, probability=0.15, seed=4, whole=whole) for whole in (True, False))
    for name in ("input_ids", "positions", "labels"):
        np.testing.assert_array_equal(getattr(words, name), getattr(pieces, name))
    assert (pieces.labels >= 0).sum() == 30 * 8


def test_masks_depend_on_key_not_on_batch() -> None:
    ids = np.random.default_rng(1).integers(WORD, VOCAB, (20, 40))
    ids[:, 0] = ids[:, -1] = CLS
    together, alone = mask(ids, most=6), mask(ids[:7], most=6)
    np.testing.assert_array_equal(together.input_ids[:7], alone.input_ids)
    assert predicted(together) != predicted(mask(ids, most=6, seed=1))


def test_vocabulary_marks_continuation_pieces(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes("\ufeff[PAD]\r\n##ing\r\n#\r\na##\r\n##\u2028\r\n##x".encode())
    assert continuing_pieces(path).tolist() == [False, True, False, False, True, True]
