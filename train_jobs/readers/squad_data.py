"""Reader of SQuAD's format: JSON with articles, paragraphs and questions, official or the user's own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from train_jobs.config import DataError, FinetuneConfig
from train_jobs.config.privacy import value_text
from train_jobs.config.tasks import SQUAD_1, SQUAD_2, TASKS
from train_jobs.readers.row_readers import half_character, read_text
from train_jobs.readers.tables import LONG_TEXT, RowProblems, official_differences, official_path


class GoldAnswer(NamedTuple):
    """An answer that people gave."""

    text: str
    start: int
    """First character in the context."""


@dataclass(frozen=True)
class Question:
    """A question about a text."""

    id: str
    text: str
    context: str
    answers: tuple[GoldAnswer, ...]
    """Empty where the text does not answer it, or the answers are unknown."""


@dataclass(frozen=True)
class Squad:
    """The questions of a file, in its order."""

    path: Path
    questions: list[Question]
    version_2: bool
    """A question may have no answer."""
    notes: list[str] = field(default_factory=list)
    """What is unusual in the file, each with its place."""


QUESTION_WORDS = ("what", "who", "when", "where", "why", "which", "how many", "how", "other")
"""Forms of questions. scored_rows.json has their numbers: new ones go to the end."""
_QUESTION_WORD = re.compile(r"\b(what|who(?:m|se)?|when|where|why|which|how (?:many|much)|how)\b", re.IGNORECASE)


def question_word(question: str) -> str:
    """Return the form of an English question by its first question word: one of `QUESTION_WORDS`."""
    found = _QUESTION_WORD.search(question)
    if found is None:
        return "other"
    word = found[0].lower()
    return "who" if word.startswith("who") else "how many" if word == "how much" else word


FORM = '{"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]}'
LARGEST_START = 2**31  # characters
LONGEST_NUMBER = 4300  # digits that Python converts
MOST_SEARCHED = 100  # places of questions that are searched for in the text of a file
_LONG_NUMBER = re.compile(rf"(?<![\d.])\d{{{LONGEST_NUMBER + 1},}}")
_FIX = "give each article paragraphs, and each paragraph a context and qas"


def read_squad(path: Path, *, training: bool = False) -> Squad:
    """Read a file in SQuAD's format, 1.1 or 2.0.

    Args:
        path: the file.
        training: the answers are learned, so each must be at its stated position. Else only their text counts, and
            a note names an answer at another position, or at none.

    Raises:
        DataError: no such file, not in this format, or questions that cannot be used: each with its line and number.
    """
    raw, document, notes = _document(path)
    problems = RowProblems(f"{path} has questions that cannot be used", fix=f"fix or delete those questions of {path}")
    version = str(document.get("version") or "").removeprefix("v")
    # SQuAD 2.0 files of users often lack the version, so the key that only 2.0 has decides as well.
    found = Squad(path, [], version.startswith("2") or '"is_impossible"' in raw, notes)
    seen: set[str] = set()
    # searched once in the raw text, since serialising every question again would double the reading time
    surrogates = "\\ud" in raw.lower()
    places = _Places(path, raw)
    for number, (context, qa) in enumerate(_each(path, document), start=1):
        where = partial(places.where, qa, number)
        if lacking := _missing_fields(context, qa) or (surrogates and half_character([context, qa])):
            problems.add(where(), lacking)
            continue
        question = _question(context, qa)
        misplaced = _misplaced(question)
        wrong = _contradictions(qa, question, training=training, version_2=found.version_2)
        wrong += misplaced if training else []
        wrong += ["duplicate id"] if question.id in seen else []
        for what in wrong:
            problems.add(where(), what)
        notable = [] if training else misplaced
        notable += [] if question.text.strip() else ["asks nothing"]
        found.notes.extend(f"{where()}: {what}" for what in notable)
        seen.add(question.id)
        found.questions.append(question)
    problems.check()
    if not found.questions:
        raise DataError(f"{path} has no question", fix="fetch or create it again")
    found.notes.extend(_long_contexts(path, found.questions))
    return found


def _document(path: Path) -> tuple[str, dict[str, Any], list[str]]:
    """Return text, JSON, and notes on what is unusual in it."""
    raw, notes = read_text(path)
    try:
        document = json.loads(raw)
    except json.JSONDecodeError as problem:
        raise DataError(
            f"{path} is not JSON",
            facts={"where": f"{path}:{problem.lineno}, column {problem.colno}", "why": problem.msg},
        ) from None
    except RecursionError:
        what = "its JSON is nested too deeply"
        raise DataError(f"cannot read {path}: {what}", facts={"need": FORM}, fix=_FIX) from None
    except ValueError:  # of a number that Python does not convert
        found = _LONG_NUMBER.search(raw)
        line = raw.count("\n", 0, found.start() if found else 0) + 1
        what = f"a number of more than {LONGEST_NUMBER:,} digits"
        raise DataError(f"cannot read {path}: {what}", facts={"where": f"{path}:{line}"}, fix="delete it") from None
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise DataError(f"cannot read {path}: not in SQuAD's format", facts={"need": FORM}, fix=_FIX)
    return raw, document, notes


def _each(path: Path, document: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield contexts and questions, not checked yet."""
    for article_number, article in enumerate(document["data"], start=1):
        where = f"article {article_number}"
        for number, paragraph in enumerate(_list_of(path, article, "paragraphs", where), start=1):
            for qa in _list_of(path, paragraph, "qas", f"{where}, paragraph {number}"):
                yield paragraph.get("context"), qa


def _list_of(path: Path, value: Any, key: str, where: str) -> list[Any]:
    """Return a list in an article or a paragraph.

    Raises:
        DataError: it is missing, or of another type.
    """
    if isinstance(value, dict) and isinstance(found := value.get(key), list):
        return found
    have = value.get(key) if isinstance(value, dict) else value
    what = f"{key} is missing" if isinstance(value, dict) and key not in value else f"need a list of {key}"
    facts = {"where": where, "why": what, "have": f"a value of type {type(have).__name__}"}
    raise DataError(f"cannot read {path}: not in SQuAD's format", facts=facts, fix=_FIX)


def _missing_fields(context: Any, qa: Any) -> str:
    """Return what a question lacks; "" if it is complete."""
    if not isinstance(qa, dict):
        return "is not a JSON object"
    wrong = [key for key in ("id", "question") if not isinstance(qa.get(key), str)]
    if wrong:
        return f"lacks {', '.join(wrong)}"
    if not isinstance(context, str) or not context.strip():
        return "its context is not text"
    answers = qa.get("answers", [])
    if not isinstance(answers, list) or not all(_is_answer(answer) for answer in answers):
        return "its answers are not a list of text and answer_start"
    return ""


def _is_answer(answer: Any) -> bool:
    if not isinstance(answer, dict) or not isinstance(answer.get("text"), str):
        return False
    start = answer.get("answer_start")
    return type(start) is int and abs(start) <= LARGEST_START


def _question(context: str, qa: dict[str, Any]) -> Question:
    answers = tuple(GoldAnswer(answer["text"], answer["answer_start"]) for answer in qa.get("answers", []))
    return Question(qa["id"], qa["question"], context, answers)


def _misplaced(question: Question) -> list[str]:
    """Return problems of answers that are not at their stated position."""
    found = []
    for text, start in dict.fromkeys(question.answers):
        if not text.strip():
            found.append("an answer is empty")
        elif start < 0 or not question.context.startswith(text, start):
            place = question.context.find(text)
            where = "anywhere in" if place < 0 else f"at character {start} of"
            but = f", but at {place}" if place >= 0 else ""
            found.append(f"the answer, {value_text(text)}, is not {where} its context{but}")
    return found


def _contradictions(qa: dict[str, Any], question: Question, *, training: bool, version_2: bool) -> list[str]:
    if qa.get("is_impossible") and question.answers:
        return ["is_impossible, and has answers"]
    if training and not question.answers and not (version_2 and qa.get("is_impossible", True)):
        return ["has no answer" + (", and is_impossible is false" if version_2 else "")]
    return []


class _Places:
    """Places of questions in a file, for messages.

    Args:
        path: the file.
        raw: its text.
    """

    def __init__(self, path: Path, raw: str) -> None:
        self._path, self._raw, self._searched = path, raw, 0

    def where(self, qa: Any, number: int) -> str:
        """Return the line of a question's id, and its number, since official files have one line only."""
        self._searched += 1
        if self._searched > MOST_SEARCHED:  # each search reads the whole text
            return f"{self._path}: question {number}"
        # Found by its id in the raw text: the JSON parser does not keep positions.
        name = qa.get("id") if isinstance(qa, dict) else None
        found = self._raw.find(json.dumps(name)) if isinstance(name, str) else -1
        line = self._raw.count("\n", 0, max(found, 0)) + 1
        return f"{self._path}:{line}: question {number}"


def _long_contexts(path: Path, questions: list[Question]) -> list[str]:
    numbered = reversed(list(enumerate(questions, start=1)))
    contexts = {question.context: number for number, question in numbered if len(question.context) > LONG_TEXT}
    return [
        f"{path}: question {number}: a context of {len(text):,} characters, read in as many windows as that takes"
        for text, number in contexts.items()
    ]


LISTED = 5  # questions named in an error


def read_sets(config: FinetuneConfig) -> dict[str, Squad]:
    """Read the questions of train, of dev, and of test if there is one.

    Raises:
        DataError: a file is missing, or has questions that cannot be used: each with its line and number.
    """
    data = config.data
    found = {
        "train": _read(config, "train", data.train, training=True),
        "dev": _read(config, "dev", data.validation, training=False),
    }
    for squad in found.values():
        _check_version(config.task, squad)
    if data.test is not None:
        found["test"] = read_squad(data.test)
    return found


def _read(config: FinetuneConfig, split: str, own: Path | None, *, training: bool) -> Squad:
    if own is not None:
        return read_squad(own, training=training)
    official, folder = TASKS[config.task].files[split], config.data.squad
    assert folder is not None, "the configuration requires it"
    path = official_path(
        folder,
        official.paths,
        need=f"SQuAD's folder, with {official.paths[0]} in it",
        fix="--set data.squad=FOLDER, or orchestrator data fetch squad --to FOLDER",
    )
    found = read_squad(path, training=training)
    found.notes[:0] = official_differences(official, path, len(found.questions), unit="questions")
    return found


def require_scorable(sets: Sequence[Squad]) -> None:
    """Check that the answers to the questions of several files can be scored together.

    Raises:
        DataError: an id is in two files, or a file of 1.1 has questions without an answer.
    """
    seen: dict[str, Path] = {}
    for squad in sets:
        if (without := _unanswered(squad)) and not squad.version_2:
            raise DataError(
                f"cannot score {squad.path}: it has questions without an answer, and its version is not 2.0",
                facts={"where": without},
                fix='add "version": "v2.0" to the file if the text does not answer them, or add their answers',
            )
        both = [(number, one.id) for number, one in enumerate(squad.questions, start=1) if one.id in seen]
        if both:
            raise DataError(
                f"cannot score {squad.path} with {seen[both[0][1]]}: both have questions with the same id",
                facts={"where": _numbers(str(number) for number, _ in both)},
                fix="rename the ids, or score the files one by one",
            )
        seen |= {one.id: squad.path for one in squad.questions}


def _unanswered(squad: Squad) -> str:
    """Return the places of the questions without an answer; "" if every question has one."""
    return _numbers(str(number) for number, one in enumerate(squad.questions, start=1) if not one.answers)


def _numbers(found: Iterable[str]) -> str:
    numbers = list(found)
    more = f" and {len(numbers) - LISTED:,} more" if len(numbers) > LISTED else ""
    return f"question {', '.join(numbers[:LISTED])}{more}" if numbers else ""


def _check_version(task: str, squad: Squad) -> None:
    """Refuse 1.1 with unanswered questions, and add a note to 2.0 without any: each is the other task."""
    without = _unanswered(squad)
    if without and task == SQUAD_1:
        raise DataError(
            f"cannot use {squad.path} for {SQUAD_1}: it has questions without an answer",
            facts={"where": without},
            fix=f"--set task={SQUAD_2}",
        )
    if not without and task == SQUAD_2:
        squad.notes.append(f"{squad.path}: every question has an answer: should task be {SQUAD_1}?")
