"""Dropout (Srivastava et al. 2014) that costs little on a CPU.

There torch draws one Bernoulli number after another, which takes a third of BERT's forward and backward pass. Here an
element is kept if 15 random bits of its own are not below a threshold, and the bits come 64 at a time from SFC64
(Doty-Humphrey's PractRand; numpy's fastest generator): a tenth of the time (benchmarks/dropout_cpu.py). Elements are
independent, and each is dropped with a probability that is the asked for one to 1 / 65536: 0.100006 for 0.1.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

BITS = 15
_WHOLE_NUMBER = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element


def dropout(x: Tensor, probability: float) -> Tensor:
    """Zeroes elements at random and scales the others by 1 / (1 - probability); for use in training.

    What is drawn is a function of torch's own generator of the device, one number of which seeds a call.
    """
    if probability == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():  # which draws within its own kernels
        return F.dropout(x, probability)
    return x * keep_factors(x.shape, probability, x.dtype)


def keep_factors(shape: torch.Size, probability: float, dtype: torch.dtype) -> Tensor:
    """What dropout multiplies with, on the CPU: 0, or 1 / (1 - probability) as `dtype` has it."""
    assert 0 < probability < 1
    size = shape.numel()
    seed = int(torch.randint(2**62, ()).item())
    draws = np.random.SFC64(seed).random_raw(-(-size // 4))
    bits = torch.from_numpy(draws.view(np.int16))[:size].bitwise_and_(2**BITS - 1)
    threshold = round(probability * 2**BITS)
    kept = torch.rsub(bits, threshold - 1).bitwise_right_shift_(BITS)  # all ones where bits >= threshold, else zero
    scale = torch.tensor(1 / (1 - probability), dtype=dtype)
    number = _WHOLE_NUMBER[scale.element_size()]
    return kept.to(number).bitwise_and_(scale.view(number)).view(dtype).view(shape)


class Dropout(nn.Module):
    """`dropout` in training, nothing otherwise."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, kept."""
        return dropout(x, self.probability) if self.training else x

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"probability={self.probability}"
