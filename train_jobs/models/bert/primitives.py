"""Linear layers, embedding lookups and dropout that are fast on a CPU; on other devices torch's operations run.

On a CPU, with 16-bit arithmetic, autograd's accumulation of gradients takes a fifth of BERT's time. For each weight and
micro batch it casts the fp32 weight, multiplies over all tokens, casts the product to a new fp32 tensor and adds it to
the gradient. For the embedding table that tensor is as large as the table, even if few rows were looked up. Here

- the 16-bit weight is cast once per optimizer step,
- the weight's gradient is computed in pieces of 1024 tokens, which matrix units process up to 1.5 times faster,
- and added to `weight.grad` in place.

The first and the last apply only within `gradients_in_place`, in which the engine runs a step's micro batches. The
results are those of autograd except for the order of sums. On GPUs, in fp32 and in evaluation torch's operations
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

PIECE = 1024  # tokens; the fastest on AMX units of 256, 512, 768, 1024, and all 2048 or 4096 together

_low_precision_weights: ContextVar[dict[int, Tensor] | None] = ContextVar("halves", default=None)


@contextmanager
def gradients_in_place() -> Iterator[None]:
    """Add gradients to existing `.grad` in place, and cache 16-bit weights; the body must not change weights."""
    token = _low_precision_weights.set({})
    try:
        yield
    finally:
        _low_precision_weights.reset(token)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a dense layer: [..., K] to [..., N].

    Args:
        x: [..., K].
        weight: fp32 [N, K].
        bias: fp32 [N], or None.
    """
    if _uses_own_backward(x, weight):
        return _Dense.apply(x, 1, weight, bias)
    return F.linear(x, weight, bias)


def joint_linear(x: Tensor, layers: Sequence[nn.Linear]) -> Tensor:
    """Apply several dense layers with biases to one input as one product: [..., K] to [..., sum of N]."""
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    if _uses_own_backward(x, weights[0]):
        return _Dense.apply(x, len(layers), *weights, *biases)
    return F.linear(x, torch.cat(tuple(weights)), torch.cat(tuple(biases)))


def embedding(ids: Tensor, table: Tensor, *, padding: int) -> Tensor:
    """Look up rows of a table: int64 [...] to [..., H].

    Args:
        ids: int64 [...].
        table: fp32 [V, H].
        padding: id whose row receives no gradient.
    """
    if ids.device.type == "cpu" and torch.is_grad_enabled() and _adds_in_place(table):
        return _Embedding.apply(ids, table, padding)
    return F.embedding(ids, table, padding_idx=padding)


class Linear(nn.Linear):
    """Dense layer, see `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., K] to [..., N]."""
        return linear(x, self.weight, self.bias)


def _uses_own_backward(x: Tensor, weight: Tensor) -> bool:
    """Return whether `_Dense` applies: a trained weight in 16-bit arithmetic on a CPU, outside of torch.compile."""
    return (
        x.device.type == "cpu"
        and torch.is_autocast_enabled("cpu")
        and torch.is_grad_enabled()
        and weight.requires_grad
        and not torch.compiler.is_compiling()
    )


def _low_precision(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the concatenated weights as `dtype`, cached within `gradients_in_place`."""
    held = _low_precision_weights.get()
    if held is None:
        return _joined(weights, dtype)
    # The first weight identifies the list: a layer always joins the same weights. The id stays valid, since the context
    # lasts one step and the model outlives it.
    key = id(weights[0])
    if key not in held:
        held[key] = _joined(weights, dtype)
    return held[key]


def _joined(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    halves = [weight.detach().to(dtype) for weight in weights]
    return halves[0] if len(halves) == 1 else torch.cat(halves)


def _adds_in_place(weight: Tensor) -> bool:
    return _low_precision_weights.get() is not None and weight.grad is not None


def _accumulate(weight: Tensor, grad: Tensor) -> Tensor | None:
    """Add `grad` to the gradient of the weight and return None, or return it for autograd to accumulate."""
    # None means for autograd that there is nothing to accumulate; returning the gradient as well would count it twice.
    if not _adds_in_place(weight):
        return grad.to(weight.dtype)
    assert weight.grad is not None
    weight.grad.add_(grad)
    return None


class _Dense(torch.autograd.Function):
    """Dense layers with a common input, in autocast's 16-bit type on the CPU."""

    # Weights are attributes of the context instead of saved tensors: `_accumulate` adds to the `.grad` of the parameter
    # object itself.

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *parameters: Tensor | None) -> Tensor:
        dtype = torch.get_autocast_dtype("cpu")
        weights, biases = parameters[:count], [bias for bias in parameters[count:] if bias is not None]
        x, half = x.to(dtype), _low_precision([weight for weight in weights if weight is not None], dtype)
        ctx.save_for_backward(x)
        ctx.weights, ctx.biases, ctx.half = weights, biases, half
        # the operands are cast already
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
    """Embedding lookup whose gradient is added only to the rows that were looked up."""

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


BITS = 15  # per element: they fit in an int16 whose sign bit is free for the comparison below
_WHOLE_NUMBER = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size of an element in bytes


def dropout(x: Tensor, probability: float) -> Tensor:
    """Zero elements at random and scale the others by 1 / (1 - probability); for use in training.

    Args:
        x: tensor of any shape.
        probability: probability of dropping an element, 0 to 1.
    """
    if probability == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():  # their kernels draw fast enough
        return F.dropout(x, probability)
    return x * keep_factors(x.shape, probability, x.dtype)


def keep_factors(shape: torch.Size, probability: float, dtype: torch.dtype) -> Tensor:
    """Return the factors of dropout on the CPU: 0, or 1 / (1 - probability).

    Args:
        shape: shape of the result.
        probability: probability of 0, between 0 and 1.
        dtype: floating-point type of the result.
    """
    assert 0 < probability < 1
    # One number of torch's generator seeds each call, so that `torch.manual_seed` and fork_rng still decide all draws.
    size = shape.numel()
    draws = np.random.SFC64(int(torch.randint(2**62, ()).item())).random_raw(-(-size // 4))
    bits = torch.from_numpy(draws.view(np.int16))[:size].bitwise_and_(2**BITS - 1)
    threshold = round(probability * 2**BITS)
    kept = torch.rsub(bits, threshold - 1).bitwise_right_shift_(BITS)  # all ones where bits >= threshold, else zero
    # The mask of all ones or all zeros selects the bits of the scale or those of 0.0: no random number in floating
    # point and no comparison for each element.
    scale = torch.tensor(1 / (1 - probability), dtype=dtype)
    number = _WHOLE_NUMBER[scale.element_size()]
    return kept.to(number).bitwise_and_(scale.view(number)).view(dtype).view(shape)


class Dropout(nn.Module):
    """Dropout in training mode, identity otherwise."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of any shape to the same shape."""
        return dropout(x, self.probability) if self.training else x

    def extra_repr(self) -> str:
        """Return the text that `print(model)` shows."""
        return f"probability={self.probability}"
