"""Linear layers, table lookups and dropout that are fast on a CPU; elsewhere torch's own operations run.

Gradients of weights are added directly to where they are accumulated. On a CPU, with 16-bit arithmetic, autograd's way
costs BERT a fifth of its time. Per weight and micro batch it casts the fp32 weight, multiplies over all tokens,
casts the product to a new fp32 tensor and adds that to the gradient. For the embedding table that tensor is as large as
the table, however few rows were looked up. Here

- the 16-bit weight is made once per optimizer step,
- the weight's gradient is multiplied in pieces of 1024 tokens, which matrix units process up to 1.5 times faster,
- and added to `weight.grad` in place.

The first and the last happen only within `gradients_in_place`, in which the engine runs a step's micro batches. The
results are those of autograd except for the order of sums. On GPUs, in fp32 and in evaluation torch's own operations
run. For figures, also of Hugging Face's layers, see benchmarks/pretrain_throughput.py.

Dropout (Srivastava et al. 2014): torch draws one Bernoulli number after another, which takes a third of BERT's forward
and backward pass. Here an element is kept if its own 15 random bits are not below a threshold, and the bits come 64 at
a time from SFC64 (Doty-Humphrey's PractRand; numpy's fastest generator): a tenth of the time
(benchmarks/dropout_cpu.py). Elements are independent, and each is dropped with the requested probability to 1 / 65536:
0.100006 for 0.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

PIECE = 1024  # tokens; of 256, 512, 768, 1024 and all of 2048 or 4096, the fastest on AMX units

_low_precision_weights: ContextVar[dict[int, Tensor] | None] = ContextVar("halves", default=None)


@contextmanager
def gradients_in_place() -> Iterator[None]:
    """Add gradients in place, to `.grad` where it exists; weights must not change within the context."""
    token = _low_precision_weights.set({})
    try:
        yield
    finally:
        _low_precision_weights.reset(token)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[..., K], [N, K], [N] -> [..., N]."""
    if _uses_own_backward(x, weight):
        return _Dense.apply(x, 1, weight, bias)
    return F.linear(x, weight, bias)


def joint_linear(x: Tensor, layers: Sequence[nn.Linear]) -> Tensor:
    """Several dense layers with biases on one input, as one product: [..., K] -> [..., sum of N]."""
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    if _uses_own_backward(x, weights[0]):
        return _Dense.apply(x, len(layers), *weights, *biases)
    return F.linear(x, torch.cat(tuple(weights)), torch.cat(tuple(biases)))


def embedding(ids: Tensor, table: Tensor, *, padding: int) -> Tensor:
    """int64 [...], [V, H] -> [..., H]; the lookup of `padding` sends no gradient to its row."""
    if ids.device.type == "cpu" and torch.is_grad_enabled() and _adds_in_place(table):
        return _Embedding.apply(ids, table, padding)
    return F.embedding(ids, table, padding_idx=padding)


class Linear(nn.Linear):
    """A dense layer."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N]."""
        return linear(x, self.weight, self.bias)


def _uses_own_backward(x: Tensor, weight: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and torch.is_autocast_enabled("cpu")
        and torch.is_grad_enabled()
        and weight.requires_grad
        and not torch.compiler.is_compiling()
    )


def _low_precision(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the weights, concatenated, as `dtype`."""
    held = _low_precision_weights.get()
    if held is None:
        return _joined(weights, dtype)
    key = id(weights[0])  # always followed by the same other weights
    if key not in held:
        held[key] = _joined(weights, dtype)
    return held[key]


def _joined(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    halves = [weight.detach().to(dtype) for weight in weights]
    return halves[0] if len(halves) == 1 else torch.cat(halves)


def _adds_in_place(weight: Tensor) -> bool:
    return _low_precision_weights.get() is not None and weight.grad is not None


def _accumulate(weight: Tensor, grad: Tensor) -> Tensor | None:
    """Add to the gradient of the weight, or return it to autograd."""
    if not _adds_in_place(weight):
        return grad.to(weight.dtype)
    assert weight.grad is not None
    weight.grad.add_(grad)
    return None


class _Dense(torch.autograd.Function):
    """Dense layers on one input in autocast's 16-bit type, on the CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *parameters: Tensor | None) -> Tensor:
        dtype = torch.get_autocast_dtype("cpu")
        weights, biases = parameters[:count], [bias for bias in parameters[count:] if bias is not None]
        x, half = x.to(dtype), _low_precision([weight for weight in weights if weight is not None], dtype)
        ctx.save_for_backward(x)
        ctx.weights, ctx.biases, ctx.half = weights, biases, half
        with torch.autocast("cpu", enabled=False):
            return F.linear(x, half, _joined(biases, dtype) if biases else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        grad = grad.contiguous()
        to_input = grad @ ctx.half if ctx.needs_input_grad[0] else None
        grads, inputs = grad.flatten(0, -2), x.flatten(0, -2)
        to_weights = grads[:PIECE].t() @ inputs[:PIECE]
        for start in range(PIECE, len(grads), PIECE):
            to_weights.addmm_(grads[start : start + PIECE].t(), inputs[start : start + PIECE])
        sizes = [len(weight) for weight in ctx.weights]
        each = [_accumulate(weight, part) for weight, part in zip(ctx.weights, to_weights.split(sizes), strict=True)]
        if ctx.biases:
            each += [_accumulate(bias, part) for bias, part in zip(ctx.biases, grads.sum(0).split(sizes), strict=True)]
        else:
            each.append(None)
        return to_input, None, *each


class _Embedding(torch.autograd.Function):
    """A lookup whose gradient is added only to the rows that were looked up."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.table, ctx.padding = table, padding
        return F.embedding(ids, table)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        rows = grad.masked_fill((ids == ctx.padding)[..., None], 0)
        ctx.table.grad.index_add_(0, ids.flatten(), rows.flatten(0, -2).to(ctx.table.dtype))
        return None, None, None


BITS = 15
_WHOLE_NUMBER = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size of an element in bytes


def dropout(x: Tensor, probability: float) -> Tensor:
    """Zero elements at random and scale the others by 1 / (1 - probability); for use in training.

    The draws depend on torch's generator of the device, one number of which seeds each call.
    """
    if probability == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():  # their kernels draw themselves
        return F.dropout(x, probability)
    return x * keep_factors(x.shape, probability, x.dtype)


def keep_factors(shape: torch.Size, probability: float, dtype: torch.dtype) -> Tensor:
    """Return the factors of dropout on the CPU: 0, or 1 / (1 - probability) in `dtype`."""
    assert 0 < probability < 1
    size = shape.numel()
    draws = np.random.SFC64(int(torch.randint(2**62, ()).item())).random_raw(-(-size // 4))
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
        """Return the text that `print(model)` shows."""
        return f"probability={self.probability}"
