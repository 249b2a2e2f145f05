"""Stateless random numbers."""

from __future__ import annotations

import numpy as np

from train_jobs.corpus.examples.epoch_order import generator
from train_jobs.corpus.examples.masking import integers, keys, uniform


def test_draws_are_splitmix64() -> None:
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # its first outputs from seed 0
    draws = uniform(np.zeros(1, np.uint64), np.arange(3))
    np.testing.assert_array_equal(draws, [(number >> 11) / 2**53 for number in published])


def test_draw_is_independent_of_other_draws() -> None:
    whole = uniform(keys(7, 1, np.arange(5))[:, None], np.arange(10))
    assert whole.shape == (5, 10)
    assert uniform(keys(7, 1, 3), np.array([8]))[0] == whole[3, 8]


def test_key_depends_on_parts_and_their_order() -> None:
    paths = [(1, 2), (2, 1), (1, 2, 0), (1,), (2,), (0, 1, 2)]
    assert len({int(keys(7, *path)[0]) for path in paths} | {int(keys(8, 1, 2)[0])}) == len(paths) + 1


def test_draws_are_uniform_over_keys_and_counters() -> None:
    for draws in (uniform(keys(1, np.arange(200_000)), np.array([0])), uniform(keys(1), np.arange(200_000))):
        assert 0 <= draws.min() < draws.max() < 1
        counts = np.histogram(draws, bins=100, range=(0, 1))[0]
        chi_square = ((counts - 2000) ** 2 / 2000).sum()
        assert 50 < chi_square < 160  # 99 degrees of freedom: mean 99, standard deviation 14
        assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.01


def test_integers_cover_exactly_their_range() -> None:
    draws = integers(keys(3), np.arange(10_000), below=7)
    assert set(draws.tolist()) == set(range(7))
    assert np.bincount(draws).min() > 1200


def test_largest_seed_is_accepted_without_warning() -> None:
    seed = 2**63 - 1
    assert uniform(keys(seed, 2**40), np.array([2**40])) != uniform(keys(seed - 1, 2**40), np.array([2**40]))
    assert generator(seed, 1).random() == generator(seed, 1).random() != generator(seed, 2).random()
