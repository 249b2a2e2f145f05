"""SQuAD's files: JSON of articles, paragraphs and questions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from train_jobs.config import DataError
from train_jobs.tasks.rows.tables import LONG_TEXT, Problems, half_character, read_text


class Answer(NamedTuple):
    """What people answered."""

    text: str
    start: int
    """Character of the context at which it begins."""


@dataclass(frozen=True)
class Question:
    """A question about a text."""

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]
    """None where the text does not answer it, or nobody says."""


@dataclass(frozen=True)
class Squad:
    """The questions of a file, in its order."""

    path: Path
    questions: list[Question]
    version_2: bool
    """A question may have no answer."""
    notes: list[str] = field(default_factory=list)
    """What the user should know of the file, each with its place."""


def read_squad(path: Path, *, training: bool = False) -> Squad:
    """Reads a file of SQuAD's form, 1.1 or 2.0.

    Args:
        path: the file.
        training: answers are to be learned, so each must stand where it says. Else only their text counts, and one
            that is elsewhere, or nowhere, is told in the notes.

    Raises:
        DataError: no such file, not of this form, or questions that cannot be used: each with its line and id.
    """
    raw, document, notes = _document(path)
    problems = Problems(f"{path} has questions that cannot be used", fix=f"mend or delete those questions of {path}")
    found = Squad(path, [], _is_version_2(raw, document), notes)
    seen: set[str] = set()
    surrogates = "\\ud" in raw.lower()
    for context, qa in _each(path, document):
        if lacking := _lacks(context, qa) or (surrogates and half_character([context, qa])):
            problems.add(_where(path, raw, qa), lacking)
            continue
        question = _question(context, qa)
        misplaced = _misplaced(question)
        wrong = _contradictions(qa, question, training=training, version_2=found.version_2)
        wrong += misplaced if training else []
        wrong += ["the id was there before"] if question.id in seen else []
        for what in wrong:
            problems.add(_where(path, raw, qa), what)
        told = [] if training else misplaced
        told += [] if question.text.strip() else [f"asks {question.text!r}"]
        found.notes.extend(f"{_where(path, raw, qa)}: {what}" for what in told)
        seen.add(question.id)
        found.questions.append(question)
    problems.check()
    if not found.questions:
        raise DataError(f"{path} has no question", fix="fetch or make it again")
    found.notes.extend(_long_contexts(path, found.questions))
    return found


def _document(path: Path) -> tuple[str, dict[str, Any], list[str]]:
    """Text, JSON, and what is unusual in it."""
    raw, notes = read_text(path)
    try:
        document = json.loads(raw)
    except json.JSONDecodeError as problem:
        raise DataError(
            f"{path} is not JSON",
            facts={"where": f"{path}:{problem.lineno}, column {problem.colno}", "why": problem.msg},
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise DataError(f"{path} is not of SQuAD's form", facts={"need": '{"data": [{"paragraphs": ...}]}'})
    return raw, document, notes


def _is_version_2(raw: str, document: dict[str, Any]) -> bool:
    version = str(document.get("version") or "").removeprefix("v")
    return version.startswith("2") or '"is_impossible"' in raw


def _each(path: Path, document: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Context and question, whatever they are."""
    for article_number, article in enumerate(document["data"], start=1):
        try:
            for paragraph in article["paragraphs"]:
                for qa in paragraph["qas"]:
                    yield paragraph["context"], qa
        except (KeyError, TypeError) as problem:
            raise DataError(
                f"{path} is not of SQuAD's form",
                facts={"where": f"article {article_number}", "lacks": problem},
                fix="each article has paragraphs, each paragraph a context and qas",
            ) from None


def _lacks(context: Any, qa: Any) -> str:
    """What a question lacks to be one."""
    if not isinstance(qa, dict):
        return "is no object"
    wrong = [key for key in ("id", "question") if not isinstance(qa.get(key), str)]
    if wrong:
        return f"lacks {', '.join(wrong)}"
    if not isinstance(context, str) or not context.strip():
        return "its context is no text"
    answers = qa.get("answers", [])
    if not isinstance(answers, list) or not all(_is_answer(answer) for answer in answers):
        return "its answers are no list of text and answer_start"
    return ""


def _is_answer(answer: Any) -> bool:
    return isinstance(answer, dict) and isinstance(answer.get("text"), str) and type(answer.get("answer_start")) is int


def _question(context: str, qa: dict[str, Any]) -> Question:
    answers = tuple(Answer(answer["text"], answer["answer_start"]) for answer in qa.get("answers", []))
    return Question(qa["id"], qa["question"], context, answers)


def _misplaced(question: Question) -> list[str]:
    """Answers that are not where they say."""
    found = []
    for text, start in dict.fromkeys(question.answers):
        if not text.strip():
            found.append("an answer is empty")
        elif start < 0 or not question.context.startswith(text, start):
            place = question.context.find(text)
            where = "anywhere in" if place < 0 else f"at character {start} of"
            found.append(f"answer {text!r} is not {where} its context" + (f", but at {place}" if place >= 0 else ""))
    return found


def _contradictions(qa: dict[str, Any], question: Question, *, training: bool, version_2: bool) -> list[str]:
    if qa.get("is_impossible") and question.answers:
        return ["is_impossible, and has answers"]
    if training and not question.answers and not (version_2 and qa.get("is_impossible", True)):
        return ["has no answer" + (", and is_impossible is false" if version_2 else "")]
    return []


def _where(path: Path, raw: str, qa: Any) -> str:
    """Place of a question: the line of its id, and the id, since official files have one line only."""
    name = qa.get("id") if isinstance(qa, dict) else None
    line = raw.count("\n", 0, max(raw.find(json.dumps(name)), 0)) + 1
    return f"{path}:{line}: question {name}"


def _long_contexts(path: Path, questions: list[Question]) -> list[str]:
    contexts = {question.context: question.id for question in reversed(questions) if len(question.context) > LONG_TEXT}
    return [
        f"{path}: question {question_id}: a context of {len(text):,} characters, read in as many windows as that takes"
        for text, question_id in contexts.items()
    ]
