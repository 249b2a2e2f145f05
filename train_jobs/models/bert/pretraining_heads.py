"""BERT with its two pretraining heads: masked language model and next-sentence prediction (Devlin et al. 2019, 3.1).

The decoder of the language model is the embedding table itself, not a second parameter, and it is applied only where
a token was masked: at every position it would cost 9% (large) to 23% (base) more arithmetic.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train_jobs.config import ModelConfig
from train_jobs.models.bert.encoder import PAD_ID, BertModel
from train_jobs.models.bert.linear import Linear, linear
from train_jobs.models.packing import Packing


class PredictionTransform(nn.Module):
    """Dense, GELU, LayerNorm before the decoder."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return self.LayerNorm(F.gelu(self.dense(hidden)))


class MaskedLanguageModelHead(nn.Module):
    """Scores every piece of the vocabulary."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.transform = PredictionTransform(config)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden: Tensor, table: Tensor) -> Tensor:
        """[..., H], embedding table [V, H] -> logits [..., V]."""
        return linear(self.transform(hidden), table, self.bias)


class PretrainingHeads(nn.Module):
    """The two heads, under Hugging Face's names."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.predictions = MaskedLanguageModelHead(config, vocab_size)
        self.seq_relationship = Linear(config.hidden_size, 2)


class BertForPreTraining(nn.Module):
    """BERT with both heads.

    Weights are whatever torch gives new modules: call `initialise` or load some.

    Args:
        config: the shape.
        vocab_size: rows of the embedding table, padding rows included (`config.padded_vocab_size(pieces)`).
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.bert = BertModel(config, vocab_size)
        self.cls = PretrainingHeads(config, vocab_size)

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor | None = None,
        masked_positions: Tensor | None = None,
        packing: Packing | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Logits of both heads.

        Args:
            input_ids: int64 [B, S].
            token_type_ids: int64 [B, S], the segment of each token.
            attention_mask: bool [B, S], True where a token is; None if no sequence is padded.
            masked_positions: int64 [B, P], where to predict; None for every position (P = S).
            packing: compute the tokens alone, in place of an attention mask; goes with masked_positions.

        Returns:
            Masked language model logits [B, P, V] and next-sentence logits [B, 2] (0: is next, 1: random).
        """
        hidden = self.bert(input_ids, token_type_ids, attention_mask, packing)
        next_sentence = self.cls.seq_relationship(self.bert.pooler(hidden, packing))
        if packing is not None:
            assert masked_positions is not None, "padded positions have no predictions"
            hidden = packing.at(hidden, masked_positions)
        elif masked_positions is not None:
            hidden = hidden.gather(1, masked_positions[..., None].expand(-1, -1, hidden.shape[2]))
        return self.cls.predictions(hidden, self.bert.embeddings.word_embeddings.weight), next_sentence

    def freeze_next_sentence(self) -> None:
        """Takes pooler and next-sentence head out of training, so that weight decay leaves them alone as well."""
        self.bert.pooler.requires_grad_(False)
        self.cls.seq_relationship.requires_grad_(False)


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Draws fresh weights in place, on whatever device they are, as a pure function of `seed` and the model's shape.

    Normal(0, initializer_range) for matrices, with the row of [PAD] zero; zero biases; LayerNorm the identity. All is
    drawn on the CPU: generators of other devices give other numbers.
    """
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
