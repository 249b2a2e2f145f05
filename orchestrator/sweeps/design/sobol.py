"""Sobol's sequence in up to 32 dimensions, with the direction numbers of Joe and Kuo (2008, new-joe-kuo-6)."""

from __future__ import annotations

from functools import cache

BITS = 32
# One row a dimension from the second on: the primitive polynomial's coefficients as bits, the first direction numbers.
_JOE_KUO: tuple[tuple[int, tuple[int, ...]], ...] = (
    (3, (1,)),
    (7, (1, 3)),
    (11, (1, 3, 1)),
    (13, (1, 1, 1)),
    (19, (1, 1, 3, 3)),
    (25, (1, 3, 5, 13)),
    (37, (1, 1, 5, 5, 17)),
    (41, (1, 1, 5, 5, 5)),
    (47, (1, 1, 7, 11, 19)),
    (55, (1, 1, 5, 1, 1)),
    (59, (1, 1, 1, 3, 11)),
    (61, (1, 3, 5, 5, 31)),
    (67, (1, 3, 3, 9, 7, 49)),
    (91, (1, 1, 1, 15, 21, 21)),
    (97, (1, 3, 1, 13, 27, 49)),
    (103, (1, 1, 1, 15, 7, 5)),
    (109, (1, 3, 1, 15, 13, 25)),
    (115, (1, 1, 5, 5, 19, 61)),
    (131, (1, 3, 7, 11, 23, 15, 103)),
    (137, (1, 3, 7, 13, 13, 15, 69)),
    (143, (1, 1, 3, 13, 7, 35, 63)),
    (145, (1, 3, 5, 9, 1, 25, 53)),
    (157, (1, 3, 1, 13, 9, 35, 107)),
    (167, (1, 3, 1, 5, 27, 61, 31)),
    (171, (1, 1, 5, 11, 19, 41, 61)),
    (185, (1, 3, 5, 3, 3, 13, 69)),
    (191, (1, 1, 7, 13, 1, 19, 1)),
    (193, (1, 3, 7, 5, 13, 19, 59)),
    (203, (1, 1, 3, 9, 25, 29, 41)),
    (211, (1, 3, 5, 13, 23, 1, 55)),
    (213, (1, 3, 7, 3, 13, 59, 17)),
)
MOST_DIMENSIONS = len(_JOE_KUO) + 1


def sobol(index: int, dimensions: int) -> list[int]:
    """The coordinates of point `index` (0, 1, ...), in units of 2**-32; in the order of Gray codes, as is usual."""
    gray = index ^ (index >> 1)
    return [_coordinate(gray, _directions(dimension)) for dimension in range(dimensions)]


def _coordinate(gray: int, directions: tuple[int, ...]) -> int:
    found = 0
    for bit, direction in enumerate(directions):
        if gray >> bit & 1:
            found ^= direction
    return found


@cache
def _directions(dimension: int) -> tuple[int, ...]:
    """What each bit of an index contributes (Bratley and Fox 1988)."""
    if dimension == 0:
        return tuple(1 << (BITS - 1 - bit) for bit in range(BITS))
    polynomial, first = _JOE_KUO[dimension - 1]
    degree = polynomial.bit_length() - 1
    found = [number << (BITS - 1 - bit) for bit, number in enumerate(first)]
    for bit in range(degree, BITS):
        direction = found[bit - degree] ^ (found[bit - degree] >> degree)
        for term in range(1, degree):
            if polynomial >> (degree - term) & 1:
                direction ^= found[bit - term]
        found.append(direction)
    return tuple(found)
