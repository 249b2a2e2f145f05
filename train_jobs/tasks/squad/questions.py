"""Answers as spans of a text, or that there is none: SQuAD 1.1 and 2.0 as the engine trains them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from train_jobs.config import ModelConfig
from train_jobs.config.finetune import EvaluationConfig, FinetuneConfig
from train_jobs.config.tasks import SQUAD_2
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert.task_heads import BertForQuestionAnswering, Finetuned, span_loss
from train_jobs.tasks.finetuning import Conclusion, Finetuning, Floats
from train_jobs.tasks.sequences import IGNORED, Batch, Encoded, Targets
from train_jobs.tasks.squad.official import read_sets
from train_jobs.tasks.squad.reading import Squad
from train_jobs.tasks.squad.scoring import score_v1, score_v2
from train_jobs.tasks.squad.spans import Prediction, predict, prediction_files
from train_jobs.tasks.squad.windows import Window, make_windows


@dataclass(frozen=True)
class Asked:
    """The questions of a file, and the sequences that they become."""

    squad: Squad
    windows: list[Window]
    rows: Encoded
    """The windows, with the first and the last token of the answer as targets."""

    @classmethod
    def of(cls, squad: Squad, config: FinetuneConfig, tokenizer: Tokenizer) -> Asked:
        """Cuts the contexts into windows."""
        windows = make_windows(
            squad.questions,
            tokenizer,
            max_length=config.max_length,
            stride=config.data.doc_stride,
            max_query_length=config.data.max_query_length,
        )
        rows = Encoded(
            [window.input_ids for window in windows],
            np.array([window.first for window in windows], np.int64),
            np.array([(window.start, window.end) for window in windows], np.int64),
        )
        return cls(squad, windows, rows)


@dataclass(frozen=True)
class Questions:
    """A `train_jobs.tasks.registry.TokenizedTask`: questions, each with the text that may answer it."""

    config: FinetuneConfig
    sets: dict[str, Asked]
    """train, dev, and test if there is one."""
    labels: tuple[str, ...] = ()

    @classmethod
    def read(cls, config: FinetuneConfig, tokenizer: Tokenizer) -> Questions:
        """Everything that training, evaluation and prediction need."""
        return cls(config, {name: Asked.of(squad, config, tokenizer) for name, squad in read_sets(config).items()})

    @property
    def sha256(self) -> str:
        """Of what training sees."""
        return self.sets["train"].rows.sha256

    @property
    def notes(self) -> list[str]:
        """What the user should know of the files."""
        return [note for asked in self.sets.values() for note in asked.squad.notes]

    def describe(self) -> list[str]:
        """Task and rows, in a line each."""
        version_2 = self.config.task == SQUAD_2
        what = "the answer in a text, or that it has none" if version_2 else "the answer in a text"
        counts = (
            f"{name} {len(asked.squad.questions):,} questions in {len(asked.rows):,} sequences"
            for name, asked in self.sets.items()
        )
        return [
            f"task       {self.config.task}: {what}; scored by F1{' at the best threshold' if version_2 else ''}",
            f"rows       {', '.join(counts)} of up to {self.config.max_length} tokens",
        ]

    def model(self, shape: ModelConfig, rows: int) -> Finetuned:
        """A model with its head, as it is made."""
        return BertForQuestionAnswering(shape, rows)

    def training(self, model: Finetuned, *, seed: int, world: World) -> QuestionAnswering:
        """What the engine trains."""
        return QuestionAnswering(
            *(model, self.sets["train"].rows, self.sets["dev"], self.sets.get("test")),
            version_2=self.config.task == SQUAD_2,
            evaluation=self.config.evaluation,
            config=self.config.train,
            seed=seed,
            max_length=self.config.max_length,
            world=world,
        )


class QuestionAnswering(Finetuning):
    """First and last token of an answer; both the [CLS] where a sequence has none.

    Args:
        dev: questions that score it.
        test: questions to predict.
        version_2: there may be no answer.
        evaluation: how many answers are considered, and how long they may be.
        more: as of `Finetuning`.
    """

    def __init__(
        self,
        model: Finetuned,
        train: Encoded,
        dev: Asked,
        test: Asked | None,
        *,
        version_2: bool,
        evaluation: EvaluationConfig,
        **more: Any,
    ) -> None:
        super().__init__(model, train, **more)
        self._dev, self._test, self._version_2, self._evaluation = dev, test, version_2, evaluation

    def counts(self, batch: Batch) -> list[float]:
        """Sequences that count."""
        return [float((batch.targets[:, 0] != IGNORED).sum())]

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """Loss, and the official scores of the dev set in percent, as `scores` has them."""
        return self._measure(micro_batch_size)[0]

    def conclude(self, micro_batch_size: int) -> Conclusion:
        """Predictions in the form of the official script; of 2.0 with the threshold that is best for F1 on dev."""
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
        return Conclusion(metrics, files, {} if threshold is None else {"null_threshold": threshold})

    def _measure(self, micro_batch_size: int) -> tuple[dict[str, float], list[Prediction]]:
        logits = self._span_logits(self._dev, micro_batch_size)
        found = self._predict(self._dev, logits)
        loss = mean_span_loss(self._dev.rows, logits)
        return {"loss": loss, **scores(self._dev.squad, found, version_2=self._version_2)}, found

    def _span_logits(self, asked: Asked, micro_batch_size: int) -> Floats:
        return self._token_logits(asked.rows, 2, micro_batch_size)

    def _predict(self, asked: Asked, logits: Floats) -> list[Prediction]:
        """The answer to each question, in their order."""
        each = np.split(logits, asked.rows.begins[1:])
        found = []
        for question, group in groupby(zip(asked.windows, each, strict=True), lambda pair: pair[0].question):
            windows, outputs = zip(*group, strict=True)
            found.append(
                predict(
                    asked.squad.questions[question],
                    windows,
                    [(one[:, 0], one[:, 1]) for one in outputs],
                    version_2=self._version_2,
                    n_best=self._evaluation.n_best,
                    max_answer_length=self._evaluation.max_answer_length,
                )
            )
        return found

    def _loss_sum(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        targets, lengths = (torch.from_numpy(array).to(logits.device) for array in (batch.targets, batch.lengths))
        return span_loss(logits, targets[:, 0], targets[:, 1], lengths)

    def _blank_targets(self, shape: tuple[int, int]) -> Targets:
        return np.zeros((shape[0], 2), np.int64)


def mean_span_loss(rows: Encoded, logits: Floats) -> float:
    """Mean over the rows of what `span_loss` sums up.

    Args:
        rows: with their targets.
        logits: [tokens of all rows, 2].
    """
    normalisers = np.logaddexp.reduceat(logits.astype(np.float64), rows.begins, axis=0)
    chosen = np.take_along_axis(logits, rows.begins[:, None] + rows.targets.astype(np.int64), axis=0)
    return float((normalisers - chosen).mean())


def scores(squad: Squad, predictions: Sequence[Prediction], *, version_2: bool) -> dict[str, float]:
    """The official scores in percent, and score and collapsed.

    Returns:
        Of 1.1 exact_match and f1, which is the score; collapsed: no answer is right. Of 2.0 exact and f1 at a threshold
        of 0, HasAns_ and NoAns_ the same of questions with and without an answer, best_exact and best_f1 with the
        thresholds at which they are reached; best_f1 is the score; collapsed: it is no better than never to answer.
    """
    answers = {found.id: found.best for found in predictions}
    if not version_2:
        found = score_v1(squad.questions, answers)
        return {**found, "score": found["f1"], "collapsed": float(found["exact_match"] == 0)}
    null_odds = {found.id: found.null_odds for found in predictions}
    found = score_v2(squad.questions, answers, null_odds, threshold=0.0)
    silent = 100 * sum(not question.answers for question in squad.questions) / len(squad.questions)
    kept = {name: value for name, value in found.items() if not name.endswith("total")}
    return {**kept, "score": found["best_f1"], "collapsed": float(found["best_f1"] <= silent)}
