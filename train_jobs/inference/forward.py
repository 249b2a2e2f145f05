"""Token sequences through a model: in order of length, as many at once as have so many tokens, without padding.

For prediction weights are kept in the arithmetic's own type and order, and query, key and value in one matrix: nothing
is cast, joined or put in order again for every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from train_jobs.config import OutOfMemoryError
from train_jobs.engine.runtime import out_of_memory
from train_jobs.inference.dense import order_weights
from train_jobs.inference.model_folder import Model
from train_jobs.models.bert.attention import attend, attend_packed
from train_jobs.models.bert.encoder import PAD_ID, Layer, SelfAttention, Where
from train_jobs.models.bert.losses import length_mask
from train_jobs.models.bert.task_heads import Output
from train_jobs.models.compiling import require_compiler
from train_jobs.models.packing import Packing, packing_arrays

Ints = npt.NDArray[np.int64]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536}  # enough to keep the units busy


class Tokens(NamedTuple):
    """One sequence: [CLS] text [SEP], or [CLS] text [SEP] pair [SEP]."""

    ids: Ints
    """[length]"""
    second: int
    """Where the second segment begins; the length if there is none."""


class Batch(NamedTuple):
    """Sequences on the model's device, in the form that it takes them."""

    input_ids: Tensor
    """int64 [B, S]"""
    token_type_ids: Tensor
    """int64 [B, S]"""
    attention_mask: Tensor | None
    """bool [B, S]; None where nothing is padded, or with a packing."""
    packing: Packing | None
    lengths: Tensor
    """int64 [B] tokens of each."""
    rows: list[int]
    """Which of the sequences they are."""


class JointSelfAttention(nn.Module):
    """Self-attention with query, key and value as one product; in evaluation the same as the one it is made from."""

    def __init__(self, separate: SelfAttention) -> None:
        super().__init__()
        self.heads = separate.heads
        parts = (separate.query, separate.key, separate.value)
        self.joint = nn.Linear(separate.query.in_features, sum(part.out_features for part in parts))
        self.joint.weight.copy_(torch.cat([part.weight for part in parts]))
        self.joint.bias.copy_(torch.cat([part.bias for part in parts]))

    def forward(self, hidden: Tensor, where: Where) -> Tensor:
        """[B, S, H] or [T, H], where -> the same shape."""
        joint = self.joint(hidden).unflatten(-1, (3, self.heads, -1))
        if isinstance(where, Packing):
            return attend_packed(joint, where, dropout=0.0).flatten(-2)
        return attend(joint, mask=where, dropout=0.0).flatten(-2)


@torch.no_grad()
def made_ready(model: Model, *, precision: str, device: torch.device, compiled: bool = False) -> Model:
    """The model, changed in place into one that can predict and nothing else.

    Args:
        model: with its weights.
        precision: bf16, fp16 or fp32.
        device: where it is to compute.
        compiled: torch.compile its layers.
    """
    for layer in model.bert.encoder.layer:
        assert isinstance(layer, Layer)
        layer.attention.register_module("self", JointSelfAttention(layer.attention.self))
    model.requires_grad_(False).to(device, DTYPES[precision]).eval()
    for layer in model.modules():
        if isinstance(layer, Output):  # as in training, whose scores and thresholds these predictions are to have
            layer.float()
    if compiled:
        require_compiler(device, key="batching.compile")
        model.bert.encoder.compile_layers()
    else:
        order_weights(model.bert.encoder)
    return model


class Forward:
    """A model, and how sequences go through it.

    Args:
        model: as `made_ready` leaves it.
        batch_tokens: tokens at once. None: what suits the device.
        beat: called after each batch.
    """

    def __init__(
        self, model: Model, *, batch_tokens: int | None = None, beat: Callable[[], None] = lambda: None
    ) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.batch_tokens = batch_tokens or BATCH_TOKENS.get(self.device.type, BATCH_TOKENS["cpu"])
        self._beat = beat

    @torch.no_grad()  # not inference_mode, in which attention's kernel could not be tried before it is trusted
    def each(self, sequences: Sequence[Tokens], compute: Callable[[Batch], Iterable[Any]]) -> list[Any]:
        """What `compute` makes of each sequence, in their order.

        Memory that runs out halves the tokens at once, from then on.

        Args:
            sequences: any number.
            compute: takes a batch through the model; one result for each of its sequences, on the host.

        Raises:
            OutOfMemoryError: there is not enough for a single sequence.
        """
        found: list[Any] = [None] * len(sequences)
        lengths = np.fromiter((len(one.ids) for one in sequences), np.int64, len(sequences))
        left = np.argsort(-lengths, kind="stable")
        while len(left):
            rows = left[: _count(lengths[left], self.batch_tokens)]
            try:
                results = compute(self.batch([sequences[row] for row in rows], rows.tolist()))
            except (RuntimeError, MemoryError) as problem:
                if not out_of_memory.is_exhausted(problem):
                    raise
                self._halve(len(rows), int(lengths[rows].sum()))
                continue
            for row, result in zip(rows, results, strict=True):
                found[row] = result
            left = left[len(rows) :]
            self._beat()
        return found

    def batch(self, sequences: Sequence[Tokens], rows: list[int]) -> Batch:
        """Sequences as the model takes them.

        Args:
            sequences: at least one.
            rows: which of all they are.
        """
        lengths = np.fromiter((len(one.ids) for one in sequences), np.int64, len(sequences))
        size = int(lengths.max())
        place = np.arange(size)
        ids = np.full((len(lengths), size), PAD_ID, np.int64)
        real = place < lengths[:, None]
        ids[real] = np.concatenate([one.ids for one in sequences])
        seconds = np.fromiter((one.second for one in sequences), np.int64, len(sequences))
        segments = ((place >= seconds[:, None]) & real).astype(np.int64)
        arrays = {"input_ids": ids, "token_type_ids": segments, "lengths": lengths, **packing_arrays(lengths, size)}
        there = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
        packing = Packing.of(there)
        padded = packing is None and bool(lengths.min() < size)
        mask = length_mask(there["lengths"], size) if padded else None
        return Batch(there["input_ids"], there["token_type_ids"], mask, packing, there["lengths"], rows)

    def _halve(self, rows: int, tokens: int) -> None:
        out_of_memory.release(self.device)
        if rows == 1:
            raise OutOfMemoryError(
                f"out of memory with one sequence of {tokens} tokens",
                fix="--set data.max_length=128, or a machine with more memory",
            )
        self.batch_tokens = max(tokens // 2, 1)


def _count(lengths: Ints, tokens: int) -> int:
    """How many of some sequences, longest first, go through at once: at least one."""
    return max(int(np.searchsorted(np.cumsum(lengths), tokens, side="right")), 1)


def joined(cls: int, sep: int, first: Sequence[int], second: Sequence[int] | None = None) -> Tokens:
    """[CLS] first [SEP], or [CLS] first [SEP] second [SEP]."""
    ids = [cls, *first, sep]
    if second is None:
        return Tokens(np.array(ids, np.int64), len(ids))
    return Tokens(np.array([*ids, *second, sep], np.int64), len(ids))
