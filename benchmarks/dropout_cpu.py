"""Dropout on a CPU, forward and backward: torch's against ours.

python -m benchmarks.dropout_cpu
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.machine import describe, spread
from train_jobs.models.bert.primitives import dropout

ROUNDS = 25
SHAPES = {"hidden states": (16, 128, 768), "attention probabilities": (16, 12, 128, 128)}  # BERT-base, micro batch 16
Dropout = Callable[[torch.Tensor, float], torch.Tensor]


def once(function: Dropout, shape: tuple[int, ...], dtype: torch.dtype) -> float:
    """Return the seconds of one forward and backward pass."""
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    upstream = torch.ones(shape, dtype=dtype)
    started = time.perf_counter()
    function(x, 0.1).backward(upstream)
    return time.perf_counter() - started


def main() -> None:
    """Print a table of milliseconds."""
    print(f"{describe('torch', 'numpy')}; {torch.get_num_threads()} threads; milliseconds\n")
    print("| | torch | ours | torch / ours |\n|---|---|---|---|")
    for name, shape in SHAPES.items():
        for dtype in (torch.bfloat16, torch.float32):
            taken: dict[Dropout, list[float]] = {F.dropout: [], dropout: []}
            # Interleaved, so that a slow moment affects both; the first two rounds are a warm-up.
            for _ in range(ROUNDS + 2):
                for function, seconds in taken.items():
                    seconds.append(once(function, shape, dtype))
            theirs, ours = taken[F.dropout][2:], taken[dropout][2:]
            ratios = [before / after for before, after in zip(theirs, ours, strict=True)]
            cells = (spread(theirs, 1e3), spread(ours, 1e3), spread(ratios))
            print(f"| {name}, {str(dtype).removeprefix('torch.')} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
