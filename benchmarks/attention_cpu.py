"""Attention on a CPU, forward and backward: plain matrix products against torch's fused kernel.

python -m benchmarks.attention_cpu
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.machine import describe, spread
from train_jobs.models.bert.attention import plain_attention

ROUNDS = 15
TOKENS = 4096  # a micro batch
SHAPES = [(64, 2), (128, 4), (128, 12), (256, 12)]  # sequence length, heads of 64


def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float) -> torch.Tensor:
    """Run torch's fused kernel, which `plain_attention` replaces on a CPU."""
    return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float) -> torch.Tensor:
    """Run the attention of our model."""
    return plain_attention(query, key, value, None, dropout)


def once(function: Callable[..., torch.Tensor], length: int, heads: int, dropout: float) -> float:
    """Return the seconds of one forward and backward pass."""
    shape = (TOKENS // length, heads, length, 64)
    query, key, value = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    started = time.perf_counter()
    function(query, key, value, dropout).sum().backward()
    return time.perf_counter() - started


def main() -> None:
    """Print a table of milliseconds."""
    print(f"{describe('torch')}; bf16, {torch.get_num_threads()} threads, {TOKENS} tokens; milliseconds\n")
    print("| length | heads | dropout | fused | plain | fused / plain |\n|---|---|---|---|---|---|")
    for length, heads in SHAPES:
        for dropout in (0.0, 0.1):
            taken: dict[Callable[..., torch.Tensor], list[float]] = {fused: [], plain: []}
            # Interleaved, so that a slow moment affects both; the first two rounds warm up caches and thread pools.
            for _ in range(ROUNDS + 2):
                for function, seconds in taken.items():
                    seconds.append(once(function, length, heads, dropout))
            old, new = taken[fused][2:], taken[plain][2:]
            ratios = [before / after for before, after in zip(old, new, strict=True)]
            cells = (length, heads, dropout, spread(old, 1e3), spread(new, 1e3), spread(ratios, digits=2))
            print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
