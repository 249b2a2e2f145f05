"""LAMB's update of one tensor on a CPU, compiled by Numba; without Numba, `lamb` uses torch's operations.

torch's operations would each read and write the whole tensor: decay, Adam, two norms and the sum are eleven passes over
memory, 3 to 5 times the time of AdamW. Here two passes are enough: moments, update and the squares for both norms, then
the sum. LLVM vectorises a loop over four arrays, but not one over five, so the update takes the memory of the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

COMPILE_FROM = 1 << 22  # weights of an optimizer: a step of fewer takes less than 20 ms, and compiling takes seconds
BLOCK = 4096  # elements whose squares are summed in the type of the weights


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
    register_jitable(fastmath={"reassoc", "contract"})(_direction)
    register_jitable(fastmath={"contract"})(_add)
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
    weights = updates = 0.0  # fp64: a sum of a few thousand sums
    for start in range(0, len(weight), BLOCK):
        block = slice(start, min(start + BLOCK, len(weight)))
        of_weights, of_updates = _direction(weight[block], grad[block], first[block], second[block], factors)
        weights += of_weights
        updates += of_updates
    if trust_ratio and weights > 0 and updates > 0:
        rate *= math.sqrt(weights / updates)
    _add(weight, grad, weight.dtype.type(rate))


def _direction(w: Any, g: Any, m: Any, v: Any, factors: Any) -> tuple[Any, Any]:
    """Update the moments, write the direction over the gradient; return the sums of squares of weight and direction."""
    first_rate, second_decay, second_rate, step_size, root, eps, decay = factors
    weights = updates = w.dtype.type(0)
    for i in range(len(w)):
        weight, grad = w[i], g[i]
        first = m[i] + first_rate * (grad - m[i])
        second = v[i] * second_decay + second_rate * (grad * grad)
        direction = decay * weight - step_size * first / (np.sqrt(second) * root + eps)
        m[i], v[i], g[i] = first, second, direction
        weights += weight * weight
        updates += direction * direction
    return weights, updates


def _add(w: Any, u: Any, rate: Any) -> None:
    for i in range(len(w)):
        w[i] = w[i] + rate * u[i]
