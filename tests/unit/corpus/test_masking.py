"""Choice and replacement of masked tokens."""

from __future__ import annotations

import numpy as np
import pytest

from train_jobs.corpus.examples.masking import Masked, MaskingRule, keys, mask_tokens

MASK, VOCAB, FIRST_PIECE = 4, 50, 10


def mask(lengths: list[int], *, probability: float = 0.15, most: int = 20, seed: int = 0) -> tuple[Masked, np.ndarray]:
    """Mask sequences of the given lengths between [CLS] and [SEP]; the id of each piece encodes its position."""
    width = max(lengths)
    length = np.array(lengths)
    position = np.arange(width)
    candidates = (position > 0) & (position < length[:, None] - 1)
    ids = np.where(candidates, FIRST_PIECE + position % 30, 0)
    masked = mask_tokens(
        ids,
        candidates,
        length,
        keys(seed, np.arange(len(lengths))),
        MaskingRule(probability, most, MASK, VOCAB),
    )
    return masked, ids


@pytest.mark.parametrize(
    ("length", "probability", "most", "expected"),
    [
        (128, 0.15, 20, 19),  # round(19.2)
        (128, 0.15, 10, 10),  # the cap
        (5, 0.15, 20, 1),  # at least one
        (10, 0.15, 20, 2),  # round(1.5), to even
        (30, 0.15, 20, 4),  # round(4.5), to even; [CLS] and [SEP] count
        (128, 0.4, 52, 51),  # another rate
        (128, 0.05, 7, 6),
        (8, 0.99, 8, 6),  # limited by the number of pieces
    ],
)
def test_number_of_predictions(length: int, probability: float, most: int, expected: int) -> None:
    masked, _ = mask([length], probability=probability, most=most)
    assert masked.positions.shape == masked.labels.shape == (1, most)
    assert (masked.labels >= 0).sum() == expected


def test_labels_sorted_ascending_rest_unchanged() -> None:
    masked, ids = mask([128, 40, 5, 90])
    for row in range(4):
        real = masked.labels[row] >= 0
        positions = masked.positions[row][real]
        assert (np.diff(positions) > 0).all()
        assert real[: real.sum()].all()
        np.testing.assert_array_equal(masked.labels[row][real], ids[row, positions])
        np.testing.assert_array_equal(masked.positions[row][~real], 0)
        np.testing.assert_array_equal(masked.labels[row][~real], -100)
        untouched = np.setdiff1d(np.arange(ids.shape[1]), positions)
        np.testing.assert_array_equal(masked.input_ids[row, untouched], ids[row, untouched])


def test_special_pieces_and_padding_are_never_masked() -> None:
    lengths = np.array([60, 30, 8] * 200)
    masked, _ = mask(lengths.tolist(), probability=0.5, most=40)
    real = masked.labels >= 0
    assert masked.positions[real].min() == 1
    assert (masked.positions < lengths[:, None] - 1)[real].all()


def test_masking_is_80_10_10_and_uniform() -> None:
    masked, _ = mask([128] * 6000)
    real = masked.labels >= 0
    shown = masked.input_ids[np.arange(6000)[:, None], masked.positions][real]
    label = masked.labels[real]
    total = len(label)
    assert total == 6000 * 19
    # A random piece is [MASK] or the original once in VOCAB draws, which adds 0.1 / 50 to each.
    assert abs((shown == MASK).mean() - 0.802) < 0.004
    assert abs((shown == label).mean() - 0.102) < 0.004
    replaced = shown[(shown != MASK) & (shown != label)]
    counts = np.bincount(replaced, minlength=VOCAB)
    assert counts[MASK] == 0
    assert len(counts) == VOCAB
    others = counts[[piece for piece in range(VOCAB) if not FIRST_PIECE <= piece < FIRST_PIECE + 30 and piece != MASK]]
    assert others.min() > 0.75 * total * 0.1 / VOCAB  # including special pieces
    assert others.max() < 1.25 * total * 0.1 / VOCAB
    chosen = np.bincount(masked.positions[real], minlength=128)[1:127]
    assert abs(chosen / (total / 126) - 1).max() < 0.15


def test_replacement_is_independent_of_position() -> None:
    masked, _ = mask([128] * 6000, seed=5)
    real = masked.labels >= 0
    is_mask = (masked.input_ids[np.arange(6000)[:, None], masked.positions] == MASK)[real]
    for half in (masked.positions[real] < 64, masked.positions[real] % 2 == 0):
        assert abs(is_mask[half].mean() - 0.802) < 0.006


def test_masks_depend_on_key_not_on_batch() -> None:
    together, _ = mask([50, 60, 70])
    width = together.input_ids.shape[1]
    alone, _ = mask([50, 60, 70, width])
    np.testing.assert_array_equal(alone.input_ids[:3], together.input_ids)
    other, _ = mask([50, 60, 70], seed=1)
    assert (other.positions != together.positions).any()
