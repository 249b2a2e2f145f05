"""Forward passes for prediction: batches of N tokens, sorted by length, without padding.

Weights are stored in the dtype and memory order of the arithmetic, and query, key and value in one matrix, so that no
batch casts, joins or reorders them.
"""

from __future__ import annotations

import copy
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
from train_jobs.inference.onnx_model import OnnxModel
from train_jobs.models.bert.attention import attend, attend_packed
from train_jobs.models.bert.encoder import EncoderLayer, SelfAttention, TokenPositions, require_compiler
from train_jobs.models.bert.task_heads import OutputLayer
from train_jobs.models.packing import Packing
from train_jobs.tasks.sequences import Ints, TokenBatch, Tokens, padded

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536}  # enough to keep the matrix units busy


class JointSelfAttention(nn.Module):
    """Self-attention with query, key and value as one product; in evaluation equal to `SelfAttention`."""

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
    """Convert a model in place for prediction; it cannot be trained afterwards.

    Args:
        model: model with its weights.
        precision: bf16, fp16 or fp32.
        device: device to compute on.
        compiled: whether to compile its layers.

    Raises:
        SpecError: compilation on a CPU without a C++ compiler.
    """
    for layer in model.bert.encoder.layer:
        assert isinstance(layer, EncoderLayer)
        layer.attention.register_module("self", JointSelfAttention(layer.attention.self))
    model.requires_grad_(False).to(device, DTYPES[precision]).eval()
    for layer in model.modules():
        if isinstance(layer, OutputLayer):  # fp32 as in training, so that scores and tuned thresholds are the same
            layer.float()
    if compiled:
        require_compiler(device, key="batching.compile")
        model.bert.compile_parts()
    else:  # the reordered operations are opaque to torch.compile
        order_weights(model.bert.encoder)
    return model


class TooManySequencesError(ValueError):
    """A call has more sequences than its limit allows; the message contains nothing of the texts."""


class Forward:
    """Runner of a model over sequences, in batches.

    Args:
        model: result of `prepare_model`.
        batch_tokens: maximum tokens of a batch. None: a default for the device.
        beat: called before and after each batch; an error that it raises ends the call.
        unpad: whether to pack the tokens of a batch if that saves computation.
    """

    def __init__(
        self,
        model: Model | OnnxModel,
        *,
        batch_tokens: int | None = None,
        beat: Callable[[], None] = lambda: None,
        unpad: bool = True,
    ) -> None:
        self.model, self._unpad = model, unpad
        self.device = next(model.parameters()).device
        self.batch_tokens = batch_tokens or BATCH_TOKENS.get(self.device.type, BATCH_TOKENS["cpu"])
        self._beat = beat
        self._most: int | None = None

    def limited(self, most_sequences: int, beat: Callable[[], None]) -> Forward:
        """Return a runner of the same model with a limit.

        Args:
            most_sequences: maximum sequences of a call.
            beat: called before and after each batch; an error that it raises ends the call.
        """
        found = copy.copy(self)
        found._beat, found._most = beat, most_sequences
        return found

    # Not inference_mode: its tensors cannot be used in the trial of the attention kernel, which computes gradients.
    @torch.no_grad()
    def map(self, sequences: Sequence[Tokens], compute: Callable[[TokenBatch], Iterable[Any]]) -> list[Any]:
        """Return the results of `compute` for all sequences, in the order of sequences.

        If memory runs out, this batch and all later ones have half the tokens.

        Args:
            sequences: the sequences.
            compute: runs the model on a batch; returns one result for each of its sequences, on the host.

        Raises:
            OutOfMemoryError: a single sequence does not fit.
            TooManySequencesError: there are more sequences than the limit.
        """
        if self._most is not None and len(sequences) > self._most:
            longest = max(len(one.ids) for one in sequences)
            raise TooManySequencesError(
                f"its texts need {len(sequences):,} sequences of up to {longest} tokens, and the limit is {self._most}:"
                " split it into several requests"
            )
        self._beat()
        found: list[Any] = [None] * len(sequences)
        lengths = np.fromiter((len(one.ids) for one in sequences), np.int64, len(sequences))
        # The longest first: sequences of a batch have similar lengths, and memory runs out in the first batch or never.
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
        """Return a batch on the device.

        Args:
            sequences: at least one sequence.
            rows: their indices, for `TokenBatch.rows`.
        """
        seconds = np.fromiter((one.second for one in sequences), np.int64, len(sequences))
        return TokenBatch.on_device(
            padded([one.ids for one in sequences], seconds), self.device, unpad=self._unpad, rows=rows
        )

    def _halve(self, rows: int, tokens: int) -> None:
        # from the size of the failed batch, not of the limit: it may have been much smaller
        release_memory(self.device)
        if rows == 1:
            raise OutOfMemoryError(
                f"out of memory with one sequence of {tokens} tokens",
                fix="--set data.max_length=128, or a machine with more memory",
            )
        self.batch_tokens = max(tokens // 2, 1)


def _count(lengths: Ints, tokens: int) -> int:
    """Return the number of sequences, longest first, that have at most `tokens` tokens in total; at least one."""
    return max(int(np.searchsorted(np.cumsum(lengths), tokens, side="right")), 1)


TYPICAL_TOKENS = 256  # tokens of a batch, a hint for oneDNN; the order works for any number


class OrderedLinear(nn.Module):
    """A dense layer for prediction only."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self._weight, self._bias = _ordered(plain.weight.detach()), plain.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., K] to [..., N]."""
        return _product(x, self._weight, self._bias)


def order_weights(module: nn.Module) -> None:
    """Replace all bf16 dense layers on a CPU by ones with weights in the memory order of oneDNN's kernels, in place.

    Args:
        module: module whose layers are replaced; unchanged on other devices and in other dtypes.
    """
    # Otherwise torch reorders the weights at every product, which takes as long as the product for a short text
    # (benchmarks/inference.py).
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
    # Private names may change with a release: without them prediction is slower, but must not fail or be wrong.
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
