"""LAMB's update of one tensor on a CPU, compiled by Numba; without Numba, `lamb` uses torch's operations.

torch's operations would each read and write the whole tensor: decay, Adam, two norms and the sum are eleven passes over
memory, 3 to 5 times the time of AdamW. Here two loops are enough. Each runs over blocks that stay in the cache of a
core, as several short loops: LLVM vectorises a loop over three or four arrays, but not one over five.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

COMPILE_FROM = 1 << 22  # weights of an optimizer: a step of fewer takes less than 20 ms, and compiling takes seconds
BLOCK = 1024  # elements: four vectors of this size fit in the first cache of a core


class Factors(NamedTuple):
    """Factors of an update, of the type of the weights."""

    first_rate: Any
    """1 - beta1."""
    second_decay: Any
    """beta2."""
    second_rate: Any
    """1 - beta2."""
    step_size: Any
    """1 / (1 - beta1^step)."""
    root: Any
    """1 / sqrt(1 - beta2^step)."""
    eps: Any
    decay: Any
    """Minus the weight decay."""


@cache
def compiled_update() -> Callable[..., None] | None:
    """Return `update`, compiled and able to run without the GIL; None where Numba is not installed."""
    try:
        import numba
        from numba.extending import register_jitable
    except ImportError:
        return None
    # Products and sums may fuse; sums of squares may take the order that vectors need.
    for loop in (_first_moment, _second_moment, _direction, _add):
        register_jitable(fastmath={"contract"})(loop)
    register_jitable(fastmath={"reassoc", "contract"})(_squares)
    options: Any = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(update)
    except RuntimeError:  # no writable folder for the cache, so every process compiles
        return numba.njit(**options)(update)


def update(weight: Any, grad: Any, first: Any, second: Any, factors: Any, rate: float, trust_ratio: bool) -> None:
    """Update a tensor and its moments in place, see `Lamb`.

    Args:
        weight, grad, first, second: one-dimensional arrays of one type. `grad` is overwritten: its memory is in the
            cache already, so the update costs no further pass.
        factors: `Factors`.
        rate: learning rate.
        trust_ratio: whether to scale the update to the norm of the weights.
    """
    first_rate, second_decay, second_rate, step_size, root, eps, decay = factors
    weights = updates = 0.0  # fp64: a sum of a few thousand sums
    for start in range(0, len(weight), BLOCK):
        block = slice(start, min(start + BLOCK, len(weight)))
        w, g, m, v = weight[block], grad[block], first[block], second[block]
        _first_moment(m, g, first_rate)
        _second_moment(v, g, second_decay, second_rate)
        _direction(g, w, m, v, step_size, root, eps, decay)
        if trust_ratio:
            weights += _squares(w)
            updates += _squares(g)
    if trust_ratio and weights > 0 and updates > 0:
        rate *= math.sqrt(weights / updates)
    _add(weight, grad, weight.dtype.type(rate))


def _first_moment(m: Any, g: Any, rate: Any) -> None:
    for i in range(len(m)):
        m[i] = m[i] + rate * (g[i] - m[i])


def _second_moment(v: Any, g: Any, decay: Any, rate: Any) -> None:
    for i in range(len(v)):
        v[i] = v[i] * decay + rate * (g[i] * g[i])


def _direction(u: Any, w: Any, m: Any, v: Any, step_size: Any, root: Any, eps: Any, decay: Any) -> None:
    for i in range(len(u)):
        u[i] = decay * w[i] - step_size * m[i] / (np.sqrt(v[i]) * root + eps)


def _squares(x: Any) -> Any:
    total = x.dtype.type(0)
    for i in range(len(x)):
        total += x[i] * x[i]
    return total


def _add(w: Any, u: Any, rate: Any) -> None:
    for i in range(len(w)):
        w[i] = w[i] + rate * u[i]
