"""BERT with a head for fine-tuning: classes or numbers, answer spans, tags; and without a head, for embeddings.

Parameters have Hugging Face's names, so that an export loads in `AutoModelForSequenceClassification` and similar
classes. B is the batch, S the sequence length, C the number of classes. Losses are sums: the engine divides by the
counts of the global batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train_jobs.config import ModelConfig
from train_jobs.models.bert.encoder import BertModel
from train_jobs.models.bert.pretraining_heads import IGNORED, length_mask
from train_jobs.models.bert.primitives import Dropout
from train_jobs.models.packing import Packing


class Finetuned(nn.Module, ABC):
    """Encoder with a head.

    Args:
        config: shape of the model.
        vocab_size: rows of the embedding table.
        pooler: whether the head uses the pooler.
    """

    hugging_face: str
    """Name of the equivalent class in transformers."""

    def __init__(self, config: ModelConfig, vocab_size: int, *, pooler: bool) -> None:
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.bert = BertModel(config, vocab_size, pooler=pooler)

    @abstractmethod
    def head(self, hidden: Tensor, packing: Packing | None) -> Tensor:
        """Apply the head to the output of the encoder, [B, S, H] or packed [T, H]."""

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """Encode and apply the head; see `BertModel.forward` for the arguments."""
        return self.head(self.bert(input_ids, token_type_ids, attention_mask, packing), packing)


class BertEncoder(Finetuned):
    """Encoder without a head, for embeddings."""

    hugging_face = "BertModel"

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__(config, vocab_size, pooler=False)

    def head(self, hidden: Tensor, packing: Packing | None) -> Tensor:
        """Return [B, S, H], or packed [T, H], unchanged."""
        return hidden


class OutputLayer(nn.Linear):
    """Last layer, which always computes in fp32."""

    # bf16 has 128 numbers from 2 to 4, so different inputs would have equal logits: ties between classes, and a
    # threshold that is tuned on dev would not separate them.

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., K] to fp32 [..., N]."""
        if not torch.is_autocast_enabled(x.device.type):
            return F.linear(x.to(self.weight.dtype), self.weight, self.bias)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class BertForSequenceClassification(Finetuned):
    """Classification of sequences, or regression.

    Args:
        config: shape of the model; the head uses its hidden dropout.
        vocab_size: rows of the embedding table.
        outputs: number of classes, or 1 for regression.
    """

    hugging_face = "BertForSequenceClassification"

    def __init__(self, config: ModelConfig, vocab_size: int, outputs: int) -> None:
        super().__init__(config, vocab_size, pooler=True)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = OutputLayer(config.hidden_size, outputs)

    def head(self, hidden: Tensor, packing: Packing | None) -> Tensor:
        """Map [B, S, H], or packed [T, H], to logits [B, C], or to numbers [B, 1]."""
        return self.classifier(self.dropout(self.bert.pooler(hidden, packing)))


class BertForQuestionAnswering(Finetuned):
    """Extractive question answering: the first and the last token of an answer."""

    hugging_face = "BertForQuestionAnswering"

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__(config, vocab_size, pooler=False)
        self.qa_outputs = OutputLayer(config.hidden_size, 2)

    def head(self, hidden: Tensor, packing: Packing | None) -> Tensor:
        """Map [B, S, H], or packed [T, H], to logits [B, S, 2] of the first and of the last token."""
        return _to_padded(self.qa_outputs(hidden), packing)


class BertForTokenClassification(Finetuned):
    """Classification of tokens; see `BertForSequenceClassification` for the arguments."""

    hugging_face = "BertForTokenClassification"

    def __init__(self, config: ModelConfig, vocab_size: int, outputs: int) -> None:
        super().__init__(config, vocab_size, pooler=False)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = OutputLayer(config.hidden_size, outputs)

    def head(self, hidden: Tensor, packing: Packing | None) -> Tensor:
        """Map [B, S, H], or packed [T, H], to logits [B, S, C]."""
        return _to_padded(self.classifier(self.dropout(hidden)), packing)


def _to_padded(logits: Tensor, packing: Packing | None) -> Tensor:
    """Map [B, S, N], or packed [T, N], to [B, S, N]; values at padded positions are undefined."""
    return logits if packing is None else packing.lay_out(logits)


def class_loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the sum of cross entropies, each multiplied by the weight of its class.

    Args:
        logits: [..., C].
        labels: int64 [...], -100 for positions without a label.
        weights: fp32 [C], weight of each class. None: 1.

    Returns:
        0-dim, fp32, or fp64 for fp64 logits.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), weight=weights, ignore_index=IGNORED, reduction="sum"
    )


def number_loss(numbers: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of squared errors, 0-dim.

    Args:
        numbers: [B, 1], predictions.
        targets: float [B]; NaN for rows without a target.
    """
    found = numbers[:, 0].float()
    counted = ~targets.isnan()
    # Both sides are replaced before the loss: multiplying a NaN loss by 0 is NaN, and so is its gradient.
    return F.mse_loss(torch.where(counted, found, 0), torch.where(counted, targets, 0).float(), reduction="sum")


def span_loss(logits: Tensor, first: Tensor, last: Tensor, lengths: Tensor) -> Tensor:
    """Return the sum over sequences of the mean cross entropy of the answer's first and last token, 0-dim.

    Candidates are the tokens of the sequence. Hugging Face's loss also accepts padding as an answer, so it depends on
    the other sequences of the batch; the two agree for sequences of equal length.

    Args:
        logits: [B, S, 2].
        first: int64 [B] position of the answer's first token.
        last: int64 [B] position of its last token.
        lengths: int64 [B] tokens of each sequence.
    """
    real = length_mask(lengths, logits.shape[1])[..., None]
    starts, ends = logits.float().masked_fill(~real, float("-inf")).unbind(-1)
    return (F.cross_entropy(starts, first, reduction="sum") + F.cross_entropy(ends, last, reduction="sum")) / 2
