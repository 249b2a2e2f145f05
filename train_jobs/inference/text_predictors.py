"""Predictors for whole texts: labels or numbers, words for [MASK], and embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from train_jobs.config import PredictConfig, SpecError, did_you_mean
from train_jobs.config.predict import MASK, REGRESSION, SEVERAL_LABELS, require_labels
from train_jobs.config.privacy import classes_text, value_text
from train_jobs.config.tasks import NUMBER_METRICS, ClassMetrics, SentenceTask, model_ids, own_metrics, sentence_task
from train_jobs.corpus.examples.masking import MaskingRule, keys, mask_tokens
from train_jobs.evaluation.resampling import intervals
from train_jobs.evaluation.scored_rows import SCORED_SET, ScoredRows, example_ids, row_ids
from train_jobs.inference.forward import Forward
from train_jobs.inference.model_folder import Folder
from train_jobs.inference.predictor import Predicted, Predictor, Record, rounded
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, is_correct, length_mask
from train_jobs.readers.class_labels import require_positive_label
from train_jobs.readers.tables import RowProblems, RowTable, class_ids, label_ids, numbers, texts
from train_jobs.tasks.sentences.metrics import (
    class_details,
    class_resamples,
    class_rows,
    class_scores,
    top_probabilities,
)
from train_jobs.tasks.sequences import Ints, TokenBatch, Tokens

Floats = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.float32]
DEFAULT_TOP_K = 5
MASKING_STREAM = 7  # random stream that decides which tokens are masked
TINY = 1e-300  # lower bound of a probability, so that its logarithm is finite
MASK_COLUMNS = ("loss", "right", "masked")  # what a row of masked text is scored by
LABEL_THRESHOLD = 0.5  # minimum probability of one of several labels


class LabelPredictor(Predictor):
    """Predictor of a label with probabilities, of several labels, or of a number, for texts or pairs of texts.

    Raises:
        SpecError: the configuration scores a model of several labels, or a model with other labels than its task.
    """

    def __init__(self, config: PredictConfig, folder: Folder, tokenizer: Tokenizer, forward: Forward) -> None:
        super().__init__(config, folder, tokenizer, forward)
        if config.evaluate and folder.problem == SEVERAL_LABELS:
            raise SpecError("cannot score a model that predicts several labels of a text", fix="--set evaluate=false")
        if config.evaluate and self.built_in is not None:
            require_labels(self.built_in, folder.path, folder.labels, number=self.is_number)
        if config.evaluate and self.built_in is None and not self.is_number:
            require_positive_label(config.data.positive_label, folder.labels)

    @property
    def built_in(self) -> SentenceTask | None:
        """The built-in task of the configuration."""
        return sentence_task(self.config.task)

    @property
    def is_number(self) -> bool:
        """Whether the model predicts a number."""
        return self.folder.problem == REGRESSION

    def check(self, table: RowTable, problems: RowProblems) -> None:
        flawed = self.built_in is not None and self.built_in.known_flaws
        for column in self.text_columns:
            texts(table, column, problems, may_be_empty=flawed)
        if self.config.evaluate:
            self._labels(table, problems)

    def predict(self, table: RowTable, first: int) -> Predicted:
        sequences, cut = self.tokens(table)
        # fp64: a difference of probabilities close to 1 is below the resolution of fp32.
        logits = np.array(self.forward.map(sequences, self._logits), np.float64)
        records = [{"value": rounded(row[0])} if self.is_number else self._classes(row) for row in logits]
        return Predicted(records, self._score_inputs(table, logits) if self.config.evaluate else {}, cut)

    def answer(self, record: Record) -> Any:
        if self.is_number:
            return record["value"]
        return sorted(record["labels"]) if self.folder.problem == SEVERAL_LABELS else record["label"]

    def scores(self, score_inputs: Sequence[dict[str, Any]]) -> dict[str, float]:
        labels = np.concatenate([one["labels"] for one in score_inputs])
        predictions = np.concatenate([one["predictions"] for one in score_inputs])
        loss = sum(one["loss"] for one in score_inputs) / len(labels)
        margins = np.concatenate([one["margins"] for one in score_inputs]) if "margins" in score_inputs[0] else None
        return {"loss": loss, **class_scores(self._metrics, labels, predictions, margins)}

    def score_details(self, score_inputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        (rows,) = self.scored_rows(score_inputs).values()
        return {
            "intervals": intervals(class_resamples(self._metrics, rows)),
            "sets": {SCORED_SET: class_details(rows.classes, rows.columns["label"], rows.columns["prediction"])},
        }

    def scored_rows(self, score_inputs: Sequence[dict[str, Any]]) -> dict[str, ScoredRows]:
        labels, predictions, ids = (
            np.concatenate([one[key] for one in score_inputs]) for key in ("labels", "predictions", "rows")
        )
        margins = np.concatenate([one["margins"] for one in score_inputs]) if "margins" in score_inputs[0] else None
        known = all("confidences" in one for one in score_inputs)  # windows of an earlier version have none
        sure = np.concatenate([one["confidences"] for one in score_inputs]) if known else None
        identity = {"rows": ids.tolist(), "classes": self._class_names}
        return {SCORED_SET: class_rows(self._metrics, labels, predictions, margins, confidences=sure, **identity)}

    def fields(self) -> dict[str, Any]:
        if self.is_number:
            return {"value": float}
        probabilities = dict.fromkeys(self.folder.labels, float)
        if self.folder.problem == SEVERAL_LABELS:
            return {"labels": [str], "probabilities": probabilities}
        return {"label": str, "probability": float, "probabilities": probabilities}

    @property
    def _class_names(self) -> Sequence[str]:
        return () if self.is_number else self.folder.labels

    @property
    def _metrics(self) -> ClassMetrics:
        if self.built_in is not None:
            metrics = self.built_in.class_metrics
            ids = model_ids(self.built_in, self.folder.labels)
            return metrics if ids is None else replace(metrics, positive=ids[metrics.positive])
        return NUMBER_METRICS if self.is_number else own_metrics(self.folder.labels, self.config.data.positive_label)

    def _logits(self, batch: TokenBatch) -> npt.NDArray[np.float32]:
        return self.forward.model(*batch[:4]).float().cpu().numpy()

    def _classes(self, logits: Floats) -> Record:
        several = self.folder.problem == SEVERAL_LABELS
        found = 1 / (1 + np.exp(-logits)) if several else softmax(logits)
        order = np.argsort(-found, kind="stable")
        every = {self.folder.labels[number]: rounded(found[number]) for number in order}
        likely = dict(islice(every.items(), self.config.top_k))
        if several:
            return {
                "labels": [name for name, value in every.items() if value >= LABEL_THRESHOLD],
                "probabilities": likely,
            }
        label, probability = next(iter(likely.items()))
        return {"label": label, "probability": probability, "probabilities": likely}

    def _labels(self, table: RowTable, problems: RowProblems) -> list[int] | list[float]:
        if self.is_number:
            return numbers(table, self.config.data.label, problems)
        names = self.folder.labels

        def unknown(name: str) -> str:
            return f"unknown label: {value_text(name)}; known are {classes_text(names)}{did_you_mean(name, names)}"

        return class_ids(table, self.config.data.label, self._known_labels(), problems, unknown)

    def _known_labels(self) -> dict[str, int]:
        """Return label in the input -> its id in the model."""
        if self.built_in is None:
            return label_ids(self.folder.labels)
        ids = model_ids(self.built_in, self.folder.labels)
        assert ids is not None, "the constructor checked it"
        return dict(zip(self.built_in.labels, ids, strict=True))

    def _score_inputs(self, table: RowTable, logits: Floats) -> dict[str, Any]:
        problems = RowProblems("labels", fix="")
        # `check` has accepted these rows before, so this cannot fail for a file that did not change meanwhile.
        labels = np.array(self._labels(table, problems))
        problems.check()
        first, *rest = (table.columns[column] for column in self.text_columns)
        ids = example_ids(first, rest[0] if rest else None, labels.tolist(), self._class_names)
        if self.is_number:
            numbers_found = logits[:, 0]
            loss = float(((numbers_found - labels) ** 2).sum())
            return {"labels": labels.tolist(), "predictions": numbers_found.tolist(), "loss": loss, "rows": ids}
        likely = np.log(np.maximum([softmax(row)[label] for row, label in zip(logits, labels, strict=True)], TINY))
        found: dict[str, Any] = {
            "labels": labels.tolist(),
            "predictions": logits.argmax(1).tolist(),
            "confidences": top_probabilities(logits).tolist(),
            "loss": float(-likely.sum()),
            "rows": ids,
        }
        if len(self.folder.labels) == 2:
            positive = self._metrics.positive
            found["margins"] = (logits[:, positive] - logits[:, 1 - positive]).tolist()
        return found


def softmax(logits: Floats) -> Floats:
    """Return probabilities, [..., C]."""
    # The maximum is subtracted so that exp cannot overflow.
    found = np.exp(logits - logits.max(-1, keepdims=True))
    return found / found.sum(-1, keepdims=True)


def with_task_columns(config: PredictConfig) -> PredictConfig:
    """Return the configuration with the columns of its built-in task, if any."""
    task = sentence_task(config.task)
    if task is None:
        return config
    columns: dict[str, Any] = {"text": task.text, "pair": task.pair, "label": task.label, "quoting": False}
    if config.evaluate:
        columns["header"] = list(task.files[task.dev_splits[0]].header or ()) or None
    return config.model_copy(update={"data": config.data.model_copy(update=columns)})


class MaskPredictor(Predictor):
    """Predictor of words for [MASK]; with `evaluate`, scores of a language model on randomly masked words."""

    def check(self, table: RowTable, problems: RowProblems) -> None:
        super().check(table, problems)
        if self.config.evaluate:
            return
        for row in range(len(table)):
            values = [table.columns[column][row] for column in self.text_columns]
            if all(isinstance(value, str) and MASK not in value for value in values):
                problems.add(table.where(row), f"no {MASK} in the text")

    def predict(self, table: RowTable, first: int) -> Predicted:
        sequences, cut = self.tokens(table)
        if self.config.evaluate:
            ids = row_ids(*([str(text) for text in table.columns[name]] for name in self.text_columns))
            return self._evaluated(sequences, first, cut, ids)
        mask = self.tokenizer.token_to_id(MASK)
        places = [np.flatnonzero(one.ids == mask) for one in sequences]
        found = self.forward.map(sequences, lambda batch: self._top(batch, [places[row] for row in batch.rows]))
        return Predicted([{"masks": one} for one in found], {}, cut)

    def scores(self, score_inputs: Sequence[dict[str, Any]]) -> dict[str, float]:
        loss, right, masked = (sum(one[key] for one in score_inputs) for key in ("loss", "right", "masked"))
        # exp overflows a float above 709; a row that is too short for a mask counts nothing
        mean = loss / max(masked, 1)
        return {"mlm_loss": mean, "perplexity": math.exp(min(mean, 700.0)), "mlm_accuracy": right / max(masked, 1)}

    def score_details(self, score_inputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        (rows,) = self.scored_rows(score_inputs).values()
        found = rows.resamples()
        found["perplexity"] = np.exp(np.minimum(found["mlm_loss"], 700.0))
        return {"intervals": intervals(found)}

    def scored_rows(self, score_inputs: Sequence[dict[str, Any]]) -> dict[str, ScoredRows]:
        columns = {key: np.concatenate([one["rows"][key] for one in score_inputs]) for key in MASK_COLUMNS}
        metrics = {
            name: {"kind": "ratio", "part": part, "wholes": ["masked"]}
            for name, part in (("mlm_loss", "loss"), ("mlm_accuracy", "right"))
        }
        ids = [one for some in score_inputs for one in some["ids"]]
        return {SCORED_SET: ScoredRows(columns, metrics, ids)}

    def fields(self) -> dict[str, Any]:
        if self.config.evaluate:
            return {"loss": float, "right": int, "masked": int}
        return {"masks": [[{"token": str, "probability": float}]]}

    def _top(self, batch: TokenBatch, places: Sequence[Ints]) -> list[list[list[Record]]]:
        probabilities = torch.softmax(self._logits(batch, places), -1)
        best = probabilities.topk(min(self.config.top_k or DEFAULT_TOP_K, probabilities.shape[-1]))
        records = iter(
            [
                {"token": self.tokenizer.id_to_token(token), "probability": rounded(probability)}
                for token, probability in zip(*mask, strict=True)
            ]
            for mask in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        )
        return [[next(records) for _ in some] for some in places]

    def _evaluated(self, sequences: Sequence[Tokens], first: int, cut: int, ids: Sequence[str]) -> Predicted:
        masked = [self._masked(one, number) for number, one in enumerate(sequences, start=first)]
        hidden = [Tokens(ids, one.second) for (ids, _), one in zip(masked, sequences, strict=True)]
        wanted = [(places, one.ids[places]) for (_, places), one in zip(masked, sequences, strict=True)]
        found = self.forward.map(hidden, lambda batch: self._losses(batch, [wanted[row] for row in batch.rows]))
        columns = {key: [float(one[key]) for one in found] for key in MASK_COLUMNS}
        sums = {key: float(sum(values)) for key, values in columns.items()}
        return Predicted(found, {**sums, "rows": columns, "ids": ids}, cut)

    def _masked(self, one: Tokens, number: int) -> tuple[Ints, Ints]:
        """Return the ids of a sequence with some tokens masked, and the masked positions."""
        # Random numbers depend on the seed and the row's index only, so scores do not depend on windows or processes.
        mask = self.tokenizer.token_to_id(MASK)
        assert mask is not None, "read_folder checked it"
        candidates = (one.ids != self.cls) & (one.ids != self.sep)
        found = mask_tokens(
            one.ids[None],
            candidates[None],
            np.array([len(one.ids)]),
            keys(self.config.masking.seed, MASKING_STREAM, number),
            MaskingRule(self.config.masking.probability, len(one.ids), mask, self.tokenizer.get_vocab_size()),
        )
        return found.input_ids[0], found.positions[0][found.labels[0] >= 0]

    def _losses(self, batch: TokenBatch, wanted: Sequence[tuple[Ints, Ints]]) -> list[Record]:
        logits = self._logits(batch, [places for places, _ in wanted])
        labels = torch.from_numpy(np.concatenate([ids for _, ids in wanted])).to(logits.device)
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        right = is_correct(logits, labels)
        sizes = [len(ids) for _, ids in wanted]
        each = zip(losses.cpu().split(sizes), right.cpu().split(sizes), sizes, strict=True)
        return [
            {"loss": rounded(float(loss.double().sum())), "right": int(hits.sum()), "masked": size}
            for loss, hits, size in each
        ]

    def _logits(self, batch: TokenBatch, places: Sequence[Ints]) -> Tensor:
        """Return fp32 logits of masked positions, [masks of all sequences, pieces]."""
        # Only these positions go through the decoder, and padding rows of the table are dropped: they are no pieces.
        model = self.forward.model
        assert isinstance(model, BertForPreTraining), "only this class predicts masks"
        hidden = model.bert(*batch[:4])
        if batch.packing is None:
            begins = np.arange(len(places)) * batch.input_ids.shape[1]
            hidden = hidden.flatten(0, 1)
        else:
            begins = batch.packing.places[:, 0].cpu().numpy()
        index = np.concatenate([begin + some for begin, some in zip(begins, places, strict=True)]).astype(np.int64)
        picked = hidden.index_select(0, torch.from_numpy(index).to(hidden.device))
        logits: Tensor = model.cls.predictions(picked, model.bert.embeddings.word_embeddings.weight)
        return logits[:, : self.tokenizer.get_vocab_size()].float()


class VectorPredictor(Predictor):
    """Predictor of embeddings: the mean over the tokens of a text, or the vector of [CLS].

    Raises:
        SpecError: the configuration scores vectors.
    """

    def __init__(self, config: PredictConfig, folder: Folder, tokenizer: Tokenizer, forward: Forward) -> None:
        super().__init__(config, folder, tokenizer, forward)
        if config.evaluate:
            raise SpecError(f"cannot score embeddings: {folder.path} has no head", fix="--set evaluate=false")

    @property
    def is_number(self) -> bool:
        return True

    def predict(self, table: RowTable, first: int) -> Predicted:
        sequences, cut = self.tokens(table)
        found = self.forward.map(sequences, self._vectors)
        return Predicted([{"embedding": vector} for vector in found], {}, cut)

    def answer(self, record: Record) -> Any:
        return record["embedding"]

    def fields(self) -> dict[str, Any]:
        return {"embedding": (np.float32, self.folder.shape.hidden_size)}

    def _vectors(self, batch: TokenBatch) -> Vectors:
        """Return fp32 vectors, [B, H]."""
        wanted, packing = self.config.embeddings, batch.packing
        hidden = self.forward.model.bert(*batch[:4])
        if wanted.pooling == "cls":
            pooled = (hidden[:, 0] if packing is None else packing.first(hidden)).float()
        else:
            laid_out = hidden if packing is None else packing.lay_out(hidden)
            # Padding must not enter the mean: embeddings would depend on the other texts of the batch.
            real = length_mask(batch.lengths, laid_out.shape[1])[..., None]
            pooled = laid_out.float().masked_fill(~real, 0).sum(1) / batch.lengths[:, None]
        if wanted.normalise:
            pooled = torch.nn.functional.normalize(pooled)
        return pooled.cpu().numpy()
