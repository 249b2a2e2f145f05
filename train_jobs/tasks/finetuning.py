"""What all tasks of fine-tuning have in common: the order of rows, shares and batches of them, the way to logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from train_jobs.config.finetune import FinetuneTrainConfig
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert.linear import gradients_in_place
from train_jobs.models.bert.losses import length_mask
from train_jobs.models.bert.task_heads import Finetuned
from train_jobs.models.packing import Packing, packing_arrays
from train_jobs.tasks.sequences import Batch, Encoded, Ints, Targets, by_length, epoch_batches

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Conclusion:
    """What a fine-tuned model comes to."""

    metrics: dict[str, float]
    """Those of the dev sets; `score` is what a best model is best in."""
    files: dict[str, str]
    """Predictions: path below the folder of predictions -> content."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What config.json of the saved model is to say besides."""


class Finetuning(ABC):
    """As `train_jobs.engine.loop.task.Task` has it.

    Args:
        model: on the world's device.
        train: rows to learn from.
        config: batches.
        seed: decides the order of rows.
        max_length: tokens of the longest row that there could be.
    """

    def __init__(
        self,
        model: Finetuned,
        train: Encoded,
        *,
        config: FinetuneTrainConfig,
        seed: int,
        max_length: int,
        world: World,
    ) -> None:
        self.model: Finetuned = model
        self._train, self._lengths = train, train.lengths
        self._config, self._seed, self._max_length, self._world = config, seed, max_length, world
        self._epoch: tuple[int, list[Ints]] = (-1, [])

    @abstractmethod
    def counts(self, batch: Batch) -> list[float]:
        """What the mean loss is the mean over, in this share."""

    @abstractmethod
    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """Loss, metrics and score of the dev sets; collapsed is 1 if the model is no better than one that learned
        nothing."""

    @abstractmethod
    def conclude(self, micro_batch_size: int) -> Conclusion:
        """Scores the model once more and predicts; the same on every process."""

    @abstractmethod
    def _loss_sum(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Sum of losses over what counts."""

    @abstractmethod
    def _blank_targets(self, shape: tuple[int, int]) -> Targets:
        """Targets that count, of rows and tokens so many."""

    def accumulating(self) -> AbstractContextManager[None]:
        """Let the backward passes of one step add to the gradients in place."""
        return gradients_in_place()

    def flops(self, sequences: float, tokens: float) -> float:
        """6 for each weight of the encoder and token, and the products of attention at the mean length."""
        encoder = sum(parameter.numel() for parameter in self.model.bert.encoder.parameters())
        shape = self.model.config
        return tokens * (6 * encoder + 12 * shape.num_hidden_layers * shape.hidden_size * tokens / sequences)

    @property
    def steps_per_epoch(self) -> int:
        """Global batches of an epoch."""
        return -(-len(self._train) // self._config.global_batch_size)

    def train_batch(self, cursor: dict[str, int]) -> tuple[Batch, dict[str, int]]:
        """This process's share of the next global batch; one that has no row takes one that does not count."""
        epoch, number = cursor.get("epoch", 0), cursor.get("batch", 0)
        if self._epoch[0] != epoch:
            size, grouped = self._config.global_batch_size, self._config.group_by_length
            batches = epoch_batches(
                self._lengths, global_batch_size=size, seed=self._seed, epoch=epoch, group_by_length=grouped
            )
            self._epoch = epoch, batches
        rows = self._epoch[1][number]
        mine = rows[self._world.rank :: self._world.size]
        batch = self._train.batch(mine if len(mine) else rows[:1], counted=len(mine) > 0)
        last = number + 1 == len(self._epoch[1])
        return batch, {"epoch": epoch + last, "batch": 0 if last else number + 1}

    def loss(self, batch: Batch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """This micro batch's part of the mean loss; the sum of losses and what they are the mean over."""
        loss = self._loss_sum(self._logits(batch), batch)
        sums = torch.stack([loss.detach().double(), loss.new_tensor(self.counts(batch)[0]).double()])
        return loss / totals[0], sums

    def largest_batch(self, sequences: int) -> Batch:
        """Sequences of full length; one is shorter, as almost always: attention takes a mask."""
        shape = (sequences, self._max_length)
        lengths = np.full(sequences, self._max_length, np.int64)
        lengths[0] -= 1
        return Batch(np.ones(shape, np.int64), np.zeros(shape, np.int64), lengths, self._blank_targets(shape))

    def metrics(self, sums: list[float]) -> dict[str, float]:
        """The mean loss."""
        loss, count = sums
        return {"loss": loss / max(count, 1e-12)}

    def _logits(self, batch: Batch) -> torch.Tensor:
        size = batch.input_ids.shape[1]
        packing = packing_arrays(batch.lengths, size) if self._config.unpad else {}
        arrays: dict[str, npt.NDArray[Any]] = {
            "input_ids": batch.input_ids,
            "token_type_ids": batch.token_type_ids,
            "lengths": batch.lengths,
            **packing,
        }
        there = {name: torch.from_numpy(array).to(self._world.device) for name, array in arrays.items()}
        packed = Packing.of(there)
        padded = packed is None and bool(batch.lengths.min() < size)
        mask = length_mask(there["lengths"], size) if padded else None
        logits: torch.Tensor = self.model(there["input_ids"], there["token_type_ids"], mask, packed)
        return logits

    def _shared_logits(self, encoded: Encoded, micro_batch_size: int) -> Iterator[tuple[Ints, torch.Tensor]]:
        """This process's share of the rows: their numbers, and their logits."""
        for rows in by_length(encoded.lengths, micro_batch_size)[self._world.rank :: self._world.size]:
            yield rows, self._logits(encoded.batch(rows))
            self._world.activity.beat()

    def _token_logits(self, encoded: Encoded, outputs: int, micro_batch_size: int) -> Floats:
        """[tokens of all rows, outputs] logits of each token, row behind row in their order, on every process."""
        found = torch.zeros(int(encoded.lengths.sum()), outputs, device=self._world.device)
        for rows, logits in self._shared_logits(encoded, micro_batch_size):
            lengths = encoded.lengths[rows]
            real = torch.from_numpy(np.arange(logits.shape[1]) < lengths[:, None]).to(found.device)
            found[torch.from_numpy(encoded.tokens_of(rows)).to(found.device)] = logits[real].float()
        result: Floats = self._world.sum_(found).cpu().numpy()
        return result


def balanced_weights(targets: Targets, classes: int) -> npt.NDArray[np.float32]:
    """[classes] targets / (classes x targets of the class); a class without any has no say in it."""
    counts = np.bincount(targets.astype(np.int64), minlength=classes)
    return (len(targets) / (classes * np.maximum(counts, 1))).astype(np.float32)
