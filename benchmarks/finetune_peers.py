"""Our fine-tuning job and transformers.Trainer, each on one contest, and their results."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.finetune_setup import Contest
from benchmarks.finetune_trainer import make_trainer
from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.finetune import finetune
from train_jobs.tasks.entities.conll import entity_scores
from train_jobs.tasks.entities.tagging import Words
from train_jobs.tasks.sentences.classification import Texts
from train_jobs.tasks.sentences.glue import HIGHEST_SIMILARITY
from train_jobs.tasks.sentences.metrics import scores
from train_jobs.tasks.sequences import IGNORED
from train_jobs.tasks.squad.questions import Questions
from train_jobs.tasks.squad.scoring import score_v1
from train_jobs.tasks.squad.spans import predict


@dataclass(frozen=True)
class Outcome:
    """Result of a contestant's training."""

    losses: list[float]
    """Of each step."""
    predictions: list[Any]
    """Of dev: classes, or numbers from 0 to 5, answers, tags."""
    score: float
    """Of dev after the last step."""
    seconds: float


def ours(contest: Contest) -> Outcome:
    """Fine-tune with our job, as a user starts it."""
    started = time.perf_counter()
    place = Path(tempfile.mkdtemp())
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            finetune(contest.config, output=place, device=contest.device)
        reports = [report["metrics"] for _, report in read_reports(place / "metrics.jsonl")]
        predictions = _written(contest, place / "predictions")
    finally:
        shutil.rmtree(place)
    return Outcome(
        losses=[found["train_loss"] for found in reports if "train_loss" in found],
        predictions=predictions,
        score=[found["validation_score"] for found in reports if "validation_score" in found][-1],
        seconds=time.perf_counter() - started,
    )


def _written(contest: Contest, folder: Path) -> list[Any]:
    """Return the predictions of dev that our job wrote."""
    match contest.rows:
        case Texts(data=data):
            (table,) = folder.glob("*.tsv")
            values = [line.split("\t")[1] for line in table.read_text().splitlines()[1:]]
            labels = data.task.labels
            return [labels.index(value) for value in values] if labels else [float(value) for value in values]
        case Questions(sets=sets):
            answers = json.loads((folder / "dev" / "predictions.json").read_text())
            return [answers[question.id] for question in sets["dev"].squad.questions]
        case _:
            return [line.split(" ")[-1] for line in (folder / "dev.txt").read_text().splitlines() if line]


def trainer(contest: Contest, order: Sequence[int] | None = None) -> Outcome:
    """Fine-tune with transformers.Trainer, dynamic padding.

    Args:
        contest: settings.
        order: of the rows of one epoch, and with it our job's learning rates. None: both are its own.
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        it, dev = make_trainer(contest, place)
        it.order = order
        it.train()
        outputs = it.predict(dev)
    predictions, score = _scored(contest, outputs)
    return Outcome([float(loss) for loss in it.losses], predictions, score, time.perf_counter() - started)


def _scored(contest: Contest, outputs: Any) -> tuple[list[Any], float]:
    """Return predictions and score of dev from the outputs of Trainer, by our own metrics."""
    match contest.rows:
        case Texts(data=data):
            logits = np.asarray(outputs.predictions, np.float64)
            found = logits.reshape(-1) if data.task.regression else logits.argmax(1)
            wanted = next(iter(data.dev.values())).labels
            assert wanted is not None
            shown = np.clip(found, 0, HIGHEST_SIMILARITY) if data.task.regression else found
            return shown.tolist(), scores(data.task.metrics, wanted, found)["score"]
        case Questions(sets=sets, config=config):
            squad, windows, limits = sets["dev"].squad, sets["dev"].windows, config.evaluation
            how = {"version_2": False, "n_best": limits.n_best, "max_answer_length": limits.max_answer_length}
            answers = {
                question.id: predict(question, [window], [pair], **how).best
                for question, window, pair in zip(
                    squad.questions, windows, zip(*outputs.predictions, strict=True), strict=True
                )
            }
            return list(answers.values()), score_v1(squad.questions, answers)["f1"]
        case Words(sets=sets, labels=labels):
            gold = sets["dev"].sentences.tags
            tags = iter(np.array(labels)[outputs.predictions[outputs.label_ids != IGNORED].argmax(1)].tolist())
            each = [[next(tags) for _ in sentence] for sentence in gold]
            return [tag for sentence in each for tag in sentence], entity_scores(gold, each)["score"]
        case other:
            raise AssertionError(other)
