"""BERT with its two pretraining heads: masked language model and next-sentence prediction (Devlin et al. 2019, 3.1).

The decoder of the language model is the embedding table, not a second parameter. It is applied to masked positions
only: at every position it would cost 9% (large) to 23% (base) more arithmetic.

Losses are sums, since only the engine knows the counts of the global batch and can divide by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train_jobs.config import ModelConfig
from train_jobs.models.bert.encoder import PAD_ID, BertModel, begin_graphs, compile_function, vary_first_dimension
from train_jobs.models.bert.primitives import Linear, linear
from train_jobs.models.packing import Packing


class PredictionTransform(nn.Module):
    """Dense layer, GELU and LayerNorm in front of the decoder."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [..., H] to [..., H]."""
        return self.LayerNorm(F.gelu(self.dense(hidden)))


class MaskedLanguageModelHead(nn.Module):
    """Head that scores every piece of the vocabulary."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.transform = PredictionTransform(config)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden: Tensor, table: Tensor) -> Tensor:
        """Map [..., H], with the embedding table [V, H], to logits [..., V]."""
        return linear(self.transform(hidden), table, self.bias)


class PretrainingHeads(nn.Module):
    """Both heads, with the names of Hugging Face's parameters."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.predictions = MaskedLanguageModelHead(config, vocab_size)
        self.seq_relationship = Linear(config.hidden_size, 2)


class BertForPreTraining(nn.Module):
    """BERT with both heads.

    Weights are torch's defaults: call `initialise` or load some.

    Args:
        config: shape of the model.
        vocab_size: rows of the embedding table, padding rows included (`config.padded_vocab_size(pieces)`).
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.bert = BertModel(config, vocab_size)
        self.cls = PretrainingHeads(config, vocab_size)
        self.compiled = self.graphs = False

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor | None = None,
        masked_positions: Tensor | None = None,
        packing: Packing | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of both heads.

        Args:
            input_ids: int64 [B, S].
            token_type_ids: int64 [B, S], segment of each token (0 or 1).
            attention_mask: bool [B, S], True for tokens. None: no sequence is padded, or there is a packing.
            masked_positions: int64 [B, P], positions to predict. None: every position (P = S).
            packing: compute only the tokens; replaces the attention mask and needs masked_positions.

        Returns:
            Logits of the masked language model, [B, P, V], and of next-sentence prediction, [B, 2] (0: next, 1:
            random).
        """
        return self.score(self.bert(input_ids, token_type_ids, attention_mask, packing), masked_positions, packing)

    def score(self, hidden: Tensor, masked_positions: Tensor | None, packing: Packing | None) -> tuple[Tensor, Tensor]:
        """Apply both heads to the output of the encoder, [B, S, H] or packed [T, H]; see `forward`."""
        next_sentence = self.cls.seq_relationship(self.bert.pooler(hidden, packing))
        if packing is not None:
            assert masked_positions is not None, "padded positions have no predictions"
            hidden = packing.at(hidden, masked_positions)
        elif masked_positions is not None:
            hidden = hidden.gather(1, masked_positions[..., None].expand(-1, -1, hidden.shape[2]))
        return self.cls.predictions(hidden, self.bert.embeddings.word_embeddings.weight), next_sentence

    def sum_head_losses(
        self,
        hidden: Tensor,
        masked_positions: Tensor,
        labels: tuple[Tensor, Tensor | None],
        packing: Packing | None,
    ) -> Sums:
        """Apply both heads and sum their losses; see `sum_losses`."""
        return sum_losses(self.score(hidden, masked_positions, packing), labels)

    def compile_parts(self, *, layers_only: bool | None = None, together: bool = False, graphs: bool = False) -> None:
        """Compile layers, sum of embeddings, and heads with their losses; see `BertModel.compile_parts`."""
        if not self.bert.compile_parts(layers_only=layers_only, together=together, graphs=graphs):
            self.compiled, self.graphs = True, graphs
            self.sum_head_losses = compile_function(self.sum_head_losses, graphs=graphs)  # type: ignore[method-assign]

    def freeze_next_sentence(self) -> None:
        """Exclude pooler and next-sentence head from training."""
        # Without a loss they have no gradient, but weight decay would still shrink them to zero, and the export
        # contains them.
        self.bert.pooler.requires_grad_(False)
        self.cls.seq_relationship.requires_grad_(False)


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Initialise weights in place, depending only on `seed` and the shape of the model.

    Matrices are Normal(0, initializer_range), with the row of [PAD] zero; biases are zero; LayerNorm is the identity.

    Args:
        model: a model of this package, on any device.
        seed: seed of the generator.
    """
    # On the CPU, one parameter after the other: the generator of a GPU yields other numbers, and the same seed must
    # give the same weights on every machine.
    assert isinstance(model.config, ModelConfig), "a model of ours"
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif name.endswith("LayerNorm.weight"):
            parameter.fill_(1.0)
        else:
            drawn = torch.empty(parameter.shape, dtype=torch.float32)
            parameter.copy_(drawn.normal_(0.0, model.config.initializer_range, generator=generator))
    model.get_parameter("bert.embeddings.word_embeddings.weight")[PAD_ID].zero_()


IGNORED = -100  # label without a loss (torch's default ignore_index): unused slots of masked_labels, padding sequences


class Sums(NamedTuple):
    """Losses in nats and counts, summed over a micro batch: 0-dim tensors on its device; losses fp32, counts int64."""

    mlm_loss_sum: Tensor
    mlm_correct: Tensor
    mlm_count: Tensor
    nsp_loss_sum: Tensor
    nsp_correct: Tensor
    nsp_count: Tensor


def pretraining_sums(model: torch.nn.Module, batch: Mapping[str, Tensor], *, next_sentence: bool, padded: bool) -> Sums:
    """Run the model on a micro batch and sum both losses, without waiting for the device.

    Args:
        model: a `BertForPreTraining`, or a wrapper with the same signature.
        batch: input_ids, token_type_ids int64 [B, S]; lengths int64 [B]; masked_positions, masked_labels int64
            [B, P]; next_sentence_labels int64 [B]. A label of -100 is ignored. With the arrays of
            `packing_arrays`, padding is not computed.
        next_sentence: whether to include next-sentence prediction; otherwise its three sums are zero, without gradient.
        padded: whether any sequence is shorter than S; the caller knows it from the host, without a synchronisation.

    Returns:
        The sums; the two losses have gradients.
    """
    input_ids, packing = batch["input_ids"], Packing.from_batch(batch)
    mask = length_mask(batch["lengths"], input_ids.shape[1]) if padded and packing is None else None
    positions = batch["masked_positions"]
    labels = batch["masked_labels"], batch["next_sentence_labels"] if next_sentence else None
    if isinstance(model, BertForPreTraining) and model.compiled:
        if model.graphs:
            begin_graphs()
        hidden = model.bert(input_ids, batch["token_type_ids"], mask, packing)
        vary_first_dimension(hidden, positions, *(value for value in labels if value is not None))
        return model.sum_head_losses(hidden, positions, labels, packing)
    places = {} if packing is None else {"packing": packing}
    return sum_losses(model(input_ids, batch["token_type_ids"], mask, positions, **places), labels)


def sum_losses(logits: tuple[Tensor, Tensor], labels: tuple[Tensor, Tensor | None]) -> Sums:
    """Sum the losses of both heads.

    Args:
        logits: [B, P, V] of the masked language model, and [B, 2] of next-sentence prediction.
        labels: int64 [B, P], and int64 [B]. None for the second: its three sums are zero, without gradient.
    """
    mlm = _sums(logits[0].flatten(0, 1), labels[0].flatten())
    if labels[1] is not None:
        return Sums(*mlm, *_sums(logits[1], labels[1]))
    return Sums(*mlm, *(torch.zeros_like(value) for value in mlm))


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """Return bool [B, size], True at the first `lengths` positions of each row; lengths are int64 [B]."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def _sums(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum of cross entropies, the number of correct labels and that of counted ones; 0-dim each.

    Args:
        logits: [N, C].
        labels: int64 [N].
    """
    # fp32: a sum of exponentials over 30,000 pieces in bf16 would lose most of its digits
    logits = logits if logits.dtype == torch.float64 else logits.float()
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    counted = labels != IGNORED
    correct = (counted & is_correct(logits.detach(), labels.clamp(min=0))).sum()
    return loss, correct, counted.sum()


def is_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return bool [N]: the label's logit exceeds all others. A tie is an error, in any precision.

    Args:
        logits: [N, C]. Many are equal in bf16, whose neighbouring numbers differ by up to 1/128.
        labels: int64 [N], at least 0.
    """
    chosen = logits.gather(1, labels[:, None])
    if logits.device.type != "cpu" or torch.compiler.is_compiling():
        return (logits >= chosen).sum(-1) == 1  # without a synchronisation
    # Counting takes a CPU ten times as long as a maximum, so ties are only looked for where the label is a maximum.
    found = chosen[:, 0] >= logits.amax(dim=-1)
    rows = found.nonzero()[:, 0]
    others = logits[rows].scatter_(1, labels[rows, None], float("-inf"))
    found[rows] = others.amax(dim=-1) < chosen[rows, 0]
    return found
