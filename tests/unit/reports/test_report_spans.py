"""Pages of scored questions and entities: by question word and answer length, by type, and kinds of errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.reports.charts.axes import number
from orchestrator.run import Run
from tests.conftest import write_bert
from tests.unit.reports.evaluations import make_evaluation
from tests.unit.reports.test_report_run import Page
from train_jobs.evaluation.scored_rows import ScoredRows, scored_rows_text
from train_jobs.readers.squad_data import GoldAnswer, Question
from train_jobs.tasks.entities.conll import entity_rows, entity_scores
from train_jobs.tasks.squad.scoring import question_rows, score_v1, score_v2

CANARY = "zebra quartz"
QUESTIONS = [
    Question("a", f"In which {CANARY} was Who born?", CANARY, (GoldAnswer("1871", 0), GoldAnswer("in 1871", 0))),
    Question("b", "Who whose?", CANARY, (GoldAnswer(CANARY, 0),)),
    Question("c", "To whom is it?", CANARY, (GoldAnswer("the old man and the sea", 0),)),
    Question("d", "How many are there?", CANARY, (GoldAnswer("40", 0),)),
    Question("e", "Name one.", CANARY, ()),
]
ANSWERS = {"a": "1871", "b": "zebra", "c": "", "d": "41", "e": ""}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_snapshot: None) -> Path:
    monkeypatch.chdir(tmp_path)
    write_bert(tmp_path / "bert")
    (tmp_path / "a.tsv").write_text("text\nw1\n")
    return tmp_path / "home"


def scored_run(home: Path, metrics: Mapping[str, float], rows: ScoredRows | str) -> Run:
    """Return a finished run with these scores."""
    text = rows if isinstance(rows, str) else scored_rows_text({"input": rows})
    return make_evaluation(home, {"task": "spans", "metrics": dict(metrics)}, text)


def page_of(home: Path, metrics: Mapping[str, float], rows: ScoredRows) -> str:
    text = scored_run(home, metrics, rows).report().read_text()
    assert "zebra" not in text, "a page has no text of questions, answers or words"
    assert "zebra" not in scored_rows_text({"input": rows})
    return Page(text).text


def cells(*values: object) -> str:
    return "\n".join(map(str, values))


def test_questions_are_scored_by_word_and_by_length(home: Path) -> None:
    answered = QUESTIONS[:4]
    shown = page_of(home, score_v1(answered, ANSWERS), question_rows(answered, ANSWERS))
    assert cells("Scores of input by question word", "Question word", "Questions", "exact_match", "f1") in shown
    assert cells("who", 2, number(0.0), number(100 / 3), "which", 1, number(100.0), number(100.0)) in shown, (
        "the first word decides; whom is who"
    )
    assert cells("how many", 1, number(0.0), number(0.0)) in shown
    assert "\nother\n" not in shown, "no question is of another form"
    assert cells("Words in the answer", "Questions", "exact_match", "f1", "1", 2, number(50.0)) in shown
    assert cells("2", 1, number(0.0), number(200 / 3)) in shown
    assert cells("6 to 10", 1, number(0.0), number(0.0)) in shown


def test_unanswerable_questions_are_a_length_of_their_own(home: Path) -> None:
    odds = dict.fromkeys(ANSWERS, -1.0) | {"e": 2.0}
    scores = score_v2(QUESTIONS, ANSWERS, odds, threshold=0.0)
    shown = page_of(home, scores, question_rows(QUESTIONS, ANSWERS, odds))
    assert cells("other", 1, number(100.0), number(100.0)) in shown
    assert cells("no answer", 1, number(100.0), number(100.0)) in shown


GOLD = ["B-PER I-PER O O B-LOC", "B-ORG O B-LOC", "B-PER I-PER I-PER O", "O O"]
FOUND = ["B-PER I-PER O O B-ORG", "O O B-LOC", "B-PER I-PER O O", "B-LOC O"]


def test_entities_have_scores_of_each_type_and_kinds_of_errors(home: Path) -> None:
    gold, found = ([one.split() for one in some] for some in (GOLD, FOUND))
    scores = entity_scores(gold, found)
    shown = page_of(home, scores, entity_rows(gold, found))
    header = ("Type", "Precision", "Recall", "F1", "Entities", "Found")
    assert cells("Each type of input", *header) in shown
    assert cells("LOC", "0.5000", "0.5000", "0.5000", 2, 2) in shown
    assert cells("PER", "0.5000", "0.5000", "0.5000", 2, 2) in shown
    header = ("Type", "Right", "Wrong boundary", "Wrong type", "Wrong both", "Missed", "Found without an entity")
    assert cells("Errors of input", *header) in shown
    assert cells("LOC", 1, 0, 1, 0, 0, 1) in shown, "LOC called ORG; LOC where there is none"
    assert cells("ORG", 0, 0, 0, 0, 1, 0) in shown
    assert cells("PER", 1, 1, 0, 0, 0, 0) in shown
    assert cells("Sentence", "Errors", "Entities") in shown
    assert cells(1, 1, 2) in shown


@pytest.mark.parametrize(
    ("gold", "found", "expected"),
    [
        ("B-A I-A O", "O B-B I-B", {"both_A": 1}),
        ("B-A I-A I-A", "B-A B-A O", {"boundary_A": 1}),
        ("B-A O", "B-B B-B", {"type_A": 1, "spurious_B": 1}),
        ("B-A B-B", "B-B B-A", {"type_A": 1, "type_B": 1}),
        ("O", "O", {}),
    ],
)
def test_each_entity_has_one_kind_of_error(gold: str, found: str, expected: dict[str, float]) -> None:
    columns = entity_rows([gold.split()], [found.split()]).columns
    kinds = ("boundary", "type", "both", "missed", "spurious")
    seen = {name: sum(columns[name]) for name in columns if name.split("_")[0] in kinds}  # type: ignore[arg-type]
    assert {name: count for name, count in seen.items() if count} == expected
    wanted = {name.partition("_")[2] for name in columns if name.startswith("gold_")}
    for kind in wanted:
        parts = sum(sum(columns[f"{name}_{kind}"]) for name in kinds[:4])  # type: ignore[arg-type]
        assert parts + sum(columns[f"twice_{kind}"]) / 2 == sum(columns[f"gold_{kind}"])  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [99, -1, 0.5, float("nan")])
def test_damaged_or_older_rows_hide_no_other_result(home: Path, value: float) -> None:
    metrics = {"exact_match": {"kind": "mean", "column": "exact_match"}}
    columns = {"exact_match": [1.0, 0.0], "question_word": [0, value], "answer_words": [1, value]}
    document = {"version": 1, "sets": {"input": {"columns": columns, "metrics": metrics}}}
    shown = Page(scored_run(home, {"exact_match": 50.0}, json.dumps(document)).report().read_text()).text
    assert "by question word" not in shown
    assert "exact_match\n50" in shown
