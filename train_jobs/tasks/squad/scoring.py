"""Exact match and F1 of SQuAD, as the official scripts evaluate-v1.1.py and evaluate-v2.0.py compute them.

They differ where a normalised answer is empty: 1.1's F1 of two empty texts is 0, 2.0's is 1. They also differ for a
question without a prediction: 1.1 counts it as wrong, 2.0 leaves it out of the mean (and its script then fails). No
pinned library has both scripts.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from train_jobs.evaluation.resampling import Definition
from train_jobs.evaluation.scored_rows import ScoredRows, row_ids
from train_jobs.readers.squad_data import QUESTION_WORDS, Question, question_word

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Return a text in lower case, without ASCII punctuation, articles and extra white space."""
    # The order is that of the scripts: punctuation first, so that "the-end" becomes one word and keeps its article.
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact(gold: str, answer: str) -> float:
    """Return 1 if both are the same after normalisation, else 0."""
    return float(normalised(gold) == normalised(answer))


def f1(gold: str, answer: str, *, version_2: bool) -> float:
    """Return F1 of the words of a gold answer and a predicted one, counted with multiplicity; 0 to 1.

    Args:
        gold: gold answer.
        answer: predicted answer.
        version_2: whether to score empty answers like evaluate-v2.0.py.
    """
    wanted, found = normalised(gold).split(), normalised(answer).split()
    if version_2 and not (wanted and found):
        return float(wanted == found)
    same = sum((Counter(wanted) & Counter(found)).values())
    if not same:
        return 0.0
    precision, recall = same / len(found), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def question_scores(
    questions: Sequence[Question], answers: Mapping[str, str], *, version_2: bool
) -> dict[str, tuple[float, float]]:
    """Return id -> exact match and F1 with the best-matching gold answer, 0 to 1, before any threshold.

    Args:
        questions: questions with their gold answers.
        answers: id -> predicted answer.
        version_2: whether to score like evaluate-v2.0.py. There a question whose gold answers are empty after
            normalisation has the gold answer "".
    """
    found = {}
    for question in questions:
        if question.id in answers:
            answer = answers[question.id]
            golds = _golds(question, version_2=version_2)
            found[question.id] = (
                max(exact(gold, answer) for gold in golds),
                max(f1(gold, answer, version_2=version_2) for gold in golds),
            )
        elif not version_2:
            found[question.id] = (0.0, 0.0)
    return found


def score_v1(questions: Sequence[Question], answers: Mapping[str, str]) -> dict[str, float]:
    """Return exact_match and f1 in percent, as evaluate-v1.1.py prints them.

    Args:
        questions: questions with their gold answers.
        answers: id -> predicted answer.
    """
    found = question_scores(questions, answers, version_2=False).values()
    return {"exact_match": 100 * fmean(pair[0] for pair in found), "f1": 100 * fmean(pair[1] for pair in found)}


def score_v2(
    questions: Sequence[Question],
    answers: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    *,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Return the scores of evaluate-v2.0.py, in percent and under its names.

    Args:
        questions: questions with their gold answers.
        answers: id -> predicted text, `""` for no answer.
        null_odds: id -> odds of no answer. None: 0, as without --na-prob-file of the script.
        threshold: odds above which the answer is `""` (--na-prob-thresh of the script).

    Returns:
        exact, f1, total; the same of answerable and other questions as HasAns_ and NoAns_; with null_odds best_exact
        and best_f1 with their thresholds.
    """
    raw = question_scores(questions, answers, version_2=True)
    # above the threshold the answer is "": right for a question without an answer, wrong for any other
    odds = null_odds or dict.fromkeys(answers, 0.0)
    has_answer = {question.id: bool(question.answers) for question in questions}
    kept = {key: (float(not has_answer[key]),) * 2 if odds[key] > threshold else pair for key, pair in raw.items()}
    result = _means(kept.values())
    for prefix, wanted in (("HasAns", True), ("NoAns", False)):
        group = [pair for key, pair in kept.items() if has_answer[key] == wanted]
        if group:
            result |= {f"{prefix}_{name}": value for name, value in _means(group).items()}
    if null_odds is not None:
        for place, name in enumerate(("exact", "f1")):
            best, at = best_threshold({key: pair[place] for key, pair in raw.items()}, answers, odds, has_answer)
            result |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return result


def question_rows(
    questions: Sequence[Question],
    answers: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    *,
    thresholds: Mapping[str, float] | None = None,
) -> ScoredRows:
    """Return the questions behind the scores of `score_v1`, or with null_odds of `score_v2`, for intervals and tests.

    Args:
        questions: questions with their gold answers.
        answers: id -> predicted answer.
        null_odds: id -> odds of no answer. None: the scores of 1.1.
        thresholds: prefix of exact and f1 -> odds above which the answer is `""`; those of best_exact and best_f1 stay
            the same in every resample.
    """
    raw = question_scores(questions, answers, version_2=null_odds is not None)
    scored = [question for question in questions if question.id in raw]
    golds = [json.dumps([answer.text for answer in one.answers]) for one in scored]
    ids = row_ids([one.text for one in scored], [one.context for one in scored], golds)
    columns = {
        "question_word": [float(QUESTION_WORDS.index(question_word(one.text))) for one in scored],
        "answer_words": [float(_answer_words(one)) for one in scored],
    }
    if null_odds is None:
        names = ("exact_match", "f1")
        columns |= {name: [pair[place] for pair in raw.values()] for place, name in enumerate(names)}
        return ScoredRows(columns, {name: _percent(name) for name in names}, ids)
    has_answer = {question.id: bool(question.answers) for question in questions}
    columns |= {
        "HasAns": [float(has_answer[key]) for key in raw],
        "NoAns": [float(not has_answer[key]) for key in raw],
    }
    metrics: dict[str, Definition] = {}
    for name, threshold in (thresholds or {"exact": 0.0, "f1": 0.0}).items():
        place = int(name.endswith("f1"))
        columns[name] = [
            float(not has_answer[key]) if null_odds[key] > threshold else pair[place] for key, pair in raw.items()
        ]
        metrics[name] = _percent(name)
        if name in ("exact", "f1"):
            metrics |= {f"{group}_{name}": _percent(name, among=group) for group in ("HasAns", "NoAns")}
    return ScoredRows(columns, metrics, ids)


def _answer_words(question: Question) -> int:
    """Return the words of the shortest gold answer; 0 without an answer."""
    return min((len(answer.text.split()) for answer in question.answers), default=0)


def _percent(column: str, **among: str) -> Definition:
    return {"kind": "mean", "column": column, "scale": 100, **among}


def best_threshold(
    scores: Mapping[str, float],
    answers: Mapping[str, str],
    null_odds: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> tuple[float, float]:
    """Return the best score over all thresholds above which the answer is `""`, as evaluate-v2.0.py finds it.

    The search starts without answers and adds them in the order of their odds. Answers must be the best non-empty ones,
    before any threshold.

    Args:
        scores: id -> score before any threshold, 0 to 1.
        answers: id -> predicted text.
        null_odds: id -> odds of no answer.
        has_answer: id -> whether the question has a gold answer.

    Returns:
        The score in percent, and the threshold: the odds of one of the questions, or 0.
    """
    # One pass over sorted odds: answering one more question changes the score by its own score, or by -1 if it has no
    # answer and the prediction is not empty.
    current = best = float(sum(not answerable for answerable in has_answer.values()))
    threshold = 0.0
    for key in sorted(null_odds, key=lambda name: null_odds[name]):
        if key not in scores:
            continue
        current += scores[key] if has_answer[key] else -bool(answers[key])
        if current > best:
            best, threshold = current, null_odds[key]
    return 100 * best / len(scores), threshold


def _golds(question: Question, *, version_2: bool) -> list[str]:
    texts = [answer.text for answer in question.answers if normalised(answer.text) or not version_2]
    return texts or [""]


def _means(pairs: Iterable[tuple[float, float]]) -> dict[str, float]:
    exacts, f1s = zip(*pairs, strict=True)
    return {"exact": 100 * fmean(exacts), "f1": 100 * fmean(f1s), "total": float(len(exacts))}
