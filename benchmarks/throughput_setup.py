"""Shared by contestants of a throughput benchmark: weights, batches, settings, in a folder that each of them reads."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from train_jobs.artifacts.layers import merge, read_preset
from train_jobs.assembly.parts import BertObjective
from train_jobs.config import DataConfig, ModelConfig, ObjectiveConfig
from train_jobs.config.arithmetic import flops_per_token
from train_jobs.corpus.examples.batches import PretrainingData
from train_jobs.corpus.examples.example_stream import Cursor
from train_jobs.corpus.preparation import prepare_store
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise
from train_jobs.models.huggingface import TokenizerFiles, export

ROWS = 30_522  # pieces of the embedding table, whatever the text's vocabulary: BERT's own
BATCHES = 4  # global batches, used in turn
SEED = 1
STORE = "store"  # name of the token store's folder


@dataclass(frozen=True)
class Setup:
    """Settings of one comparison."""

    device: str
    length: int
    micro_batch: int
    accumulation: int
    dropout: float
    optimizer: str
    warmup: int
    backend: str
    """Of torch.compile, for the compiled Trainer."""
    flops_per_sequence: float
    """Model FLOPs of a padded sequence, forward and backward."""
    real_tokens: float
    """Mean tokens of a sequence, padding not counted."""

    @property
    def global_batch(self) -> int:
        """Sequences of an optimizer step."""
        return self.micro_batch * self.accumulation

    def describe(self) -> str:
        """Return the settings in one line."""
        return (
            f"length {self.length} ({self.real_tokens:.1f} real tokens in the mean), {self.micro_batch} micro x"
            f" {self.accumulation} accumulation, dropout {self.dropout:g}, our optimizer {self.optimizer},"
            f" {self.flops_per_sequence / 1e9:.1f} GFLOP a sequence, {torch.get_num_threads()} threads"
        )


def prepare(arguments: argparse.Namespace, folder: Path) -> Setup:
    """Initialise weights, create batches and write both to `folder`."""
    shape = merge(read_preset(arguments.recipe)).tree.get("model", {})
    model = ModelConfig(
        **{**shape, "hidden_dropout_prob": arguments.dropout, "attention_probs_dropout_prob": arguments.dropout}
    )
    rows, predictions = model.padded_vocab_size(ROWS), -(-arguments.length * 15 // 100)
    data = DataConfig(text=arguments.data, vocabulary=arguments.vocabulary, sequence_length=arguments.length)
    store = prepare_store(data, folder / STORE, progress=lambda text: None)
    bert = BertForPreTraining(model, rows)
    initialise(bert, SEED)
    export(
        bert,
        folder / "model",
        config=model,
        vocab_size=rows,
        tokenizer=TokenizerFiles(store.vocabulary, lowercase=True),
    )
    source = PretrainingData(
        store,
        "train",
        data=data,
        plan=BertObjective(ObjectiveConfig()).plan,
        objective=ObjectiveConfig(),
        max_predictions=predictions,
        seed=SEED,
    )
    count = arguments.micro_batch * arguments.accumulation * BATCHES
    batch, _ = source.batch(Cursor(), global_batch_size=count, rank=0, world_size=1)
    # Saved once and read by every contestant: equal batches, and no tokenisation or masking in the measured steps.
    save_file({name: torch.from_numpy(array) for name, array in batch.arrays().items()}, folder / "batches.safetensors")
    real = float(batch.lengths.mean())
    setup = Setup(
        device=arguments.device,
        length=arguments.length,
        micro_batch=arguments.micro_batch,
        accumulation=arguments.accumulation,
        dropout=arguments.dropout,
        optimizer=arguments.optimizer,
        warmup=arguments.warmup,
        backend=arguments.backend,
        flops_per_sequence=real * flops_per_token(model, rows, sequence_length=real, max_predictions=predictions),
        real_tokens=real,
    )
    (folder / "setup.json").write_text(json.dumps(asdict(setup)))
    (folder / "shape.json").write_text(model.model_dump_json())
    return setup


def read(folder: Path) -> tuple[Setup, ModelConfig, dict[str, torch.Tensor]]:
    """Return the output of `prepare`: settings, shape, all sequences."""
    setup = Setup(**json.loads((folder / "setup.json").read_text()))
    model = ModelConfig.model_validate_json((folder / "shape.json").read_text())
    return setup, model, load_file(folder / "batches.safetensors")
