"""BERT with a head to be fine-tuned: a class or a number, an answer's span, a tag for each word; or with none.

Parameters have Hugging Face's names, so that what is exported loads in `AutoModelForSequenceClassification` and its
like. B is the batch, S the sequence length, C the number of classes. Losses are sums over what counts: the mean over a
global batch is the engine's to take.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train_jobs.config import ModelConfig
from train_jobs.models.bert.dropout import Dropout
from train_jobs.models.bert.encoder import BertModel
from train_jobs.models.bert.losses import IGNORED, length_mask
from train_jobs.models.packing import Packing


class Finetuned(nn.Module, ABC):
    """An encoder and what comes on top of it.

    Args:
        config: the shape.
        vocab_size: rows of the embedding table.
        pooler: the head takes what the pooler makes of [CLS].
    """

    hugging_face: str
    """Its class there."""

    def __init__(self, config: ModelConfig, vocab_size: int, *, pooler: bool) -> None:
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.bert = BertModel(config, vocab_size, pooler=pooler)

    @abstractmethod
    def head(self, hidden: Tensor, packing: Packing | None) -> Tensor:
        """What comes on top: of the encoder's [B, S, H], or packed [T, H]."""

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """Arguments as of `BertModel` -> what `head` says."""
        return self.head(self.bert(input_ids, token_type_ids, attention_mask, packing), packing)


class BertEncoder(Finetuned):
    """No head: what the encoder makes of each token, for embeddings."""

    hugging_face = "BertModel"

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__(config, vocab_size, pooler=False)

    def head(self, hidden: Tensor, packing: Packing | None) -> Tensor:
        """[B, S, H], or packed [T, H], as it is."""
        return hidden


class Output(nn.Linear):
    """The last layer, in its own fp32 whatever comes in: bf16 has 128 numbers from 2 to 4; predictions would tie."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N]."""
        if not torch.is_autocast_enabled(x.device.type):
            return F.linear(x.to(self.weight.dtype), self.weight, self.bias)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class BertForSequenceClassification(Finetuned):
    """A class for each sequence, or a number.

    Args:
        config: the shape; its dropout is the head's too.
        vocab_size: rows of the embedding table.
        outputs: classes, or 1 for a number.
    """

    hugging_face = "BertForSequenceClassification"

    def __init__(self, config: ModelConfig, vocab_size: int, outputs: int) -> None:
        super().__init__(config, vocab_size, pooler=True)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = Output(config.hidden_size, outputs)

    def head(self, hidden: Tensor, packing: Packing | None) -> Tensor:
        """[B, S, H], or packed [T, H] -> logits [B, C], or numbers [B, 1]."""
        return self.classifier(self.dropout(self.bert.pooler(hidden, packing)))


class BertForQuestionAnswering(Finetuned):
    """Where an answer begins and ends."""

    hugging_face = "BertForQuestionAnswering"

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__(config, vocab_size, pooler=False)
        self.qa_outputs = Output(config.hidden_size, 2)

    def head(self, hidden: Tensor, packing: Packing | None) -> Tensor:
        """[B, S, H], or packed [T, H] -> logits [B, S, 2] of the first and of the last token."""
        return _laid_out(self.qa_outputs(hidden), packing)


class BertForTokenClassification(Finetuned):
    """A tag for each token; arguments as of `BertForSequenceClassification`."""

    hugging_face = "BertForTokenClassification"

    def __init__(self, config: ModelConfig, vocab_size: int, outputs: int) -> None:
        super().__init__(config, vocab_size, pooler=False)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = Output(config.hidden_size, outputs)

    def head(self, hidden: Tensor, packing: Packing | None) -> Tensor:
        """[B, S, H], or packed [T, H] -> logits [B, S, C]."""
        return _laid_out(self.classifier(self.dropout(hidden)), packing)


def _laid_out(logits: Tensor, packing: Packing | None) -> Tensor:
    """[B, S, N], or packed [T, N] -> [B, S, N]; what is at padded places means nothing, and must count for nothing."""
    return logits if packing is None else packing.lay_out(logits)


def class_loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum of cross entropies, each times its class's weight.

    Args:
        logits: [..., C].
        labels: int64 [...], -100 where none counts.
        weights: fp32 [C].
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), weight=weights, ignore_index=IGNORED, reduction="sum"
    )


def number_loss(numbers: Tensor, targets: Tensor) -> Tensor:
    """Sum of squared errors: [B, 1], [B] -> 0-dim; a target of NaN does not count."""
    found = numbers[:, 0].float()
    counted = ~targets.isnan()
    return F.mse_loss(torch.where(counted, found, 0), torch.where(counted, targets, 0).float(), reduction="sum")


def span_loss(logits: Tensor, first: Tensor, last: Tensor, lengths: Tensor) -> Tensor:
    """Sum over the sequences of the mean of two cross entropies, among the tokens of each: padding is no answer.

    (Hugging Face's loss takes padding for a possible answer, so it is the same for sequences of one length.)

    Args:
        logits: [B, S, 2].
        first: int64 [B] position of the answer's first token.
        last: int64 [B] position of its last token.
        lengths: int64 [B] tokens of each sequence.
    """
    real = length_mask(lengths, logits.shape[1])[..., None]
    starts, ends = logits.float().masked_fill(~real, float("-inf")).unbind(-1)
    return (F.cross_entropy(starts, first, reduction="sum") + F.cross_entropy(ends, last, reduction="sum")) / 2
