"""Base classes of all fine-tuning tasks: order of rows, batches, shares of processes, logits and losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from train_jobs.config import FinetuneConfig, ModelConfig
from train_jobs.engine.loop.staging import Arrays, to_device
from train_jobs.engine.runtime.distributed import World
from train_jobs.evaluation.scored_rows import ScoredRows, sets_identity
from train_jobs.models.bert.primitives import gradients_in_place
from train_jobs.models.bert.task_heads import Finetuned
from train_jobs.tasks.sequences import (
    IGNORED,
    EncodedRows,
    Ints,
    RowBatch,
    Targets,
    TokenBatch,
    batches_by_length,
    epoch_batches,
    token_arrays,
)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class FinalEvaluation:
    """Scores and predictions of the best checkpoint."""

    metrics: dict[str, float]
    """Metrics of the dev sets; the best checkpoint has the highest `score`."""
    files: dict[str, str]
    """Prediction files: path in the folder of predictions -> content."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Additional entries of the saved model's config.json."""
    details: dict[str, Any] = field(default_factory=dict)
    """Additional entries of result.json: `intervals`, metric -> ends of its 95% interval; `sets`, name -> facts of a
    scored set."""
    rows: dict[str, ScoredRows] = field(default_factory=dict)
    """Name of a scored set -> its rows, for tests between runs."""


@dataclass(frozen=True, kw_only=True)
class TokenizedTask(ABC):
    """Task with all of its rows as tokens; `train_jobs.tasks.replicates.READERS` lists the kinds."""

    config: FinetuneConfig
    rows: EncodedRows
    """Training rows."""
    labels: tuple[str, ...] = ()
    """Names of classes or tags in the order of their ids; empty for regression and question answering."""
    notes: list[str]
    """Warnings about the files, each with its file and line."""

    @cached_property
    def identity(self) -> dict[str, str]:
        """Hashes of the rows and of the names of the classes, see `sets_identity`."""
        return sets_identity(self.row_identities(), self.labels)

    @abstractmethod
    def row_identities(self) -> dict[str, list[str]]:
        """Return the identity of each row of train, dev and test."""

    @abstractmethod
    def describe(self) -> list[str]:
        """Return two lines of the summary: the task, and its rows."""

    @abstractmethod
    def model(self, shape: ModelConfig, rows: int) -> Finetuned:
        """Return a new model with its head.

        Args:
            shape: shape of the encoder.
            rows: rows of the embedding table.
        """

    @abstractmethod
    def training(self, model: Finetuned, *, seed: int, world: World) -> Finetuning:
        """Return the task of one training run, as the loop uses it.

        Args:
            model: model on the device.
            seed: decides the order of rows.
            world: the processes.
        """


class Finetuning(ABC):
    """Implementation of `train_jobs.engine.loop.task.TrainingTask` for a tokenized task.

    Args:
        model: model on the world's device.
        task: rows, labels and settings.
        seed: decides the order of rows.
        world: the processes.
    """

    def __init__(self, model: Finetuned, task: TokenizedTask, *, seed: int, world: World) -> None:
        self.model: Finetuned = model
        self._train, self._config, self._max_length = task.rows, task.config.train, task.config.max_length
        self._seed, self._world = seed, world
        self._epoch: tuple[int, list[Ints]] = (-1, [])
        self._weights: npt.NDArray[np.float32] | None = None
        self._device_weights: torch.Tensor | None = None
        if self._config.class_weights == "balanced" and task.labels:
            self._weights = balanced_weights(task.rows.targets, len(task.labels))
            self._device_weights = torch.from_numpy(self._weights).to(world.device)

    def counts(self, batch: RowBatch) -> list[float]:
        """Return the denominator of the mean loss for this share: labelled targets, or the sum of their weights."""
        # With class weights the mean divides by the sum of weights, as torch's cross entropy with reduction="mean"
        # does.
        targets = batch.targets
        counted = targets[~np.isnan(targets) if targets.dtype.kind == "f" else targets != IGNORED]
        return [float(len(counted) if self._weights is None else self._weights[counted.astype(np.int64)].sum())]

    @abstractmethod
    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """Evaluate on the dev sets.

        Args:
            micro_batch_size: rows per forward pass.

        Returns:
            loss, the metrics of the task, score (the best checkpoint has the highest), and collapsed: 1 if the model is
            no better than an untrained one, else 0.
        """

    @abstractmethod
    def evaluate_final(self, micro_batch_size: int) -> FinalEvaluation:
        """Evaluate on the dev sets and predict the test sets; the result is the same on every process.

        Args:
            micro_batch_size: rows per forward pass.
        """

    @abstractmethod
    def _loss_sum(self, logits: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the sum of losses over labelled targets, 0-dim.

        Args:
            logits: result of the model.
            targets: those of a `RowBatch`.
            lengths: int64 [rows] tokens of each row.
        """

    def accumulating(self) -> AbstractContextManager[None]:
        """Return the context in which backward passes add to the gradients in place."""
        return gradients_in_place()

    def flops(self, sequences: float, tokens: float) -> float:
        """Return the floating-point operations of the forward and backward pass; see `TrainingTask.flops`."""
        # 2 per weight and token forward, 4 backward; attention multiplies S x S scores twice per layer. Heads and
        # embedding lookups are negligible. At the mean length, since packed batches compute no padding.
        encoder = sum(parameter.numel() for parameter in self.model.bert.encoder.parameters())
        shape = self.model.config
        return tokens * (6 * encoder + 12 * shape.num_hidden_layers * shape.hidden_size * tokens / sequences)

    @property
    def steps_per_epoch(self) -> int:
        """Number of global batches per epoch."""
        return -(-len(self._train) // self._config.global_batch_size)

    def train_batch(self, cursor: dict[str, int]) -> tuple[RowBatch, dict[str, int]]:
        """Return this process's share of a global batch, and the next cursor.

        Args:
            cursor: epoch and batch, counted from 0; empty at the start.
        """
        epoch, number = cursor.get("epoch", 0), cursor.get("batch", 0)
        # Derived from seed and epoch, not stored in checkpoints: a resumed run computes the same order again.
        if self._epoch[0] != epoch:
            size, grouped = self._config.global_batch_size, self._config.group_by_length
            batches = epoch_batches(
                self._train.lengths, global_batch_size=size, seed=self._seed, epoch=epoch, group_by_length=grouped
            )
            self._epoch = epoch, batches
        rows = self._epoch[1][number]
        # The last batch of an epoch may have fewer rows than processes. A process without rows takes one that does not
        # count: it must join the collectives, and its gradient is 0.
        mine = rows[self._world.rank :: self._world.size]
        batch = self._train.batch(mine if len(mine) else rows[:1], counted=len(mine) > 0)
        last = number + 1 == len(self._epoch[1])
        return batch, {"epoch": epoch + last, "batch": 0 if last else number + 1}

    def loss(self, batch: RowBatch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a micro batch's part of the mean loss, and fp64 [2]: the sum of its losses and their denominator."""
        return self.staged_loss(batch, to_device(self.arrays(batch), self._world.device), totals)

    def arrays(self, batch: RowBatch) -> Arrays:
        """Return tokens, targets and the denominator of the loss of a micro batch; see `StagesBatches`."""
        tokens = token_arrays(
            (batch.input_ids, batch.token_type_ids, batch.lengths),
            unpad=self._config.unpad,
            always=self._world.device.type == "cuda",
        )
        return {**tokens, "targets": batch.targets, "count": np.array(self.counts(batch), np.float32)}

    def staged_loss(
        self, batch: RowBatch, tensors: Mapping[str, torch.Tensor], totals: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same as `loss`, see `StagesBatches`."""
        padded = bool(batch.lengths.min() < batch.input_ids.shape[1])
        logits = self.model(*TokenBatch.of_tensors(tensors, is_padded=padded)[:4])
        loss = self._loss_sum(logits, tensors["targets"], tensors["lengths"])
        sums = torch.stack([loss.detach(), tensors["count"][0].to(loss.dtype)]).double()
        return loss / totals[0], sums

    def largest_batch(self, sequences: int) -> RowBatch:
        """Return synthetic rows of maximum length, see `TrainingTask.largest_batch`."""
        # One is shorter: attention with a mask needs more memory than without, and almost every batch needs one.
        shape = (sequences, self._max_length)
        lengths = np.full(sequences, self._max_length, np.int64)
        lengths[0] -= 1
        return RowBatch(np.ones(shape, np.int64), np.zeros(shape, np.int64), lengths, self._train.blank_targets(*shape))

    def metrics(self, sums: list[float]) -> dict[str, float]:
        """Return the mean loss."""
        loss, count = sums
        return {"loss": loss / max(count, 1e-12)}

    def _logits(self, batch: RowBatch) -> torch.Tensor:
        arrays = (batch.input_ids, batch.token_type_ids, batch.lengths)
        return self.model(*TokenBatch.on_device(arrays, self._world.device, unpad=self._config.unpad)[:4])

    def _shared_logits(self, encoded: EncodedRows, micro_batch_size: int) -> Iterator[tuple[Ints, torch.Tensor]]:
        """Yield row numbers and logits of this process's share of the rows, batch by batch."""
        for rows in batches_by_length(encoded.lengths, micro_batch_size)[self._world.rank :: self._world.size]:
            yield rows, self._logits(encoded.batch(rows))
            self._world.activity.beat()

    def _token_logits(self, encoded: EncodedRows, outputs: int, micro_batch_size: int) -> Floats:
        """Return the logits of the tokens of all rows, in the order of rows, [tokens, outputs], on every process."""
        # Each process fills its rows of a zero tensor, so the sum is a gather: exact, and independent of the split.
        found = torch.zeros(int(encoded.lengths.sum()), outputs, device=self._world.device)
        for rows, logits in self._shared_logits(encoded, micro_batch_size):
            lengths = encoded.lengths[rows]
            real = torch.from_numpy(np.arange(logits.shape[1]) < lengths[:, None]).to(found.device)
            found[torch.from_numpy(encoded.tokens_of(rows)).to(found.device)] = logits[real].float()
        return self._world.sum_(found).cpu().numpy()


def balanced_weights(targets: Targets, classes: int) -> npt.NDArray[np.float32]:
    """Return class weights with which all classes have the same total weight (scikit-learn's "balanced").

    Args:
        targets: ids of classes, IGNORED for unlabelled targets.
        classes: number of classes.

    Returns:
        [classes], fp32: targets / (classes x targets of the class).
    """
    counted = targets[targets != IGNORED].astype(np.int64)
    counts = np.bincount(counted, minlength=classes)
    # a class without targets occurs in no loss, so any finite weight will do
    return (len(counted) / (classes * np.maximum(counts, 1))).astype(np.float32)
