"""A class or a number for each text, as the engine trains it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from train_jobs.config.finetune import FinetuneTrainConfig
from train_jobs.engine.distributed import World
from train_jobs.model.finetuning import BertForSequenceClassification, class_loss, number_loss
from train_jobs.model.objective import length_mask
from train_jobs.model.packing import Packing, packing_arrays
from train_jobs.tasks.finetuning.examples import SequenceTask
from train_jobs.tasks.finetuning.metrics import is_collapsed, scores
from train_jobs.tasks.finetuning.sequences import IGNORED, Batch, Encoded, by_length, epoch_batches

Outputs = npt.NDArray[np.float64]


class Classification:
    """As `train_jobs.engine.task.Task` has it.

    Args:
        task: what is predicted, and its metrics.
        model: on the world's device.
        train: rows to learn from.
        dev: rows that score it, in sets: MNLI has two, whose mean counts.
        config: batches.
        seed: decides the order of rows.
        max_length: tokens of the longest row that there could be.
    """

    def __init__(
        self,
        task: SequenceTask,
        model: BertForSequenceClassification,
        train: Encoded,
        dev: dict[str, Encoded],
        *,
        config: FinetuneTrainConfig,
        seed: int,
        max_length: int,
        world: World,
    ) -> None:
        self.model = model
        self._task, self._train, self._dev = task, train, dev
        self._config, self._seed, self._max_length, self._world = config, seed, max_length, world
        self._epoch: tuple[int, list[npt.NDArray[np.int64]]] = (-1, [])
        self._lengths = train.lengths
        self._weights = self._class_weights()
        self._weights_there = None if self._weights is None else torch.from_numpy(self._weights).to(world.device)

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

    def counts(self, batch: Batch) -> list[float]:
        """Rows that count, each with the weight of its class."""
        counted = self._counted(batch)
        if self._weights is None:
            return [float(counted.sum())]
        return [float(self._weights[batch.targets[counted].astype(np.int64)].sum())]

    def loss(self, batch: Batch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """This micro batch's part of the mean loss; the sum of losses and what they are the mean over."""
        loss = self._loss_sum(self._logits(batch), batch)
        sums = torch.stack([loss.detach().double(), loss.new_tensor(self.counts(batch)[0]).double()])
        return loss / totals[0], sums

    def largest_batch(self, sequences: int) -> Batch:
        """Sequences of full length."""
        shape = (sequences, self._max_length)
        lengths = np.full(sequences, self._max_length, np.int64)
        targets = np.zeros(sequences, self._train.targets.dtype)
        return Batch(np.ones(shape, np.int64), np.zeros(shape, np.int64), lengths, targets)

    def metrics(self, sums: list[float]) -> dict[str, float]:
        """The mean loss."""
        loss, count = sums
        return {"loss": loss / max(count, 1e-12)}

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """Loss, metrics and score of each dev set; of several the mean, and each set's own score.

        collapsed is 1 if the model predicts no better than a constant.
        """
        each = {name: self._validate(encoded, micro_batch_size) for name, encoded in self._dev.items()}
        found = {key: float(np.mean([one[key] for one in each.values()])) for key in next(iter(each.values()))}
        return found if len(each) == 1 else {**found, **{f"{name}_score": one["score"] for name, one in each.items()}}

    def predict(self, encoded: Encoded, micro_batch_size: int) -> Outputs:
        """[rows, classes] logits, or [rows, 1] numbers, in the order of the rows, on every process."""
        outputs = max(len(self._task.labels), 1)
        found = torch.zeros(len(encoded), outputs, dtype=torch.float64, device=self._world.device)
        for rows in by_length(encoded.lengths, micro_batch_size)[self._world.rank :: self._world.size]:
            found[torch.from_numpy(rows).to(found.device)] = self._logits(encoded.batch(rows)).double()
            self._world.activity.beat()
        result: Outputs = self._world.sum_(found).cpu().numpy()
        return result

    def predictions(self, outputs: Outputs) -> npt.NDArray[np.generic]:
        """[rows] ids of classes, the first of equals, or numbers."""
        return outputs[:, 0] if self._task.regression else outputs.argmax(1)

    def _validate(self, encoded: Encoded, micro_batch_size: int) -> dict[str, float]:
        outputs = self.predict(encoded, micro_batch_size)
        targets = torch.from_numpy(encoded.targets)
        loss = self._loss_of(torch.from_numpy(outputs), targets) / len(encoded)
        predictions = self.predictions(outputs)
        found = scores(self._task.metrics, encoded.targets, predictions)
        collapsed = is_collapsed(encoded.targets, predictions, regression=self._task.regression)
        return {"loss": float(loss), **found, "collapsed": float(collapsed)}

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
        return self.model(there["input_ids"], there["token_type_ids"], mask, packed)

    def _loss_sum(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        targets = torch.from_numpy(batch.targets).to(self._world.device)
        return self._loss_of(logits, targets, self._weights_there)

    def _loss_of(
        self, logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self._task.regression:
            return number_loss(logits, targets)
        return class_loss(logits, targets, weights)

    def _counted(self, batch: Batch) -> npt.NDArray[np.bool_]:
        targets = batch.targets
        return ~np.isnan(targets) if targets.dtype.kind == "f" else targets != IGNORED

    def _class_weights(self) -> npt.NDArray[np.float32] | None:
        """[classes] rows / (classes x rows of the class), or none; a class without rows has no say in it."""
        if self._config.class_weights == "none" or self._task.regression:
            return None
        counts = np.bincount(self._train.targets.astype(np.int64), minlength=len(self._task.labels))
        return (len(self._train) / (len(counts) * np.maximum(counts, 1))).astype(np.float32)
