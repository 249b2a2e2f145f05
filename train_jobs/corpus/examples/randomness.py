"""Random numbers without state: each is a function of a key and a counter, so any can be had without those before it.

A key is the hash of a seed and of whatever names the thing that is drawn for (epoch, example, ...). Draw n of a key is
the n-th number of a splitmix64 generator that starts there (Steele, Lea and Flood 2014; the finaliser is Stafford's
variant 13 of murmur3's), which a closed formula gives for whole arrays at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_TO_DOUBLE = np.uint64(11)  # a double holds 53 bits


def keys(seed: int, *path: int | npt.NDArray[np.integer]) -> Keys:
    """Hashes a seed and the parts of a path, in order, into keys.

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
    """Draws `counters` of `key`, which broadcast together, uniform in [0, 1) with 53 bits."""
    bits = _mix(key + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (bits >> _TO_DOUBLE).astype(np.float64) * 2.0**-53


def integers(key: Keys, counters: npt.NDArray[np.integer], *, below: int) -> npt.NDArray[np.int64]:
    """Draws `counters` of `key`, uniform in 0 ... below - 1 (uneven by less than below / 2**53)."""
    return (uniform(key, counters) * below).astype(np.int64)


def generator(seed: int, *path: int) -> np.random.Generator:
    """A numpy generator whose stream belongs to the seed and the path alone."""
    return np.random.default_rng([seed, *path])


def _mix(x: Keys) -> Keys:
    """Arrays of uint64 wrap around silently, as the arithmetic wants; scalars would warn."""
    x = (x ^ (x >> _SHIFTS[0])) * _MULTIPLIERS[0]
    x = (x ^ (x >> _SHIFTS[1])) * _MULTIPLIERS[1]
    return x ^ (x >> _SHIFTS[2])
