"""Sobol's sequence, with the direction numbers of Joe and Kuo (2008, new-joe-kuo-6), by SciPy.

Points are not scrambled by SciPy: its scrambling depends on NumPy's generator, and trial i of a sweep is a function of
(space, seed, i) that must not change with a version of NumPy. `points` applies a digital shift of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

BITS = 32
MOST_DIMENSIONS = 21_201  # of the table of direction numbers
BLOCK = 256  # points drawn at a time: a generator takes milliseconds to set up


def sobol(index: int, dimensions: int) -> list[int]:
    """Return the coordinates of point `index` (0, 1, ...; below 2**30) in units of 2**-32, in the order of Gray codes.

    Args:
        index: number of the point.
        dimensions: coordinates of a point, at most `MOST_DIMENSIONS`.
    """
    block, place = divmod(index, BLOCK)
    return [int(coordinate * (1 << BITS)) for coordinate in _block(block, dimensions)[place]]


@lru_cache(maxsize=4)
def _block(number: int, dimensions: int) -> Any:
    """Coordinates in [0, 1) of `BLOCK` points, one row each."""
    import warnings

    from scipy.stats.qmc import Sobol

    engine = Sobol(dimensions, scramble=False)
    if number:  # SciPy fails to skip no points
        engine.fast_forward(number * BLOCK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about a balance that holds for powers of two
        return engine.random(BLOCK)
