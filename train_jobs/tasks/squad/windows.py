"""Questions and contexts as sequences: a long context in overlapping windows, each with the question before it.

As Google's run_squad.py has it: [CLS] question [SEP] window [SEP]; a token that several windows have is predicted
where it has the most context on both sides; an answer that a window does not have whole is none there, which is its
[CLS].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from train_jobs.config import SpecError
from train_jobs.tasks.squad.reading import Question

Ints = npt.NDArray[np.int64]
SPECIAL_TOKENS = 3  # [CLS] and two [SEP]


@dataclass(frozen=True)
class Window:
    """One sequence."""

    question: int
    """Number of the question."""
    input_ids: Ints
    """[length]"""
    first: int
    """Position of the context's first token, behind [CLS], question and [SEP]."""
    offsets: Ints
    """[tokens of context, 2] characters of the context that each token stands for."""
    is_best: npt.NDArray[np.bool_]
    """[tokens of context] no other window has more context around this token."""
    start: int
    """Position of the answer's first token; 0, which is [CLS], if there is none in here."""
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
) -> list[Window]:
    """All windows of all questions, in their order.

    Args:
        questions: whose first answer, if any, is the one to learn.
        tokenizer: gives tokens with their characters.
        max_length: tokens of a sequence.
        stride: tokens from the beginning of a window to that of the next; never more than a window has.
        max_query_length: tokens of a question; the rest of it is cut off.

    Raises:
        SpecError: a question leaves no room for context.
    """
    cls, sep = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    room = max_length - max_query_length - SPECIAL_TOKENS
    if room < 1:
        raise SpecError(
            f"data.max_length {max_length} leaves no room for the context",
            facts={"need": f"more than max_query_length {max_query_length} + {SPECIAL_TOKENS}"},
            fix=f"--set data.max_length={max_query_length + SPECIAL_TOKENS + 256}",
        )
    contexts = _encoded(tokenizer, [question.context for question in questions])
    queries = _encoded(tokenizer, [question.text for question in questions])
    found = []
    for number, question in enumerate(questions):
        query = queries[question.text].ids[:max_query_length]
        context = contexts[question.context]
        ids, offsets = np.array(context.ids, np.int64), np.array(context.offsets, np.int64).reshape(-1, 2)
        answer = answer_tokens(question, offsets)
        spans = window_spans(len(ids), max_length - len(query) - SPECIAL_TOKENS, stride)
        best = best_window(len(ids), spans)
        for place, (begin, end) in enumerate(spans):
            first = len(query) + 2
            inside = answer is not None and begin <= answer[0] and answer[1] < end
            found.append(
                Window(
                    question=number,
                    input_ids=np.concatenate([[cls], query, [sep], ids[begin:end], [sep]]).astype(np.int64),
                    first=first,
                    offsets=offsets[begin:end],
                    is_best=best[begin:end] == place,
                    start=first + answer[0] - begin if inside and answer else 0,
                    end=first + answer[1] - begin if inside and answer else 0,
                )
            )
    return found


def window_spans(tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """First token and the one after the last of each window over a context; one window if it fits into that."""
    spans, begin = [], 0
    while True:
        end = min(begin + room, tokens)
        spans.append((begin, end))
        if end == tokens:
            return spans
        begin += min(stride, room)


def best_window(tokens: int, spans: Sequence[tuple[int, int]]) -> Ints:
    """[tokens] the window in which each token has the most context on its poorer side; of equal ones the longest,
    then the first."""
    best, scores = np.zeros(tokens, np.int64), np.full(tokens, -1.0)
    for number, (begin, end) in enumerate(spans):
        place = np.arange(end - begin)
        score = np.minimum(place, end - begin - 1 - place) + 0.01 * (end - begin)
        better = score > scores[begin:end]
        best[begin:end][better] = number
        scores[begin:end][better] = score[better]
    return best


def answer_tokens(question: Question, offsets: Ints) -> tuple[int, int] | None:
    """First and last token of the context that cover the first answer; None if there is none, or it has no token."""
    if not question.answers:
        return None
    text, start = question.answers[0]
    covered = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < start + len(text)))
    return (int(covered[0]), int(covered[-1])) if len(covered) else None


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, Encoding]:
    """Each different text once: a context has several questions."""
    different = list(dict.fromkeys(texts))
    return dict(zip(different, tokenizer.encode_batch(different, add_special_tokens=False), strict=True))
