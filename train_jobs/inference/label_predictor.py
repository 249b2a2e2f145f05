"""A label for each text, or pair of texts, with the probability of each; several labels; or a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from train_jobs.config import PredictConfig, SpecError
from train_jobs.config.names import did_you_mean
from train_jobs.config.tasks import SentenceTask, sentence_task
from train_jobs.inference.forward import Batch, Forward
from train_jobs.inference.model_folder import REGRESSION, SEVERAL_LABELS, Folder
from train_jobs.inference.predictor import Predicted, Record, Task, rounded
from train_jobs.tasks.rows.columns import classes, numbers, texts
from train_jobs.tasks.rows.tables import Problems, Table
from train_jobs.tasks.sentences.glue_metrics import scores

if TYPE_CHECKING:
    import pyarrow as pa

Floats = npt.NDArray[np.float64]
TINY = 1e-300  # probability below which a loss grows no more
IS_ONE = 0.5  # probability from which one of several labels holds


class Classification(Task):
    """As `Task` has it.

    Raises:
        SpecError: a model that predicts several labels of a text is to be scored.
    """

    def __init__(self, config: PredictConfig, folder: Folder, tokenizer: Tokenizer, forward: Forward) -> None:
        super().__init__(config, folder, tokenizer, forward)
        if config.evaluate and folder.problem == SEVERAL_LABELS:
            raise SpecError("a model that gives a text several labels is not scored here", fix="--set evaluate=false")

    @property
    def built_in(self) -> SentenceTask | None:
        """The built-in task that was named."""
        return sentence_task(self.config.task)

    @property
    def columns(self) -> list[str]:
        label = [self.config.data.label] if self.config.evaluate else []
        return list(dict.fromkeys([*super().columns, *label]))

    @property
    def is_number(self) -> bool:
        """Whether a number is predicted."""
        return self.folder.problem == REGRESSION

    def check(self, table: Table, problems: Problems) -> None:
        flawed = self.built_in is not None and self.built_in.known_flaws
        for column in self.text_columns:
            texts(table, column, problems, may_be_empty=flawed)
        if self.config.evaluate:
            self._labels(table, problems)

    def predict(self, table: Table, first: int) -> Predicted:
        sequences, cut = self.tokens(table)
        logits = np.array(self.forward.each(sequences, self._logits), np.float64)
        records = [self._number(row) if self.is_number else self._classes(row) for row in logits]
        return Predicted(records, self._judged(table, logits) if self.config.evaluate else {}, cut)

    def scores(self, judged: Sequence[dict[str, Any]]) -> dict[str, float]:
        labels = np.concatenate([one["labels"] for one in judged])
        predictions = np.concatenate([one["predictions"] for one in judged])
        loss = sum(one["loss"] for one in judged) / len(labels)
        return {"loss": loss, **scores(self._metrics, labels, predictions)}

    def fields(self) -> dict[str, pa.DataType]:
        import pyarrow as pa

        if self.is_number:
            return {"value": pa.float64()}
        probabilities = pa.struct([(name, pa.float64()) for name in self.folder.labels])
        if self.folder.problem == SEVERAL_LABELS:
            return {"labels": pa.list_(pa.string()), "probabilities": probabilities}
        return {"label": pa.string(), "probability": pa.float64(), "probabilities": probabilities}

    @property
    def _metrics(self) -> tuple[str, ...]:
        if self.built_in is not None:
            return self.built_in.metrics
        if self.is_number:
            return ("pearson", "spearman")
        return ("accuracy", "f1") if len(self.folder.labels) == 2 else ("accuracy",)

    def _logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        logits = self.forward.model(batch.input_ids, batch.token_type_ids, batch.attention_mask, batch.packing)
        found: npt.NDArray[np.float32] = logits.float().cpu().numpy()
        return found

    def _number(self, logits: Floats) -> Record:
        return {"value": rounded(logits[0])}

    def _classes(self, logits: Floats) -> Record:
        several = self.folder.problem == SEVERAL_LABELS
        found = 1 / (1 + np.exp(-logits)) if several else softmax(logits)
        order = np.argsort(-found, kind="stable")[: self.config.top_k]
        told = {self.folder.labels[number]: rounded(found[number]) for number in order}
        if several:
            return {"labels": [name for name, value in told.items() if value >= IS_ONE], "probabilities": told}
        label, probability = next(iter(told.items()))
        return {"label": label, "probability": probability, "probabilities": told}

    def _labels(self, table: Table, problems: Problems) -> list[int] | list[float]:
        if self.is_number:
            return numbers(table, self.config.data.label, problems)
        known = self._known_labels()
        found = classes(table, self.config.data.label, problems)
        for row, name in enumerate(found):
            if name is not None and name not in known:
                names = ", ".join(self.folder.labels)
                guess = did_you_mean(name, self.folder.labels)
                problems.add(table.where(row), f"the model has no label {name!r}, but {names}{guess}")
        return [known.get(name, -1) for name in found]

    def _known_labels(self) -> dict[str, int]:
        """What may stand for a label in the input -> its id."""
        ids = {name: number for number, name in enumerate(self.folder.labels)}
        by_number = {str(number): number for number in ids.values()}
        if self.built_in is None:
            return {**by_number, **ids}
        names = self.built_in.class_names
        return {label: ids.get(names[number], number) for number, label in enumerate(self.built_in.labels)}

    def _judged(self, table: Table, logits: Floats) -> dict[str, Any]:
        problems = Problems("labels", fix="")
        labels = np.array(self._labels(table, problems))
        problems.check()
        if self.is_number:
            found = logits[:, 0]
            return {
                "labels": labels.tolist(),
                "predictions": found.tolist(),
                "loss": float(((found - labels) ** 2).sum()),
            }
        likely = np.log(np.maximum([softmax(row)[label] for row, label in zip(logits, labels, strict=True)], 1e-300))
        return {"labels": labels.tolist(), "predictions": logits.argmax(1).tolist(), "loss": float(-likely.sum())}


def softmax(logits: Floats) -> Floats:
    """[..., C] -> [..., C]"""
    found = np.exp(logits - logits.max(-1, keepdims=True))
    result: Floats = found / found.sum(-1, keepdims=True)
    return result


def with_task_columns(config: PredictConfig) -> PredictConfig:
    """The configuration with the columns of the built-in task that it names, if any."""
    task = sentence_task(config.task)
    if task is None:
        return config
    columns: dict[str, Any] = {"text": task.text, "pair": task.pair, "label": task.label, "quoting": False}
    if config.evaluate:
        columns["header"] = list(task.files[task.dev_splits[0]].header or ()) or None
    return config.model_copy(update={"data": config.data.model_copy(update=columns)})
