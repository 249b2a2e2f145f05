"""A class or a number for each text, or pair of texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from train_jobs.config import ModelConfig
from train_jobs.config.finetune import FinetuneConfig
from train_jobs.config.tasks import SentenceTask
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert.task_heads import BertForSequenceClassification, Finetuned, class_loss, number_loss
from train_jobs.tasks.finetuning import Conclusion, Finetuning, balanced_weights
from train_jobs.tasks.sentences.glue_metrics import is_collapsed, scores
from train_jobs.tasks.sentences.task_data import TaskData, predictions_text, read_data
from train_jobs.tasks.sequences import IGNORED, Batch, Encoded, Targets, encode

Outputs = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Texts:
    """A `train_jobs.tasks.registry.TokenizedTask`: texts, each with a class or a number.

    Args:
        config: the job.
        data: its rows.
        sets: all of them as tokens: "train", and those of dev and test by their names.
    """

    config: FinetuneConfig
    data: TaskData
    sets: dict[str, Encoded]

    @classmethod
    def read(cls, config: FinetuneConfig, tokenizer: Tokenizer) -> Texts:
        """Everything that training, evaluation and prediction need."""
        data = read_data(config)
        settings: dict[str, Any] = {"max_length": config.max_length, "regression": data.task.regression}
        splits = {"train": data.train, **data.dev, **data.test}
        return cls(config, data, {name: encode(split, tokenizer, **settings) for name, split in splits.items()})

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.data.task.class_names

    @property
    def sha256(self) -> str:
        """Of what training sees."""
        return self.sets["train"].sha256

    @property
    def notes(self) -> list[str]:
        """What the user should know of the files."""
        return self.data.notes

    def describe(self) -> list[str]:
        """Task and rows, in a line each."""
        counts = ", ".join(f"{name} {len(split):,}" for name, split in self.sets.items())
        cut = ", ".join(f"{split.cut:,} of {name}" for name, split in self.sets.items() if split.cut)
        what = f"classes {', '.join(self.labels)}" if self.labels else "a number"
        return [
            f"task       {self.config.task}: {what}; scored by {' and '.join(self.data.task.metrics)}",
            f"rows       {counts}" + (f"; cut to {self.config.max_length} tokens: {cut}" if cut else ""),
        ]

    def model(self, shape: ModelConfig, rows: int) -> Finetuned:
        """A model with its head, as it is made."""
        return BertForSequenceClassification(shape, rows, max(len(self.labels), 1))

    def training(self, model: Finetuned, *, seed: int, world: World) -> Classification:
        """What the engine trains."""
        return Classification(
            *(self.data.task, model, self.sets["train"]),
            *({name: self.sets[name] for name in names} for names in (self.data.dev, self.data.test)),
            config=self.config.train,
            seed=seed,
            max_length=self.config.max_length,
            world=world,
        )


class Classification(Finetuning):
    """A class, or a number, for each row.

    Args:
        task: what is predicted, and its metrics.
        dev: rows that score it, in sets: MNLI has two, whose mean counts.
        test: rows to predict, by the names of their files.
        more: as of `Finetuning`.
    """

    def __init__(
        self,
        task: SentenceTask,
        model: Finetuned,
        train: Encoded,
        dev: dict[str, Encoded],
        test: dict[str, Encoded] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(model, train, **more)
        self._task, self._dev, self._test = task, dev, test or {}
        balanced = self._config.class_weights == "balanced" and not task.regression
        self._weights = balanced_weights(train.targets, len(task.labels)) if balanced else None
        self._weights_there = None if self._weights is None else torch.from_numpy(self._weights).to(self._world.device)

    def counts(self, batch: Batch) -> list[float]:
        """Rows that count, each with the weight of its class."""
        counted = self._counted(batch)
        if self._weights is None:
            return [float(counted.sum())]
        return [float(self._weights[batch.targets[counted].astype(np.int64)].sum())]

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """Loss, metrics and score of each dev set; of several the mean, and each set's own score."""
        each = {name: self._validate(encoded, micro_batch_size) for name, encoded in self._dev.items()}
        found = {key: float(np.mean([one[key] for one in each.values()])) for key in next(iter(each.values()))}
        return found if len(each) == 1 else {**found, **{f"{name}_score": one["score"] for name, one in each.items()}}

    def conclude(self, micro_batch_size: int) -> Conclusion:
        """A table of predictions for each test set."""
        files = {
            f"{name}.tsv": predictions_text(
                self._task, self.predictions(self.predict(encoded, micro_batch_size)).tolist()
            )
            for name, encoded in self._test.items()
        }
        return Conclusion(self.validate(micro_batch_size), files)

    def predict(self, encoded: Encoded, micro_batch_size: int) -> Outputs:
        """[rows, classes] logits, or [rows, 1] numbers, in the order of the rows, on every process."""
        outputs = max(len(self._task.labels), 1)
        found = torch.zeros(len(encoded), outputs, dtype=torch.float64, device=self._world.device)
        for rows, logits in self._shared_logits(encoded, micro_batch_size):
            found[torch.from_numpy(rows).to(found.device)] = logits.double()
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

    def _loss_sum(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        targets = torch.from_numpy(batch.targets).to(self._world.device)
        return self._loss_of(logits, targets, self._weights_there)

    def _loss_of(
        self, logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self._task.regression:
            return number_loss(logits, targets)
        return class_loss(logits, targets, weights)

    def _blank_targets(self, shape: tuple[int, int]) -> Targets:
        return np.zeros(shape[0], self._train.targets.dtype)

    def _counted(self, batch: Batch) -> npt.NDArray[np.bool_]:
        targets = batch.targets
        return ~np.isnan(targets) if targets.dtype.kind == "f" else targets != IGNORED
