"""Dense layers of 16-bit weights on CPUs, in the order that oneDNN's kernels want them.

torch puts the weight into that order anew for every product, which for a short text takes as long as the product
itself. What it makes of requests: benchmarks/inference.py.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TYPICAL_TOKENS = 256  # at once; the order suits any number


class OrderedLinear(nn.Module):
    """A dense layer that can compute and nothing else."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self._weight, self._bias = _ordered(plain.weight.detach()), plain.bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N]."""
        return _product(x, self._weight, self._bias)


def order_weights(module: nn.Module) -> None:
    """Puts the weights of all dense layers in a module into that order, in place; where torch cannot, none."""
    kinds = {
        (layer.weight.device.type, layer.weight.dtype) for layer in module.modules() if isinstance(layer, nn.Linear)
    }
    if kinds != {("cpu", torch.bfloat16)} or not can_be_ordered():
        return
    for parent in [*module.modules()]:
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Linear):
                setattr(parent, name, OrderedLinear(layer))


@functools.cache
def can_be_ordered() -> bool:
    """Whether torch has the operations, which are not public, found out by comparing them with the plain product."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            x, weight, bias = (torch.randn(size).bfloat16() for size in ((2, 5, 32), (48, 32), (48,)))
            return torch.allclose(_product(x, _ordered(weight), bias), F.linear(x, weight, bias), rtol=0.05, atol=0.05)
    except (RuntimeError, TypeError, AttributeError):  # no oneDNN, another signature, no such operation
        return False


def _ordered(weight: Tensor) -> Tensor:
    ordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_TOKENS)
    return ordered


def _product(x: Tensor, ordered: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, ordered, bias, "none", [], "")
    return product
