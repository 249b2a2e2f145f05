"""From logits to answers: the n best spans over all windows of a question, and how much better it is to say nothing.

The rules are those of Google's run_squad.py, but an answer is a stretch of the context's own characters, so nothing
has to be aligned again, and the best places are looked for among those that may be one, not among all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from train_jobs.artifacts.files import write_text
from train_jobs.tasks.squad.reading import Question
from train_jobs.tasks.squad.windows import Window

Floats = npt.NDArray[np.floating]


class Span(NamedTuple):
    """A stretch of a context that may be the answer."""

    score: float
    """Sum of the two logits."""
    start_logit: float
    end_logit: float
    begin: int
    """First character."""
    end: int
    """The character after the last."""


@dataclass(frozen=True)
class Prediction:
    """What a model answers to a question."""

    id: str
    best: str
    """The best answer that is one."""
    null_odds: float
    """Score of no answer less that of the best one; 0 where the data has no such questions."""
    candidates: list[dict[str, str | float]]
    """The n best, `""` among them where that may be: text, probability, start_logit, end_logit."""
    begin: int | None = None
    """First character of the best answer in its context; None if there is none."""

    def text(self, threshold: float | None) -> str:
        """The answer, or `""` if the odds for none are above the threshold; None: there always is one."""
        return "" if threshold is not None and self.null_odds > threshold else self.best


def best_spans(window: Window, start: Floats, end: Floats, *, n_best: int, max_answer_length: int) -> list[Span]:
    """The spans of a window that its n best first and n best last tokens make, best first.

    Args:
        window: the sequence.
        start: [length] logits of each position to be the first.
        end: [length] logits of each to be the last.
        n_best: how many of each.
        max_answer_length: in tokens.
    """
    context = slice(window.first, window.first + len(window.offsets))
    starts, ends = start[context], end[context]
    firsts = np.flatnonzero(window.is_best)
    firsts = firsts[np.argsort(-starts[firsts], kind="stable")[:n_best]]
    lasts = np.argsort(-ends, kind="stable")[:n_best]
    length = lasts[None, :] - firsts[:, None] + 1
    pairs = np.argwhere((length > 0) & (length <= max_answer_length))
    spans = [
        Span(
            float(starts[first]) + float(ends[last]),
            float(starts[first]),
            float(ends[last]),
            int(window.offsets[first, 0]),
            int(window.offsets[last, 1]),
        )
        for first, last in zip(firsts[pairs[:, 0]], lasts[pairs[:, 1]], strict=True)
    ]
    return sorted(spans, key=lambda span: -span.score)


def predict(
    question: Question,
    windows: Sequence[Window],
    logits: Sequence[tuple[Floats, Floats]],
    *,
    version_2: bool,
    n_best: int = 20,
    max_answer_length: int = 30,
) -> Prediction:
    """The answer to one question.

    Args:
        question: the question.
        windows: all of its windows.
        logits: of each window those of the first and of the last token, [length].
        version_2: there may be no answer.
        n_best: candidates.
        max_answer_length: in tokens.
    """
    spans = [
        span
        for window, (start, end) in zip(windows, logits, strict=True)
        for span in best_spans(window, start, end, n_best=n_best, max_answer_length=max_answer_length)
    ]
    chosen: dict[str, Span] = {}
    for span in sorted(spans, key=lambda span: -span.score):
        if len(chosen) == n_best:
            break
        chosen.setdefault(question.context[span.begin : span.end], span)
    best = next(iter(chosen), "")
    begin = chosen[best].begin if chosen else None
    if not version_2:
        return Prediction(question.id, best, 0.0, _candidates(chosen), begin)
    null = min(Span(float(start[0] + end[0]), float(start[0]), float(end[0]), 0, 0) for start, end in logits)
    null_odds = null.score - (chosen[best].score if chosen else 0.0)
    return Prediction(question.id, best, null_odds, _candidates({**chosen, "": null}), begin)


def prediction_files(predictions: Sequence[Prediction], *, threshold: float | None) -> dict[str, str]:
    """What the official script reads, predictions.json and (where there may be no answer) null_odds.json, and
    nbest_predictions.json: name -> content."""
    documents: dict[str, dict[str, object]] = {
        "predictions": {found.id: found.text(threshold) for found in predictions},
        "nbest_predictions": {found.id: found.candidates for found in predictions},
    }
    if threshold is not None:
        documents["null_odds"] = {found.id: found.null_odds for found in predictions}
    return {
        f"{name}.json": json.dumps(document, ensure_ascii=False, indent=2) + "\n"
        for name, document in documents.items()
    }


def write_predictions(folder: Path, predictions: Sequence[Prediction], *, threshold: float | None) -> None:
    """Writes them."""
    for name, text in prediction_files(predictions, threshold=threshold).items():
        write_text(folder / name, text)


def _candidates(chosen: dict[str, Span]) -> list[dict[str, str | float]]:
    if not chosen:
        return [{"text": "", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]
    chosen = dict(sorted(chosen.items(), key=lambda pair: -pair[1].score))
    scores = np.array([span.score for span in chosen.values()])
    weights = np.exp(scores - scores[0])
    probabilities = (weights / weights.sum()).tolist()
    return [
        {"text": text, "probability": probability, "start_logit": span.start_logit, "end_logit": span.end_logit}
        for (text, span), probability in zip(chosen.items(), probabilities, strict=True)
    ]
