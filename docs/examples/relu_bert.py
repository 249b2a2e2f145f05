"""BERT with another activation in its feed-forward layers and in the head of the language model.

orchestrator submit pretrain --code docs/examples --set model=relu_bert:ReluBert
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from train_jobs.config import ModelConfig
from train_jobs.models.bert.pretraining_heads import BertForPreTraining


class ReluIntermediate(nn.Module):
    """The widening projection of a layer; the names of its parameters are those of Hugging Face's BERT."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, S, H] -> [B, S, intermediate_size]."""
        return torch.relu(self.dense(hidden))


class ReluTransform(nn.Module):
    """Transform before the decoder of the language model."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return self.LayerNorm(torch.relu(self.dense(hidden)))


class ReluBert(BertForPreTraining):
    """Initialised, trained and exported like the one that it is derived from."""

    hugging_face: ClassVar = {"hidden_act": "relu"}  # so transformers computes what was trained

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__(config, vocab_size)
        for layer in self.bert.encoder.layer:
            layer.intermediate = ReluIntermediate(config)
        self.cls.predictions.transform = ReluTransform(config)
