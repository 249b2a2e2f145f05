"""BERT's encoder (Devlin et al. 2019): post-LayerNorm transformer, learned positions, exact (erf) GELU.

Attributes are named so that `state_dict()` has Hugging Face's names. B is the batch, S the sequence length, H the
hidden size, V the rows of the embedding table. Layers take sequences padded, [B, S, H], or packed, [T, H]
(`train_jobs.models.packing`); a mask or a `Packing` marks the positions of tokens.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train_jobs.config import ModelConfig, SpecError
from train_jobs.models.bert.attention import attend, attend_packed, has_packed_kernel
from train_jobs.models.bert.primitives import Dropout, Linear, embedding, joint_linear
from train_jobs.models.packing import Packing

P = ParamSpec("P")
R = TypeVar("R")
RECOMPILE_LIMIT = 32
PAD_ID = 0  # [PAD] is the first piece of every BERT vocabulary
TokenPositions = Tensor | Packing | None
"""Positions of tokens: a mask, bool [B, 1, 1, S], or None without padding; for packed sequences their `Packing`."""


class InputEmbeddings(nn.Module):
    """Normalised sum of word, position and segment embeddings (Devlin et al. 2019, figure 2)."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, config.hidden_size, padding_idx=PAD_ID)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.compiled = False

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, packing: Packing | None = None) -> Tensor:
        """Map int64 [B, S] ids and segments to [B, S, H], or packed [T, H]."""
        length = input_ids.shape[1]
        table = self.position_embeddings.weight
        assert length <= table.shape[0], f"sequence of {length} in a model of {table.shape[0]} positions"
        positions = table[:length]
        if packing is not None:
            input_ids, token_type_ids = packing.pack(input_ids), packing.pack(token_type_ids)
            # the remainder is the position in the sequence, since tokens are numbered in the padded layout
            positions = self.position_embeddings(packing.tokens % length)
        # no gradient to the row of [PAD], as in Hugging Face's model (padding_idx): it stays zero
        words = embedding(input_ids, self.word_embeddings.weight, padding=PAD_ID)
        segments = self.token_type_embeddings(token_type_ids)
        if self.compiled:
            vary_first_dimension(words, segments, *([positions] if packing is not None else []))
        return self.combine(words, segments, positions)

    def combine(self, words: Tensor, segments: Tensor, positions: Tensor) -> Tensor:
        """Return the normalised sum of three embeddings, [..., H] each."""
        return self.dropout(self.LayerNorm(words + segments + positions))

    def compile_sum(self, *, graphs: bool = False) -> None:
        """Compile what follows the lookups, see `compile_function`."""
        # Not the lookups: Inductor makes their gradients by atomic additions, which are in no fixed order, and for
        # which all tokens would contend for the two rows of segments. torch's own kernels sort by row.
        self.compiled = True
        allow_variants()
        self.combine = compile_function(self.combine, graphs=graphs)  # type: ignore[method-assign]


class SelfAttention(nn.Module):
    """Bidirectional multi-head attention."""

    # query, key and value are separate parameters although one product computes them: LAMB has one trust ratio for each
    # parameter, so a fused one would be another optimizer, and checkpoints need the names of Hugging Face.

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.dropout_prob = config.attention_probs_dropout_prob
        self.query = Linear(config.hidden_size, config.hidden_size)
        self.key = Linear(config.hidden_size, config.hidden_size)
        self.value = Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, positions: TokenPositions) -> Tensor:
        """Map [B, S, H] or [T, H] to the same shape."""
        joint = joint_linear(hidden, (self.query, self.key, self.value)).unflatten(-1, (3, self.heads, -1))
        dropout = self.dropout_prob if self.training else 0.0
        if isinstance(positions, Packing):
            return attend_packed(joint, positions, dropout=dropout).flatten(-2)
        return attend(joint, mask=positions, dropout=dropout).flatten(-2)


class ResidualOutput(nn.Module):
    """Output of both halves of a layer: projection to the hidden size, dropout, residual connection, LayerNorm."""

    def __init__(self, config: ModelConfig, input_size: int) -> None:
        super().__init__()
        self.dense = Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        """Map [..., input_size] and a residual [..., H] to [..., H]."""
        return self.LayerNorm(self.dropout(self.dense(hidden)) + residual)


class Attention(nn.Module):
    """Attention half of a layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self = SelfAttention(config)
        self.output = ResidualOutput(config, config.hidden_size)

    def forward(self, hidden: Tensor, positions: TokenPositions) -> Tensor:
        """Map [B, S, H] or [T, H] to the same shape."""
        return self.output(self.self(hidden, positions), hidden)


class Intermediate(nn.Module):
    """First projection of the feed-forward half of a layer, with exact GELU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.intermediate_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [..., H] to [..., intermediate_size]."""
        return F.gelu(self.dense(hidden))


class EncoderLayer(nn.Module):
    """Encoder layer: attention, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = ResidualOutput(config, config.intermediate_size)

    def forward(self, hidden: Tensor, positions: TokenPositions) -> Tensor:
        """Map [B, S, H] or [T, H] to the same shape."""
        attended = self.attention(hidden, positions)
        return self.output(self.intermediate(attended), attended)


class Encoder(nn.Module):
    """Stack of encoder layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_hidden_layers))
        self.compiled = False
        self._head_size = config.hidden_size // config.num_attention_heads

    def forward(self, hidden: Tensor, positions: TokenPositions) -> Tensor:
        """Map [B, S, H] or [T, H] to the same shape."""
        if isinstance(positions, Packing):
            positions = positions._replace(
                kernel=has_packed_kernel(hidden.device, _arithmetic(hidden), self._head_size)
            )
            # Groups differ between batches, so a compiled layer would be specialised for each set of them.
            if hidden.device.type == "cpu" and not self.compiled:
                positions = positions.grouped()
            if self.compiled:
                vary_first_dimension(hidden, positions.tokens, positions.places, positions.starts)
                if positions.kernel:  # takes the padded length as a number; in a fine-tuning batches differ in it
                    torch._dynamo.maybe_mark_dynamic(positions.places, 1)
        return self.run_layers(hidden, positions)

    def run_layers(self, hidden: Tensor, positions: TokenPositions) -> Tensor:
        """Apply all layers, one after another."""
        for layer in self.layer:
            hidden = layer(hidden, positions)
        return hidden

    def compile_layers(self, *, together: bool, graphs: bool = False) -> None:
        """Compile the layers with torch.compile.

        Args:
            together: as one function. The host of a GPU launches the kernels faster, but the compilation takes longer,
                and all gradients become ready at the same time. False: one compilation serves all layers, since all
                have the same code.
            graphs: whether to record CUDA graphs of them; needs `together`.
        """
        assert together or not graphs, "layer by layer, each recorded graph would be launched by itself"
        self.compiled = True
        allow_variants()
        if together:
            self.run_layers = compile_function(self.run_layers, graphs=graphs)  # type: ignore[method-assign]
            return
        for layer in self.layer:
            layer.compile()


def compile_function(function: Callable[P, R], *, graphs: bool) -> Callable[P, R]:
    """Return a function compiled by torch.compile.

    Args:
        function: the function.
        graphs: whether to record a CUDA graph of it for each shape of its arguments, see `begin_graphs`.
    """
    return torch.compile(function, options={"triton.cudagraphs": True} if graphs else None)


def begin_graphs() -> None:
    """Let CUDA graphs write over the tensors of the micro batch before, whose backward pass is over."""
    torch.compiler.cudagraph_mark_step_begin()


def allow_variants() -> None:
    """Let torch.compile keep as many variants of a function as a job with all its tasks can need."""
    # Training, validation, their last smaller batches and halved micro batches reach the default of 8; beyond the limit
    # torch runs the function without compilation, behind one warning.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)


def vary_first_dimension(*tensors: Tensor) -> None:
    """Mark the first dimension of tensors, sequences or tokens, as one whose size varies, for torch.compile."""
    # Without this the first size is a constant of the graph, and another one compiles it again. A size of 1 is a
    # constant in any case.
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)


def _arithmetic(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products of `x` under the current autocast."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class Pooler(nn.Module):
    """Pooler: a projection of [CLS] with tanh, the representation of a sequence."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, packing: Packing | None = None) -> Tensor:
        """Map [B, S, H], or packed [T, H], to [B, H]."""
        return torch.tanh(self.dense(hidden[:, 0] if packing is None else packing.first(hidden)))


class BertModel(nn.Module):
    """BERT without heads: embeddings, encoder and pooler.

    Args:
        config: shape of the model.
        vocab_size: rows of the embedding table, padding rows included.
        pooler: whether to create a pooler; heads that use every token have none.
    """

    def __init__(self, config: ModelConfig, vocab_size: int, *, pooler: bool = True) -> None:
        super().__init__()
        self.embeddings = InputEmbeddings(config, vocab_size)
        self.encoder = Encoder(config)
        if pooler:
            self.pooler = Pooler(config)

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """Encode sequences; heads that need the pooler call it.

        Args:
            input_ids: int64 [B, S].
            token_type_ids: int64 [B, S], segment of each token (0 or 1).
            attention_mask: bool [B, S], True for tokens. None: no sequence is padded, which allows the fastest
                attention kernel, or there is a packing.
            packing: compute only these tokens. None: compute padding as well.

        Returns:
            [B, S, H], or packed [T, H].
        """
        positions = packing if attention_mask is None else attention_mask[:, None, None, :]
        return self.encoder(self.embeddings(input_ids, token_type_ids, packing), positions)

    def compile_parts(self, *, layers_only: bool | None = None, together: bool = False, graphs: bool = False) -> bool:
        """Compile the layers and the sum of embeddings, each by torch.compile.

        Args:
            layers_only: whether to compile only the layers. None: on a CPU.
            together: see `Encoder.compile_layers`.
            graphs: likewise.

        Returns:
            Whether only the layers are compiled.
        """
        # On a CPU in 16 bit `primitives.linear` adds the decoder's gradient in place, which a compiled head cannot.
        if layers_only is None:
            layers_only = self.embeddings.word_embeddings.weight.device.type == "cpu"
        self.encoder.compile_layers(together=together, graphs=graphs)
        if not layers_only:
            self.embeddings.compile_sum(graphs=graphs)
        return layers_only


def is_compiled(wanted: Literal["auto"] | bool, device: torch.device) -> bool:
    """Return whether to compile the model.

    Args:
        wanted: the configuration's `compile`; auto: on GPUs only, and if the machine has what that needs.
        device: device to compute on.
    """
    return device.type == "cuda" and missing_for_compiling(device) is None if wanted == "auto" else wanted


def missing_for_compiling(device: torch.device) -> str | None:
    """Return what torch.compile needs on this machine and does not find; None if it works.

    A CPU needs a C++ compiler; Triton, on GPUs, compiles its launchers in C against the header of this Python.
    """
    if device.type == "cpu":
        compilers = [os.environ.get("CXX", "g++"), "clang++"]
        return None if any(map(shutil.which, compilers)) else f"a C++ compiler ({', '.join(compilers)})"
    compilers = [os.environ.get("CC", "gcc"), "clang"]
    if not any(map(shutil.which, compilers)):
        return f"a C compiler ({', '.join(compilers)})"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return None if header.is_file() else f"the header {header}"


def require_compiler(device: torch.device, *, key: str) -> None:
    """Check that torch.compile works on the device.

    Args:
        device: device to compile for.
        key: configuration key that enables compilation, for the message.

    Raises:
        SpecError: a compiler or a header is missing.
    """
    if (missing := missing_for_compiling(device)) is not None:
        cpu = device.type == "cpu"
        raise SpecError(
            f"cannot compile for a {'CPU' if cpu else 'GPU'}: {key} needs {missing.partition(' (')[0]}",
            facts={"looked for": missing.partition("(")[2].rstrip(")") or missing},
            fix=f"--set {key}={'auto' if cpu else 'false'}, or install {'g++' if cpu else 'gcc and python3-dev'}",
        )
