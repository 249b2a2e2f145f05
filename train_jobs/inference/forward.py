"""Token sequences through a model in batches of N tokens, sorted by length, without padding.

For prediction weights are kept in the type and memory order of the arithmetic, and query, key and value in one matrix,
so that no batch casts, joins or reorders them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train_jobs.config import OutOfMemoryError
from train_jobs.engine.runtime.devices import is_out_of_memory, release_memory
from train_jobs.inference.model_folder import Model
from train_jobs.models.bert.attention import attend, attend_packed
from train_jobs.models.bert.encoder import EncoderLayer, SelfAttention, TokenPositions, require_compiler
from train_jobs.models.bert.task_heads import OutputLayer
from train_jobs.models.packing import Packing
from train_jobs.tasks.sequences import Ints, TokenBatch, Tokens, padded

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536}  # enough to keep the units busy


class JointSelfAttention(nn.Module):
    """Self-attention with query, key and value as one product; in evaluation equal to the separate ones."""

    def __init__(self, separate: SelfAttention) -> None:
        super().__init__()
        self.heads = separate.heads
        parts = (separate.query, separate.key, separate.value)
        self.joint = nn.Linear(separate.query.in_features, sum(part.out_features for part in parts))
        self.joint.weight.copy_(torch.cat([part.weight for part in parts]))
        self.joint.bias.copy_(torch.cat([part.bias for part in parts]))

    def forward(self, hidden: Tensor, positions: TokenPositions) -> Tensor:
        """Map [B, S, H] or [T, H] to the same shape."""
        joint = self.joint(hidden).unflatten(-1, (3, self.heads, -1))
        if isinstance(positions, Packing):
            return attend_packed(joint, positions, dropout=0.0).flatten(-2)
        return attend(joint, mask=positions, dropout=0.0).flatten(-2)


@torch.no_grad()
def prepare_model(model: Model, *, precision: str, device: torch.device, compiled: bool = False) -> Model:
    """Change a model in place into one that can only predict.

    Args:
        model: model with its weights.
        precision: bf16, fp16 or fp32.
        device: device to compute on.
        compiled: compile its layers.
    """
    for layer in model.bert.encoder.layer:
        assert isinstance(layer, EncoderLayer)
        layer.attention.register_module("self", JointSelfAttention(layer.attention.self))
    model.requires_grad_(False).to(device, DTYPES[precision]).eval()
    for layer in model.modules():
        if isinstance(layer, OutputLayer):  # fp32 as in training, so that scores and thresholds agree
            layer.float()
    if compiled:
        require_compiler(device, key="batching.compile")
        model.bert.encoder.compile_layers()
    else:
        order_weights(model.bert.encoder)
    return model


class Forward:
    """Runs sequences through a model.

    Args:
        model: result of `prepare_model`.
        batch_tokens: tokens of a batch. None: suited to the device.
        beat: called after each batch.
    """

    def __init__(
        self, model: Model, *, batch_tokens: int | None = None, beat: Callable[[], None] = lambda: None
    ) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.batch_tokens = batch_tokens or BATCH_TOKENS.get(self.device.type, BATCH_TOKENS["cpu"])
        self._beat = beat

    @torch.no_grad()  # not inference_mode, which forbids the trial run of attention's kernel
    def map(self, sequences: Sequence[Tokens], compute: Callable[[TokenBatch], Iterable[Any]]) -> list[Any]:
        """Return the results of `compute` for all sequences, in their order.

        If memory runs out, this and all later batches have half the tokens.

        Args:
            sequences: the sequences.
            compute: runs the model on a batch; returns one result for each of its sequences, on the host.

        Raises:
            OutOfMemoryError: a single sequence does not fit.
        """
        found: list[Any] = [None] * len(sequences)
        lengths = np.fromiter((len(one.ids) for one in sequences), np.int64, len(sequences))
        left = np.argsort(-lengths, kind="stable")
        while len(left):
            rows = left[: _count(lengths[left], self.batch_tokens)]
            try:
                results = compute(self.batch([sequences[row] for row in rows], rows.tolist()))
            except (RuntimeError, MemoryError) as problem:
                if not is_out_of_memory(problem):
                    raise
                self._halve(len(rows), int(lengths[rows].sum()))
                continue
            for row, result in zip(rows, results, strict=True):
                found[row] = result
            left = left[len(rows) :]
            self._beat()
        return found

    def batch(self, sequences: Sequence[Tokens], rows: Sequence[int]) -> TokenBatch:
        """Return sequences, at least one, as the model takes them; `rows` are their numbers."""
        seconds = np.fromiter((one.second for one in sequences), np.int64, len(sequences))
        return TokenBatch.on_device(padded([one.ids for one in sequences], seconds), self.device, rows=rows)

    def _halve(self, rows: int, tokens: int) -> None:
        release_memory(self.device)
        if rows == 1:
            raise OutOfMemoryError(
                f"out of memory with one sequence of {tokens} tokens",
                fix="--set data.max_length=128, or a machine with more memory",
            )
        self.batch_tokens = max(tokens // 2, 1)


def _count(lengths: Ints, tokens: int) -> int:
    """Return how many sequences, longest first, have at most `tokens` tokens; at least one."""
    return max(int(np.searchsorted(np.cumsum(lengths), tokens, side="right")), 1)


TYPICAL_TOKENS = 256  # of a batch; the order suits any number


class OrderedLinear(nn.Module):
    """A dense layer for prediction only."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self._weight, self._bias = _ordered(plain.weight.detach()), plain.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., K] to [..., N]."""
        return _product(x, self._weight, self._bias)


def order_weights(module: nn.Module) -> None:
    """Reorder the weights of all bf16 dense layers on a CPU in place, for oneDNN's kernels.

    torch reorders them at every product otherwise, which takes as long as the product of a short text. The gain for
    requests: benchmarks/inference.py.
    """
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
    """Return whether torch has the private operations, and they agree with the plain product."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            x, weight, bias = (torch.randn(size).bfloat16() for size in ((2, 5, 32), (48, 32), (48,)))
            return torch.allclose(_product(x, _ordered(weight), bias), F.linear(x, weight, bias), rtol=0.05, atol=0.05)
    except (RuntimeError, TypeError, AttributeError):  # no oneDNN, another signature, no such operation
        return False


def _ordered(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_TOKENS)


def _product(x: Tensor, ordered: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, ordered, bias, "none", [], "")
