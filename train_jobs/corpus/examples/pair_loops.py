"""Loops over the sentences of a block, which `pairs` calls: the part of planning that is a chain of single draws.

Each pair decides where the next one starts and which random number it takes, so numpy cannot vectorise the chain. The
functions here use only numbers and indexing, so Numba can compile them: a hundred times as fast as Python, and without
the GIL, so that planning in a thread does not delay the thread that launches kernels. Without Numba, and for small
blocks, for which compilation would take longer than it saves, they run as Python. The results are bit-exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

COMPILE_FROM = 1 << 19  # tokens of a block; Python plans a smaller one in less than 0.1 s
OTHER_DOCUMENT_DRAWS = 10  # as in create_pretraining_data.py
COINS = 52  # coin tosses of one draw
MISSING = -1  # more draws are needed


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of this module compiled by Numba, or the function itself where Numba is not installed."""
    try:
        import numba
    except ImportError:
        return function
    # A compiled function can only call compiled ones: a copy of each sees those under the names of the helpers.
    names = dict(globals())
    for helper in (bisect_left, heads, other_document, cut_excess):
        names[helper.__name__] = numba.njit(nogil=True)(FunctionType(helper.__code__, names, helper.__name__))
    copy = FunctionType(function.__code__, names, function.__name__)
    try:
        return numba.njit(nogil=True, cache=True)(copy)
    except RuntimeError:  # no writable folder for the cache, so every process compiles
        return numba.njit(nogil=True)(copy)


def bisect_left(values: Any, wanted: int, low: int, high: int) -> int:
    """Return the first place in low ... high - 1 whose value is at least `wanted`, else `high`."""
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


def heads(draws: Any, used: int, tosses: int) -> tuple[int, int]:
    """Count heads among coin tosses: each bit of a uniform number is a toss. Return it with the draws used so far."""
    count = 0
    while tosses > 0:
        bits = int(draws[used] * (1 << min(tosses, COINS)))
        while bits:
            bits &= bits - 1
            count += 1
        tosses -= COINS
        used += 1
    return count, used


def other_document(document: int, documents: Any, draws: Any, used: int) -> tuple[int, int, int]:
    """Draw a sentence of another document; after ten unlucky draws the same one is used, as in the original.

    Returns:
        The document, the sentence, and the draws used so far, or MISSING.
    """
    count, other = len(documents) - 1, document
    for _ in range(OTHER_DOCUMENT_DRAWS):
        if used >= len(draws):
            return 0, 0, MISSING
        other = int(draws[used] * count)
        used += 1
        if other != document:
            break
    if used >= len(draws):
        return 0, 0, MISSING
    low, high = documents[other], documents[other + 1]
    return other, low + int(draws[used] * (high - low)), used + 1


def cut_excess(a: int, b: int, longest: int, draws: Any, used: int) -> tuple[int, int, int, int, int]:
    """Decide the tokens to drop from two segments of `a` and `b` tokens, so that both fit.

    The original drops one token per iteration from the longer segment (B in a tie), at front or back by even chance.
    Only the counts matter, so they are computed, and all coins of a segment are tossed together.

    Returns:
        Tokens to drop at the front of A, at its back, at the front of B, at its back, and the draws used so far or
        MISSING.
    """
    excess = a + b - longest
    if excess <= 0:
        return 0, 0, 0, 0, used
    ahead = min(excess, abs(a - b))  # these all come from the longer one
    from_a = (excess - ahead) // 2 + (ahead if a > b else 0)  # then both are equal: B, A, B, ...
    from_b = excess - from_a
    needed = (from_a + COINS - 1) // COINS + (from_b + COINS - 1) // COINS
    if used + needed > len(draws):
        return 0, 0, 0, 0, MISSING
    a_front, used = heads(draws, used, from_a)
    b_front, used = heads(draws, used, from_b)
    return a_front, from_a - a_front, b_front, from_b - b_front, used


def plan_pairs(offsets: Any, documents: Any, draws: Any, state: Any, rows: Any, longest: int, short: float) -> bool:
    """Plan pairs of sentences until the text or the draws end.

    Args:
        offsets: int64 [sentences + 1], see `Block`.
        documents: int64 [documents + 1], see `Block`.
        draws: float64, uniform in [0, 1), in their order.
        state: int64 [5], changed in place: the document, its first sentence that is left, its target length (0: not
            drawn), the rows made and the draws used. It stops before the pair that needs more draws than there are.
        rows: int64 [sentences, 5], filled in place.
        longest: most tokens of a pair.
        short: probability of a shorter target length.

    Returns:
        Whether the text ended; otherwise more draws are needed.
    """
    document, first, target, made, used = state[0], state[1], state[2], state[3], state[4]
    while document < len(documents) - 1:
        state[0], state[1], state[2], state[3], state[4] = document, first, target, made, used
        if target == 0:  # at the start of a document
            if used >= len(draws) or (draws[used] < short and used + 1 >= len(draws)):
                return False
            if draws[used] < short:
                target, used = 2 + int(draws[used + 1] * (longest - 1)), used + 2
            else:
                target, used = longest, used + 1
        last = documents[document + 1]
        # the shortest run of sentences that has `target` tokens
        end = min(bisect_left(offsets, offsets[first] + target, first + 1, last), last)
        cut, is_random = first + 1, True
        if end - first > 1:
            if used + 1 >= len(draws):
                return False
            cut, is_random = first + 1 + int(draws[used] * (end - first - 1)), draws[used + 1] < 0.5
            used += 2
        b_first, b_last, following = cut, end, end
        if is_random:
            other, b_first, used = other_document(document, documents, draws, used)
            if used == MISSING:
                return False
            high, wanted = documents[other + 1], target - (offsets[cut] - offsets[first])
            b_last = min(bisect_left(offsets, offsets[b_first] + wanted, b_first + 1, high), high)
            following = cut  # the sentences after the cut are put back, as in the original
        a_length, b_length = offsets[cut] - offsets[first], offsets[b_last] - offsets[b_first]
        a_front, a_back, b_front, b_back, used = cut_excess(a_length, b_length, longest, draws, used)
        if used == MISSING:
            return False
        rows[made, 0], rows[made, 1] = offsets[first] + a_front, offsets[cut] - a_back
        rows[made, 2], rows[made, 3] = offsets[b_first] + b_front, offsets[b_last] - b_back
        rows[made, 4] = 1 if is_random else 0
        made, first = made + 1, following
        if first >= last:
            document, target = document + 1, 0
    state[0], state[1], state[2], state[3], state[4] = document, first, target, made, used
    return True


def plan_consecutive(offsets: Any, bounds: Any, lengths: Any, rows: Any) -> int:
    """Plan consecutive text in which each token occurs once.

    Args:
        offsets: int64 [sentences + 1], see `Block`.
        bounds: int64 [ranges + 1] sentences at which a sequence must end: every document, or the block alone.
        lengths: int64 [3]: most tokens of the first row, of a later row, and tokens of a row that may stay empty so
            that it ends with a sentence.
        rows: int64 [rows, 5], filled in place.

    Returns:
        The number of rows.
    """
    made, most = 0, lengths[0]
    for number in range(len(bounds) - 1):
        first, last = bounds[number], bounds[number + 1]
        start, end = offsets[first], offsets[last]
        while start < end:
            # the end of a sentence, if it leaves little room; else the next row continues the sentence
            first = bisect_left(offsets, start + most + 1, first, last + 1) - 1
            stop = offsets[first]
            if stop < end and stop < start + most - lengths[2]:
                stop = start + most
            rows[made, 0], rows[made, 1], rows[made, 2], rows[made, 3], rows[made, 4] = start, stop, stop, stop, 0
            made, start, most = made + 1, stop, lengths[1]
    return made
