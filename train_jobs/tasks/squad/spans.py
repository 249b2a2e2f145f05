"""Questions and contexts as windows of tokens, and answers from their logits.

The rules are those of google-research/bert, run_squad.py. A sequence is [CLS] question [SEP] window [SEP]; windows of a
long context overlap. A token in several windows is predicted in the one where it has the most context on both sides. A
window without the complete answer has its [CLS] as target. Unlike there, an answer is a substring of the context, so
that no tokens have to be aligned with text again, and only valid positions are candidates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from train_jobs.config.tasks import SPANS_SPECIAL_TOKENS
from train_jobs.readers.squad_data import Question
from train_jobs.tasks.sequences import Ints, special_ids

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class ContextWindow:
    """One sequence of a question."""

    question: int
    """Number of the question."""
    input_ids: Ints
    """[length]"""
    first: int
    """Position of the context's first token, after [CLS], question and [SEP]."""
    offsets: Ints
    """[tokens of context, 2] characters of the context that each token covers."""
    is_best: npt.NDArray[np.bool_]
    """[tokens of context] whether no other window has more context around the token."""
    start: int
    """Position of the answer's first token; 0, which is [CLS], without an answer in this window."""
    end: int
    """Position of its last token."""

    @property
    def token_type_ids(self) -> Ints:
        """[length] 1 from the context on."""
        return (np.arange(len(self.input_ids)) >= self.first).astype(np.int64)


def make_windows(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    stride: int,
    max_query_length: int,
) -> list[ContextWindow]:
    """Return all windows of all questions, in their order.

    Args:
        questions: questions; the first answer, if any, is the target.
        tokenizer: tokenizer of the model.
        max_length: maximum tokens of a sequence, special tokens included; more than `max_query_length` + 3.
        stride: tokens from the start of a window to that of the next one (doc_stride of run_squad.py).
        max_query_length: maximum tokens of a question; the rest is truncated.
    """
    assert max_length > max_query_length + SPANS_SPECIAL_TOKENS, "the configuration leaves room for the context"
    cls, sep = special_ids(tokenizer)
    contexts = _encoded(tokenizer, [question.context for question in questions])
    queries = _encoded(tokenizer, [question.text for question in questions])
    found: list[ContextWindow] = []
    for number, question in enumerate(questions):
        query = [cls, *queries[question.text].ids[:max_query_length], sep]
        spans = window_spans(len(contexts[question.context]), max_length - len(query) - 1, stride)
        found.extend(_context_windows(number, question, contexts[question.context], query, spans))
    return found


def _context_windows(
    number: int, question: Question, context: Encoding, query: Sequence[int], spans: Sequence[tuple[int, int]]
) -> Iterator[ContextWindow]:
    """Yield the windows of one question; `query` is [CLS] question [SEP]."""
    ids, offsets = np.array(context.ids, np.int64), np.array(context.offsets, np.int64).reshape(-1, 2)
    answer = answer_tokens(question, offsets)
    best, first = best_window(len(ids), spans), len(query)
    for place, (begin, end) in enumerate(spans):
        # Partly visible answers count as none: a truncated target would teach the model wrong ends.
        inside = answer is not None and begin <= answer[0] and answer[1] < end
        yield ContextWindow(
            question=number,
            input_ids=np.concatenate([query, ids[begin:end], query[-1:]]).astype(np.int64),
            first=first,
            offsets=offsets[begin:end],
            is_best=best[begin:end] == place,
            start=first + answer[0] - begin if inside and answer else 0,
            end=first + answer[1] - begin if inside and answer else 0,
        )


def window_spans(tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Return the first token and the one after the last of each window; one window if the context fits.

    Args:
        tokens: tokens of the context.
        room: tokens of a window.
        stride: tokens between the starts of two windows.
    """
    spans, begin = [], 0
    while True:
        end = min(begin + room, tokens)
        spans.append((begin, end))
        if end == tokens:
            return spans
        begin += min(stride, room)  # a larger stride would skip tokens between two windows


def best_window(tokens: int, spans: Sequence[tuple[int, int]]) -> Ints:
    """Return the number of the window in which each token has the most context on its shorter side, [tokens]."""
    # run_squad.py, _check_is_max_context. Its 0.01 x length only decides ties, for the longer window; `>` then prefers
    # the first one.
    best, scores = np.zeros(tokens, np.int64), np.full(tokens, -1.0)
    for number, (begin, end) in enumerate(spans):
        place = np.arange(end - begin)
        score = np.minimum(place, end - begin - 1 - place) + 0.01 * (end - begin)
        better = score > scores[begin:end]
        best[begin:end][better] = number
        scores[begin:end][better] = score[better]
    return best


def answer_tokens(question: Question, offsets: Ints) -> tuple[int, int] | None:
    """Return the first and the last token of the first answer; None without an answer, or if no token covers it."""
    if not question.answers:
        return None
    # Overlap instead of equality: an answer may begin or end inside a token.
    text, start = question.answers[0]
    covered = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < start + len(text)))
    return (int(covered[0]), int(covered[-1])) if len(covered) else None


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, Encoding]:
    """Encode each different text once: a context has several questions."""
    different = list(dict.fromkeys(texts))
    return dict(zip(different, tokenizer.encode_batch(different, add_special_tokens=False), strict=True))


class AnswerSpan(NamedTuple):
    """Substring of a context that may be the answer."""

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
    """A model's answer to a question."""

    id: str
    best: str
    """The best answer that is not empty."""
    null_odds: float
    """Score of no answer minus that of the best answer; 0 if every question has an answer."""
    candidates: list[dict[str, str | float]]
    """The n best answers, including `""` in SQuAD 2.0: text, probability, start_logit, end_logit."""
    begin: int | None = None
    """First character of the best answer in its context; None without one."""

    def text(self, threshold: float | None) -> str:
        """Return the answer, or `""` if `null_odds` exceeds the threshold. None: every question has an answer."""
        return "" if threshold is not None and self.null_odds > threshold else self.best


def best_spans(
    window: ContextWindow, start: Floats, end: Floats, *, n_best: int, max_answer_length: int
) -> list[AnswerSpan]:
    """Return the spans of a window between its n best first and n best last tokens, best first.

    Args:
        window: the sequence.
        start: [length] logits of the first token.
        end: [length] logits of the last token.
        n_best: number of first and of last tokens to combine.
        max_answer_length: maximum tokens of an answer.
    """
    # [CLS], the question and both [SEP] are left out before the n best are chosen. run_squad.py chooses first and
    # rejects them after, so it may be left with fewer candidates.
    context = slice(window.first, window.first + len(window.offsets))
    starts, ends = start[context], end[context]
    # Only the first token must have its best context here, as in run_squad.py: otherwise an answer that crosses the
    # border between two windows would have no window at all.
    firsts = np.flatnonzero(window.is_best)
    firsts = firsts[np.argsort(-starts[firsts], kind="stable")[:n_best]]
    lasts = np.argsort(-ends, kind="stable")[:n_best]
    length = lasts[None, :] - firsts[:, None] + 1
    pairs = np.argwhere((length > 0) & (length <= max_answer_length))
    spans = [
        AnswerSpan(
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
    windows: Sequence[ContextWindow],
    logits: Sequence[tuple[Floats, Floats]],
    *,
    version_2: bool,
    n_best: int = 20,
    max_answer_length: int = 30,
) -> Prediction:
    """Return the answer to one question.

    Args:
        question: the question.
        windows: all of its windows.
        logits: for each window the logits of the first and of the last token, [length] each.
        version_2: whether a question may have no answer (SQuAD 2.0).
        n_best: maximum number of candidates.
        max_answer_length: maximum tokens of an answer.
    """
    spans = [
        span
        for window, (start, end) in zip(windows, logits, strict=True)
        for span in best_spans(window, start, end, n_best=n_best, max_answer_length=max_answer_length)
    ]
    # By text: overlapping windows find the same answer several times, and duplicates would split its probability.
    chosen: dict[str, AnswerSpan] = {}
    for span in sorted(spans, key=lambda span: -span.score):
        if len(chosen) == n_best:
            break
        chosen.setdefault(question.context[span.begin : span.end], span)
    best = next(iter(chosen), "")
    begin = chosen[best].begin if chosen else None
    if not version_2:
        return Prediction(question.id, best, 0.0, _candidates(chosen), begin)
    # As run_squad.py: the window in which "no answer" is least likely decides for the question, since one window with
    # an answer is enough.
    null = min(AnswerSpan(float(start[0] + end[0]), float(start[0]), float(end[0]), 0, 0) for start, end in logits)
    null_odds = null.score - (chosen[best].score if chosen else 0.0)
    return Prediction(question.id, best, null_odds, _candidates({**chosen, "": null}), begin)


def prediction_files(predictions: Sequence[Prediction], *, threshold: float | None) -> dict[str, str]:
    """Return the files of a set of predictions, in the format of run_squad.py and of the official evaluation scripts.

    Args:
        predictions: predictions of all questions.
        threshold: odds above which there is no answer. None: every question has an answer, and there is no
            null_odds.json.

    Returns:
        File name -> JSON text.
    """
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


def _candidates(chosen: dict[str, AnswerSpan]) -> list[dict[str, str | float]]:
    if not chosen:
        return [{"text": "", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]
    chosen = dict(sorted(chosen.items(), key=lambda pair: -pair[1].score))
    scores = np.array([span.score for span in chosen.values()])
    weights = np.exp(scores - scores[0])  # the largest is subtracted, so that exp cannot overflow
    probabilities = (weights / weights.sum()).tolist()
    return [
        {"text": text, "probability": probability, "start_logit": span.start_logit, "end_logit": span.end_logit}
        for (text, span), probability in zip(chosen.items(), probabilities, strict=True)
    ]
