"""Shared by contestants of benchmarks.finetune_parity: settings, rows, initial weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from train_jobs.artifacts.layers import merge, read_preset
from train_jobs.artifacts.start_model import read_initial_model
from train_jobs.config import ModelConfig
from train_jobs.config.finetune import FinetuneConfig
from train_jobs.corpus.tokenize.vocabulary import load_vocabulary
from train_jobs.models.bert.pretraining_heads import initialise
from train_jobs.models.huggingface import TokenizerFiles, export, label_settings, load_for_finetuning
from train_jobs.tasks.finetuning import TokenizedTask
from train_jobs.tasks.replicates import read_task

WARMUP = 0.1
WEIGHT_DECAY, EPS, CLIP = 0.01, 1e-6, 1.0


@dataclass(frozen=True)
class Contest:
    """Settings of a fine-tuning that both programs run."""

    task: str
    model: Path
    """Hugging Face folder, with a head or without; uncased."""
    train: Path
    dev: Path
    test: Path | None = None
    """The texts of dev alone, as a test set, of tasks whose dev set our job scores and does not write down."""
    epochs: int = 1
    seed: int = 1
    rate: float = 5e-5
    precision: str = "bf16"
    dropout: float = 0.1
    batch: int = 32
    max_length: int = 128
    group_by_length: bool = False
    device: str = "cpu"

    def settings(self) -> dict[str, Any]:
        """Return the settings of our job in the form of a configuration file."""
        return {
            "task": self.task,
            "init_from": self.model,
            "data": {
                "train": self.train,
                "validation": self.dev,
                "test": self.test,
                "max_length": self.max_length,
                "lowercase": True,
            },
            "model": {"hidden_dropout_prob": self.dropout, "attention_probs_dropout_prob": self.dropout},
            "optimizer": {"learning_rate": self.rate, "weight_decay": WEIGHT_DECAY, "eps": EPS, "max_grad_norm": CLIP},
            "schedule": {"warmup_fraction": WARMUP},
            "train": {
                "epochs": self.epochs,
                "global_batch_size": self.batch,
                "micro_batch_size": self.batch,
                "precision": self.precision,
                "group_by_length": self.group_by_length,
                "log_every": 1,
            },
            "seeds": [self.seed],
        }

    @property
    def config(self) -> FinetuneConfig:
        """Return the settings of our job."""
        return FinetuneConfig.model_validate(self.settings())

    @cached_property
    def rows(self) -> TokenizedTask:
        """Rows of the task, as our job reads them."""
        return read_task(self.config, load_vocabulary(read_initial_model(self.model).vocabulary, lowercase=True))

    @property
    def row_count(self) -> int:
        """Number of training sequences."""
        return len(self.rows.rows)


def with_head(contest: Contest, folder: Path, size: str | None = None) -> Path:
    """Write a copy of the model with a randomly initialised head; return its folder. Both programs start from it.

    Args:
        contest: whose model.
        folder: to write to.
        size: of a recipe, base or large: all weights are drawn, the vocabulary alone is the model's.
    """
    initial, labels = read_initial_model(contest.model), contest.rows.labels
    outline = initial.shape if size is None else merge(read_preset(size)).tree.get("model", {})
    shape = ModelConfig(**{**outline, **contest.config.model.model_dump(), "pad_vocab_to_multiple_of": 1})
    bert = contest.rows.model(shape, initial.rows)
    initialise(bert, contest.seed)
    if size is None:
        load_for_finetuning(bert, contest.model, labels)
    export(
        bert,
        folder,
        config=shape,
        vocab_size=initial.rows,
        tokenizer=TokenizerFiles(initial.vocabulary, lowercase=True),
        config_entries=label_settings(bert, labels),
    )
    return folder
