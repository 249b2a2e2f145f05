"""Extractive question answering, SQuAD 1.1 and 2.0, as a task of the training loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from tokenizers import Tokenizer

from train_jobs.config import FinetuneConfig, ModelConfig
from train_jobs.config.tasks import SQUAD_2
from train_jobs.engine.runtime.distributed import World
from train_jobs.evaluation.resampling import intervals
from train_jobs.evaluation.scored_rows import ScoredRows
from train_jobs.models.bert.task_heads import BertForQuestionAnswering, Finetuned, span_loss
from train_jobs.readers.squad_data import Squad, read_sets
from train_jobs.tasks.finetuning import FinalEvaluation, Finetuning, Floats, TokenizedTask
from train_jobs.tasks.sequences import IGNORED, EncodedRows, RowBatch
from train_jobs.tasks.squad.scoring import question_rows, score_v1, score_v2
from train_jobs.tasks.squad.spans import ContextWindow, Prediction, make_windows, predict, prediction_files


@dataclass(frozen=True)
class EncodedQuestions:
    """Questions of a file, and their sequences."""

    squad: Squad
    windows: list[ContextWindow]
    rows: EncodedRows
    """The windows, with the first and the last token of the answer as targets."""

    @classmethod
    def encode(cls, squad: Squad, config: FinetuneConfig, tokenizer: Tokenizer) -> EncodedQuestions:
        """Split the contexts of a file into windows and encode them."""
        windows = make_windows(
            squad.questions,
            tokenizer,
            max_length=config.max_length,
            stride=config.data.doc_stride,
            max_query_length=config.data.max_query_length,
        )
        rows = EncodedRows(
            [window.input_ids for window in windows],
            np.array([window.first for window in windows], np.int64),
            np.array([(window.start, window.end) for window in windows], np.int64),
        )
        return cls(squad, windows, rows)


@dataclass(frozen=True, kw_only=True)
class Questions(TokenizedTask):
    """Questions, each with the text that may answer it."""

    sets: dict[str, EncodedQuestions]
    """train, dev, and test if there is one."""

    @classmethod
    def read(cls, config: FinetuneConfig, tokenizer: Tokenizer) -> Questions:
        """Read and encode the rows; see `train_jobs.tasks.replicates.read_task`."""
        sets = {name: EncodedQuestions.encode(squad, config, tokenizer) for name, squad in read_sets(config).items()}
        notes = [note for encoded in sets.values() for note in encoded.squad.notes]
        return cls(config=config, rows=sets["train"].rows, notes=notes, sets=sets)

    def row_identities(self) -> dict[str, list[str]]:
        return {name: [*map(repr, one.squad.questions)] for name, one in self.sets.items()}

    def describe(self) -> list[str]:
        version_2 = self.config.task == SQUAD_2
        what = "the answer in a text, or that it has none" if version_2 else "the answer in a text"
        counts = (
            f"{name} {len(encoded.squad.questions):,} questions in {len(encoded.rows):,} sequences"
            for name, encoded in self.sets.items()
        )
        return [
            f"task       {self.config.task}: {what}; scored by F1{' at the best threshold' if version_2 else ''}",
            f"rows       {', '.join(counts)} of up to {self.config.max_length} tokens",
        ]

    def model(self, shape: ModelConfig, rows: int) -> Finetuned:
        return BertForQuestionAnswering(shape, rows)

    def training(self, model: Finetuned, *, seed: int, world: World) -> QuestionAnswering:
        return QuestionAnswering(model, self, seed=seed, world=world)


class QuestionAnswering(Finetuning):
    """Training of the first and the last token of answers; both are [CLS] in a sequence without an answer."""

    def __init__(self, model: Finetuned, task: Questions, *, seed: int, world: World) -> None:
        super().__init__(model, task, seed=seed, world=world)
        self._dev, self._test = task.sets["dev"], task.sets.get("test")
        self._version_2, self._evaluation = task.config.task == SQUAD_2, task.config.evaluation

    def counts(self, batch: RowBatch) -> list[float]:
        """Return the number of labelled sequences."""
        return [float((batch.targets[:, 0] != IGNORED).sum())]

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """Return loss, and the official scores of the dev set in percent, see `scores`."""
        return self._measure(micro_batch_size)[0]

    def evaluate_final(self, micro_batch_size: int) -> FinalEvaluation:
        """Return predictions in the format of the official script; for 2.0 with the best threshold for F1 on dev."""
        metrics, found = self._measure(micro_batch_size)
        threshold = metrics["best_f1_thresh"] if self._version_2 else None
        sets = {"dev": found}
        if self._test is not None:
            sets["test"] = self._predict(self._test, self._span_logits(self._test, micro_batch_size))
        files = {
            f"{name}/{file}": text
            for name, predictions in sets.items()
            for file, text in prediction_files(predictions, threshold=threshold).items()
        }
        settings = {} if threshold is None else {"null_threshold": threshold}
        rows = self._scored_rows(found, metrics)
        ends = intervals(rows.resamples())
        ends["score"] = ends["best_f1" if self._version_2 else "f1"]
        return FinalEvaluation(metrics, files, settings, {"intervals": ends}, {"dev": rows})

    def _scored_rows(self, found: Sequence[Prediction], metrics: dict[str, float]) -> ScoredRows:
        """Return the questions behind the official scores of the dev set."""
        answers = {one.id: one.best for one in found}
        if not self._version_2:
            return question_rows(self._dev.squad.questions, answers)
        thresholds = {"exact": 0.0, "f1": 0.0}
        thresholds |= {name: metrics[f"{name}_thresh"] for name in ("best_exact", "best_f1")}
        odds = {one.id: one.null_odds for one in found}
        return question_rows(self._dev.squad.questions, answers, odds, thresholds=thresholds)

    def _measure(self, micro_batch_size: int) -> tuple[dict[str, float], list[Prediction]]:
        logits = self._span_logits(self._dev, micro_batch_size)
        found = self._predict(self._dev, logits)
        loss = mean_span_loss(self._dev.rows, logits)
        return {"loss": loss, **scores(self._dev.squad, found, version_2=self._version_2)}, found

    def _span_logits(self, encoded: EncodedQuestions, micro_batch_size: int) -> Floats:
        return self._token_logits(encoded.rows, 2, micro_batch_size)

    def _predict(self, encoded: EncodedQuestions, logits: Floats) -> list[Prediction]:
        """Return the answer to each question, in their order."""
        each = np.split(logits, encoded.rows.begins[1:])
        found = []
        for question, group in groupby(zip(encoded.windows, each, strict=True), lambda pair: pair[0].question):
            windows, outputs = zip(*group, strict=True)
            found.append(
                predict(
                    encoded.squad.questions[question],
                    windows,
                    [(one[:, 0], one[:, 1]) for one in outputs],
                    version_2=self._version_2,
                    n_best=self._evaluation.n_best,
                    max_answer_length=self._evaluation.max_answer_length,
                )
            )
        return found

    def _loss_sum(self, logits: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return span_loss(logits, targets[:, 0], targets[:, 1], lengths)


def mean_span_loss(rows: EncodedRows, logits: Floats) -> float:
    """Return the mean of `span_loss` over the rows.

    Args:
        rows: rows with their targets.
        logits: [tokens of all rows, 2], of the first and of the last token.
    """
    # On the host, from logits that are gathered anyway: log-sum-exp of each sequence without a padded copy. fp64, since
    # the reduction adds up to 384 terms one after the other.
    normalisers = np.logaddexp.reduceat(logits.astype(np.float64), rows.begins, axis=0)
    chosen = np.take_along_axis(logits, rows.begins[:, None] + rows.targets.astype(np.int64), axis=0)
    return float((normalisers - chosen).mean())


def scores(squad: Squad, predictions: Sequence[Prediction], *, version_2: bool) -> dict[str, float]:
    """Return the official scores in percent, with score and collapsed.

    Returns:
        For 1.1 exact_match and f1, which is the score; collapsed: no answer is correct. For 2.0 exact and f1 at
        threshold 0, the same for questions with and without an answer as HasAns_ and NoAns_, best_exact and best_f1
        with their thresholds; best_f1 is the score; collapsed: it is no better than never answering.
    """
    answers = {found.id: found.best for found in predictions}
    if not version_2:
        found = score_v1(squad.questions, answers)
        return {**found, "score": found["f1"], "collapsed": float(found["exact_match"] == 0)}
    null_odds = {found.id: found.null_odds for found in predictions}
    found = score_v2(squad.questions, answers, null_odds, threshold=0.0)
    never_answering = 100 * sum(not question.answers for question in squad.questions) / len(squad.questions)
    kept = {name: value for name, value in found.items() if not name.endswith("total")}
    return {**kept, "score": found["best_f1"], "collapsed": float(found["best_f1"] <= never_answering)}
