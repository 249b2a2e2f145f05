"""Sections about scored answers and entities: by question word and answer length, by type, and kinds of errors.

They are computed from the job's scored_rows.json, which has numbers of rows and no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.reports.charts.axes import number
from orchestrator.reports.pages.page_parts import figures_panel
from orchestrator.support.formatting import counted
from orchestrator.support.html import Markup, element
from train_jobs.readers.squad_data import QUESTION_WORDS

if TYPE_CHECKING:
    from train_jobs.evaluation.scored_rows import ScoredRows

ANSWER_SCORES = ("exact_match", "exact", "best_exact", "f1", "best_f1")
LENGTHS = (
    (0, "no answer"),
    (1, "1"),
    (2, "2"),
    (3, "3"),
    (5, "4 to 5"),
    (10, "6 to 10"),
    (float("inf"), "more than 10"),
)
"""Most words in an answer, and the name of the group."""
KINDS = {"boundary": "Wrong boundary", "type": "Wrong type", "both": "Wrong both", "missed": "Missed"}
SPURIOUS = "Found without an entity"
WORST = 20  # sentences that are listed


def question_sections(name: str, rows: ScoredRows) -> Iterator[Markup]:
    """Yield the scores of questions by their first question word and by the words of their shortest gold answer.

    Args:
        name: name of the set.
        rows: any rows; nothing is yielded unless they are questions with known forms.
    """
    forms, lengths = (_counts(rows, column) for column in ("question_word", "answer_words"))
    scores = {column: _values(rows, column) for column in ANSWER_SCORES if column in rows.columns}
    if not (forms and lengths and scores) or max(forms) >= len(QUESTION_WORDS):
        return
    words = [QUESTION_WORDS[form] for form in forms]
    groups = [next(label for most, label in LENGTHS if length <= most) for length in lengths]
    yield element("h2", f"Scores of {name} by question word")
    yield figures_panel(("Question word", "Questions", *scores), _means(QUESTION_WORDS, words, scores))
    yield element("h2", f"Scores of {name} by answer length")
    yield figures_panel(
        ("Words in the answer", "Questions", *scores), _means([label for _, label in LENGTHS], groups, scores)
    )
    yield element("p", "Words of the shortest answer that people gave; scores in percent.", class_="note")


def _means(
    groups: Sequence[str], of_rows: Sequence[str], scores: Mapping[str, Sequence[float]]
) -> Iterator[tuple[str, ...]]:
    """Yield the name, size and mean scores in percent of each group that has a row."""
    for group in groups:
        chosen = [row for row, own in enumerate(of_rows) if own == group]
        if chosen:
            means = (100 * sum(values[row] for row in chosen) / len(chosen) for values in scores.values())
            yield group, f"{len(chosen):,}", *map(number, means)


def entity_sections(name: str, rows: ScoredRows) -> Iterator[Markup]:
    """Yield precision, recall and F1 of each type, the kinds of errors, and the sentences with most errors.

    Args:
        name: name of the set.
        rows: any rows; nothing is yielded unless they are sentences with entities.
    """
    types = [column.removeprefix("gold_") for column in rows.columns if column.startswith("gold_")]
    if not types or not all(f"{part}_{one}" in rows.columns for part in ("twice", "found") for one in types):
        return
    totals = {column: round(sum(_values(rows, column))) for column in rows.columns}
    yield element("h2", f"Each type of {name}")
    yield figures_panel(
        ("Type", "Precision", "Recall", "F1", "Entities", "Found"), (_scores(one, totals) for one in types)
    )
    if not all(f"{kind}_{one}" in rows.columns for kind in (*KINDS, "spurious") for one in types):
        return  # of an earlier version
    yield element("h2", f"Errors of {name}")
    yield figures_panel(
        ("Type", "Right", *KINDS.values(), SPURIOUS),
        (
            (
                one,
                f"{totals[f'twice_{one}'] // 2:,}",
                *(f"{totals[f'{kind}_{one}']:,}" for kind in (*KINDS, "spurious")),
            )
            for one in types
        ),
    )
    yield from _worst_sentences(rows, types)


def _scores(kind: str, totals: Mapping[str, int]) -> tuple[str, ...]:
    right, gold, found = (totals[f"{part}_{kind}"] for part in ("twice", "gold", "found"))
    shares = (right / 2 / found if found else 0.0, right / 2 / gold if gold else 0.0)
    f1 = right / (gold + found) if gold + found else 0.0
    return kind, *(number(value) for value in (*shares, f1)), f"{gold:,}", f"{found:,}"


def _worst_sentences(rows: ScoredRows, types: Sequence[str]) -> Iterator[Markup]:
    """Yield the table of the sentences with most errors, by their number in the set."""
    columns = [_values(rows, f"{kind}_{one}") for kind in (*KINDS, "spurious") for one in types]
    errors = [round(sum(values)) for values in zip(*columns, strict=True)]
    gold = [round(sum(values)) for values in zip(*(_values(rows, f"gold_{one}") for one in types), strict=True)]
    wrong = sorted((row for row, count in enumerate(errors) if count), key=lambda row: -errors[row])
    if not wrong:
        return
    note = f"{counted(len(wrong), 'sentence')} of {len(errors):,} with errors. Sentence 1 is the first of the set."
    yield element("p", note, class_="note")
    yield figures_panel(
        ("Sentence", "Errors", "Entities"),
        ((f"{row + 1:,}", f"{errors[row]:,}", f"{gold[row]:,}") for row in wrong[:WORST]),
    )


def _values(rows: ScoredRows, column: str) -> list[float]:
    values: Any = rows.columns[column]
    return [float(value) for value in values]


def _counts(rows: ScoredRows, column: str) -> list[int]:
    """Return a column of whole numbers from 0; empty if it is missing or has other values."""
    values = _values(rows, column) if column in rows.columns else []
    # not a number is not an integer either
    return [int(value) for value in values] if all(value.is_integer() and value >= 0 for value in values) else []
