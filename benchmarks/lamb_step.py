"""Time of a LAMB step on a CPU, over that of torch's fused AdamW on the same weights.

    python -m benchmarks.lamb_step [ROUNDS]

Weights of BERT-base with random gradients; both optimizers step alternately, and the ratio of each pair is what counts.
Processor time of this thread with one thread of torch, so that other programs disturb little.

Expected before the first run: AdamW reads four vectors and writes three, 28 bytes a weight. LAMB must also write the
update, read it again and read and write the weight again, 12 bytes: 1.4 times, if one loop made each pass.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

from benchmarks.machine import describe, spread
from train_jobs.config import ModelConfig
from train_jobs.models.bert.pretraining_heads import BertForPreTraining
from train_jobs.optim.lamb import Lamb

PIECES = 30_522


def weights() -> list[torch.nn.Parameter]:
    """Return the weights of BERT-base with random gradients."""
    draw = torch.Generator().manual_seed(1)
    made = list(BertForPreTraining(ModelConfig(), PIECES).parameters())
    for parameter in made:
        parameter.grad = torch.randn(parameter.shape, generator=draw) * 1e-3
    return made


def seconds_of(optimizer: torch.optim.Optimizer) -> float:
    """Return the processor time of a step."""
    started = time.thread_time()
    optimizer.step()
    return time.thread_time() - started


def main(rounds: int = 9) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    lamb, adamw = Lamb(weights()), torch.optim.AdamW(weights(), fused=True)
    pairs = [(seconds_of(lamb), seconds_of(adamw)) for _ in range(rounds + 1)][1:]  # the first makes the moments
    print(describe("torch"))
    print(f"LAMB, ms   {spread([first for first, _ in pairs], 1000)}")
    print(f"AdamW, ms  {spread([second for _, second in pairs], 1000)}")
    print(f"LAMB / AdamW {statistics.median(first / second for first, second in pairs):.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
