"""Classification of, or regression on, texts and pairs of texts, as a task of the training loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from train_jobs.config import FinetuneConfig, ModelConfig
from train_jobs.engine.runtime.distributed import World
from train_jobs.evaluation.resampling import intervals
from train_jobs.evaluation.scored_rows import ScoredRows, example_ids, row_ids, sets_identity
from train_jobs.models.bert.task_heads import BertForSequenceClassification, Finetuned, class_loss, number_loss
from train_jobs.readers.sentence_data import Examples, TaskData, read_data
from train_jobs.tasks.finetuning import FinalEvaluation, Finetuning, TokenizedTask
from train_jobs.tasks.sentences.glue import predictions_text
from train_jobs.tasks.sentences.metrics import (
    class_details,
    class_resamples,
    class_rows,
    class_scores,
    is_collapsed,
    top_probabilities,
)
from train_jobs.tasks.sequences import IGNORED, EncodedRows, encode_texts

Outputs = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Texts(TokenizedTask):
    """Texts or pairs of texts with their classes or numbers."""

    data: TaskData
    sets: dict[str, EncodedRows]
    """"train", and the sets of dev and test by their names."""

    @classmethod
    def read(cls, config: FinetuneConfig, tokenizer: Tokenizer) -> Texts:
        """Read and encode the rows; see `train_jobs.tasks.replicates.read_task`."""
        data = read_data(config)
        settings: dict[str, Any] = {"max_length": config.max_length, "regression": data.task.regression}
        splits = {"train": data.train, **data.dev, **data.test, **data.held_back}
        sets = {name: encode(split, tokenizer, **settings) for name, split in splits.items()}
        labels = data.task.class_names
        return cls(config=config, rows=sets["train"], labels=labels, notes=data.notes, data=data, sets=sets)

    def row_identities(self) -> dict[str, list[str]]:
        return data_identities(self.data)

    def describe(self) -> list[str]:
        counts = ", ".join(f"{name} {len(split):,}" for name, split in self.sets.items())
        cut = ", ".join(f"{split.truncated:,} of {name}" for name, split in self.sets.items() if split.truncated)
        what = f"classes {', '.join(self.labels)}" if self.labels else "a number"
        return [
            f"task       {self.config.task}: {what}; scored by {self._scored_by()}",
            f"selection  {self._selection()}",
            f"rows       {counts}" + (f"; truncated to {self.config.max_length} tokens: {cut}" if cut else ""),
        ]

    def _selection(self) -> str:
        """Return what the dev set chooses, and whether other rows are scored."""
        if self.data.held_back:
            rows = sum(map(len, self.data.held_back.values()))
            return f"dev chooses the checkpoint; {rows:,} held-back rows are scored once, as test"
        hint = "GLUE's server scores test" if self.data.task.suite else "data.test_fraction holds rows back"
        return f"dev chooses the checkpoint, so its scores are optimistic; {hint}"

    def _scored_by(self) -> str:
        """Return the metrics of the score, with the class that F1 refers to."""
        task = self.data.task
        if task.labels and not task.suite and "f1" in task.metrics:
            return " and ".join(task.metrics) + f" of {task.class_names[task.positive]}"
        hint = "; data.positive_label is not set" if "macro_f1" in task.metrics else ""
        return " and ".join(task.metrics) + hint

    def model(self, shape: ModelConfig, rows: int) -> Finetuned:
        return BertForSequenceClassification(shape, rows, max(len(self.labels), 1))

    def training(self, model: Finetuned, *, seed: int, world: World) -> Classification:
        return Classification(model, self, seed=seed, world=world)


def data_identity(data: TaskData) -> dict[str, str]:
    """Return `TokenizedTask.identity` of a task that is not tokenized."""
    return sets_identity(data_identities(data), data.task.class_names)


def data_identities(data: TaskData) -> dict[str, list[str]]:
    """Return the identity of each row of train, dev and test, including held-back rows."""
    splits = {"train": [data.train], "dev": data.dev.values(), "test": [*data.test.values(), *data.held_back.values()]}
    classes = data.task.class_names
    return {name: [row for one in some for row in _row_identities(one, classes)] for name, some in splits.items()}


def _row_identities(examples: Examples, classes: Sequence[str]) -> list[str]:
    if examples.labels is not None:
        return example_ids(examples.texts, examples.pairs, examples.labels, classes)
    return row_ids(examples.texts, *([] if examples.pairs is None else [examples.pairs]))


def encode(examples: Examples, tokenizer: Tokenizer, *, max_length: int, regression: bool) -> EncodedRows:
    """Encode a split.

    Args:
        examples: the split; without labels its targets are IGNORED or NaN.
        tokenizer: tokenizer of the model.
        max_length: maximum tokens of a sequence, see `encode_texts`.
        regression: whether targets are numbers.
    """
    tokens, cut = encode_texts(tokenizer, examples.texts, examples.pairs, max_length=max_length)
    labels = examples.labels or [math.nan if regression else IGNORED] * len(tokens)
    targets = np.array(labels, np.float32 if regression else np.int64)
    return EncodedRows([one.ids for one in tokens], np.array([one.second for one in tokens], np.int64), targets, cut)


class Classification(Finetuning):
    """Training of classes or numbers. With several dev sets, as in MNLI, the score is their mean."""

    def __init__(self, model: Finetuned, task: Texts, *, seed: int, world: World) -> None:
        super().__init__(model, task, seed=seed, world=world)
        self._task = task.data.task
        data = task.data
        self._examples = {**data.dev, **data.held_back}
        self._dev, self._test, self._held_back = (
            {name: task.sets[name] for name in some} for some in (data.dev, data.test, data.held_back)
        )

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """Return loss, metrics and score of the dev set; of several the means, and the score of each."""
        each = {name: self._validate(encoded, micro_batch_size) for name, encoded in self._dev.items()}
        found = {key: float(np.mean([one[key] for one in each.values()])) for key in next(iter(each.values()))}
        return found if len(each) == 1 else {**found, **{f"{name}_score": one["score"] for name, one in each.items()}}

    def evaluate_final(self, micro_batch_size: int) -> FinalEvaluation:
        """Return the metrics of dev, and a table of predictions for each test set."""
        files = {
            f"{name}.tsv": predictions_text(
                self._task, self.predictions(self.predict(encoded, micro_batch_size)).tolist()
            )
            for name, encoded in self._test.items()
        }
        metrics = self.validate(micro_batch_size)
        rows = {name: self._scored_rows(name, encoded, micro_batch_size) for name, encoded in self._dev.items()}
        details = self._details(rows)
        for name, encoded in self._held_back.items():
            found = self._validate(encoded, micro_batch_size)
            rows["test"] = self._scored_rows(name, encoded, micro_batch_size)
            more = self._details({"test": rows["test"]})
            names = [name for name in more["intervals"] if name != "score"]
            metrics |= {f"test_{name}": found[name] for name in names}
            details["intervals"] |= {f"test_{name}": more["intervals"][name] for name in names}
            details["sets"] |= more["sets"]
        return FinalEvaluation(metrics, files, details=details, rows=rows)

    def _scored_rows(self, name: str, encoded: EncodedRows, micro_batch_size: int) -> ScoredRows:
        """Return the rows of a set with their predictions."""
        outputs = self.predict(encoded, micro_batch_size)
        one, classes = self._examples[name], self._task.class_names
        assert one.labels is not None, "scored sets are labelled"
        identity = {"rows": _row_identities(one, classes), "classes": classes}
        metrics, margins = self._task.class_metrics, self.positive_logits(outputs)
        sure = top_probabilities(outputs) if classes else None
        return class_rows(metrics, encoded.targets, self.predictions(outputs), margins, confidences=sure, **identity)

    def _details(self, scored: dict[str, ScoredRows]) -> dict[str, Any]:
        """Return the intervals of the metrics and the facts of each set; several sets count by their mean."""
        each = [class_resamples(self._task.class_metrics, rows) for rows in scored.values()]
        means = {name: np.mean([one[name] for one in each], axis=0) for name in each[0]}
        if len(each) > 1:
            means |= {f"{name}_score": one["score"] for name, one in zip(scored, each, strict=True)}
        sets = {
            name: class_details(rows.classes, rows.columns["label"], rows.columns["prediction"])
            for name, rows in scored.items()
        }
        return {"intervals": intervals(means), "sets": sets}

    def predict(self, encoded: EncodedRows, micro_batch_size: int) -> Outputs:
        """Return logits, [rows, classes], or numbers, [rows, 1], in the order of the rows, on every process."""
        outputs = max(len(self._task.labels), 1)
        # Each process fills its rows of zeros, so the sum is a gather. fp64 keeps every fp32 logit exactly.
        found = torch.zeros(len(encoded), outputs, dtype=torch.float64, device=self._world.device)
        for rows, logits in self._shared_logits(encoded, micro_batch_size):
            found[torch.from_numpy(rows).to(found.device)] = logits.double()
        return self._world.sum_(found).cpu().numpy()

    def predictions(self, outputs: Outputs) -> npt.NDArray[np.generic]:
        """Return [rows]: ids of classes, the first in a tie, or numbers."""
        return outputs[:, 0] if self._task.regression else outputs.argmax(1)

    def positive_logits(self, outputs: Outputs) -> npt.NDArray[np.float64] | None:
        """Return [rows]: by how much the logit of the positive class exceeds the other; None unless there are two."""
        positive = self._task.positive
        return outputs[:, positive] - outputs[:, 1 - positive] if len(self._task.labels) == 2 else None

    def _validate(self, encoded: EncodedRows, micro_batch_size: int) -> dict[str, float]:
        outputs = self.predict(encoded, micro_batch_size)
        # without class weights, so that losses of runs with different weights are comparable
        loss = self._loss_of(torch.from_numpy(outputs), torch.from_numpy(encoded.targets)) / len(encoded)
        predictions = self.predictions(outputs)
        found = class_scores(self._task.class_metrics, encoded.targets, predictions, self.positive_logits(outputs))
        collapsed = is_collapsed(encoded.targets, predictions, regression=self._task.regression)
        return {"loss": float(loss), **found, "collapsed": float(collapsed)}

    def _loss_sum(self, logits: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self._loss_of(logits, targets, self._device_weights)

    def _loss_of(
        self, logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self._task.regression:
            return number_loss(logits, targets)
        return class_loss(logits, targets, weights)
