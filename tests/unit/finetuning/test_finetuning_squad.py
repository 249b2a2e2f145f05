"""SQuAD: reading, windows, and from logits to answers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer

from tests.conftest import SHARED
from train_jobs.config import DataError, FinetuneConfig
from train_jobs.config.finetune import ExamplesConfig
from train_jobs.corpus.tokenize.vocabulary import load_vocabulary
from train_jobs.readers.squad_data import GoldAnswer, Question, Squad, read_squad
from train_jobs.tasks.squad.scoring import score_v1, score_v2
from train_jobs.tasks.squad.spans import (
    ContextWindow,
    answer_tokens,
    best_spans,
    best_window,
    make_windows,
    predict,
    prediction_files,
    window_spans,
)

REAL = SHARED / "data" / "squad"
VOCABULARY = SHARED / "data" / "bert" / "vocab_uncased.txt"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason=f"the files of SQuAD are not in {REAL}")
CONTEXT = "The Normans gave their name to Normandy, a region in France."
WORDS = ["the", "normans", "gave", "their", "name", "to", "normandy", ",", "a", "region", "in", "france", "."]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "who", "what", "where", "?"]) + "\n"
    )
    return load_vocabulary(path, lowercase=True)


def qa(name: str = "q1", **keys: Any) -> dict[str, Any]:
    answers = [{"text": "France", "answer_start": CONTEXT.index("France")}]
    return {"id": name, "question": "Where?", "answers": answers, **keys}


def squad(path: Path, *questions: Any, version: str = "1.1", context: Any = CONTEXT) -> Path:
    document = {"version": version, "data": [{"title": "x", "paragraphs": [{"context": context, "qas": questions}]}]}
    path.write_text(json.dumps(document, indent=1))
    return path


def problems(path: Path, *, training: bool = True) -> list[str]:
    with pytest.raises(DataError) as caught:
        read_squad(path, training=training)
    return [problem.removeprefix(f"{path}:") for problem in caught.value.problems]


def line_of(path: Path, name: str) -> int:
    return next(n for n, line in enumerate(path.read_text().splitlines(), start=1) if f'"{name}"' in line)


def test_questions_keep_file_order(tmp_path: Path) -> None:
    found = read_squad(squad(tmp_path / "s.json", qa("a"), qa("b", question="Who?")), training=True)
    assert [(q.id, q.text, q.context) for q in found.questions] == [("a", "Where?", CONTEXT), ("b", "Who?", CONTEXT)]
    assert found.questions[0].answers == (GoldAnswer("France", CONTEXT.index("France")),)
    assert (found.version_2, found.notes) == (False, [])


def test_version_2_is_detected_by_version_or_questions(tmp_path: Path) -> None:
    unanswerable = qa("b", answers=[], is_impossible=True)
    assert read_squad(squad(tmp_path / "a.json", qa(), version="v2.0")).version_2
    found = read_squad(squad(tmp_path / "b.json", qa(), unanswerable), training=True)
    assert found.version_2
    assert found.questions[1].answers == ()


def test_answer_outside_context_is_named(tmp_path: Path) -> None:
    path = squad(
        tmp_path / "s.json",
        qa("good"),
        qa("absent", answers=[{"text": "Spain", "answer_start": 53}]),
        qa("moved", answers=[{"text": "France", "answer_start": 5}]),
        qa("before", answers=[{"text": ".", "answer_start": -1}]),
        qa("empty", answers=[{"text": "", "answer_start": 0}]),
    )
    place = CONTEXT.index("France")
    expected = {
        "absent": "the answer, a text of 5 characters, is not anywhere in its context",
        "moved": f"the answer, a text of 6 characters, is not at character 5 of its context, but at {place}",
        "before": "the answer, a text of 1 character, is not at character -1 of its context, but at"
        f" {len(CONTEXT) - 1}",
        "empty": "an answer is empty",
    }
    numbered = enumerate(expected.items(), start=2)
    lines = [f"{line_of(path, name)}: question {number}: {what}" for number, (name, what) in numbered]
    assert problems(path) == lines
    found = read_squad(path)
    assert len(found.questions) == 5
    assert found.notes == [f"{path}:{line}" for line in lines]


def test_malformed_question_is_named(tmp_path: Path) -> None:
    path = squad(
        tmp_path / "s.json",
        qa("twice"),
        qa("twice"),
        {"id": "bare"},
        "text",
        qa("listless", answers={"text": ["France"]}),
        qa("unsure", answers=[], is_impossible=False),
        qa("torn", is_impossible=True),
        version="v2.0",
    )
    assert [problem.split(": ", 1)[1] for problem in problems(path)] == [
        "question 2: duplicate id",
        "question 3: lacks question",
        "question 4: is not a JSON object",
        "question 5: its answers are not a list of text and answer_start",
        "question 6: has no answer, and is_impossible is false",
        "question 7: is_impossible, and has answers",
    ]


def test_unpaired_surrogate_in_question_is_refused(tmp_path: Path) -> None:
    path = squad(tmp_path / "s.json", qa("a", question="Who \U0001f600?"), qa("b", question="Who \ud83d?"))
    assert problems(path) == [f"{line_of(path, 'b')}: question 2: half a character: \\ud83d without its other half"]


def test_version_1_needs_answers_only_in_training(tmp_path: Path) -> None:
    path = squad(tmp_path / "s.json", qa("q", answers=[]))
    assert problems(path) == [f"{line_of(path, 'q')}: question 1: has no answer"]
    assert read_squad(path).questions[0].answers == ()


def test_invalid_context_and_empty_question_are_named(tmp_path: Path) -> None:
    assert problems(squad(tmp_path / "s.json", qa(), context=" "))[0].endswith("its context is not text")
    path = squad(tmp_path / "t.json", qa(question=" "))
    assert read_squad(path, training=True).notes == [f"{path}:{line_of(path, 'q1')}: question 1: asks nothing"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [', "is not JSON"),
        ("[]", "not in SQuAD's format"),
        ('{"data": [{"title": "x"}]}', "article 1"),
        ('{"data": []}', "has no question"),
        ("caf\u00e9", "is not UTF-8"),
        ("[" * 100_000, "nested too deeply"),
        ('{"data": ' * 50_000, "nested too deeply"),
        ('{"data": [\n{"paragraphs": ' + "9" * 5000 + "}]}", "s.json:2"),
        ('{"data": [{"paragraphs": 5}]}', "need a list of paragraphs"),
        ('{"data": ["text"]}', "need a list of paragraphs"),
        ('{"data": [{"paragraphs": [null]}]}', "article 1, paragraph 1"),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": {"id": 1}}]}]}', "a value of type dict"),
        ('{"data": [{"paragraphs": [{"qas": [{"id": "1", "question": "q"}]}]}]}', "its context is not text"),
    ],
)
def test_files_of_other_format_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(content.encode("latin1"))
    with pytest.raises(DataError) as caught:
        read_squad(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "object is not" not in str(caught.value), "a message of Python"


@pytest.mark.parametrize("start", [float("nan"), 1e3, True, "2", 10**400, -(10**30)])
def test_position_that_is_no_place_in_text_is_refused(tmp_path: Path, start: Any) -> None:
    path = squad(tmp_path / "s.json", qa(answers=[{"text": "France", "answer_start": start}]))
    for training in (True, False):
        with pytest.raises(DataError, match="not a list of text and answer_start"):
            read_squad(path, training=training)


def test_many_problems_are_found_in_one_pass(tmp_path: Path) -> None:
    """Each place is searched for in the whole text, so that only the first ones are."""
    questions = [qa(f"q{number}", answers=[{"text": "nowhere", "answer_start": 0}]) for number in range(5000)]
    path = squad(tmp_path / "s.json", *questions)
    notes = read_squad(path).notes
    assert len(notes) == 5000
    assert notes[0].startswith(f"{path}:{line_of(path, 'q0')}: question 1: ")
    assert notes[-1].startswith(f"{path}: question 5000: ")


def test_bom_crlf_and_huge_context_reported(tmp_path: Path) -> None:
    path = squad(tmp_path / "s.json", qa(), context=CONTEXT + " in" * 333_313)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    mark, ends, long = read_squad(path, training=True).notes
    assert mark.startswith(f"{path}:1: a byte-order mark")
    assert (ends.startswith(f"{path}:1: "), "lines end with CRLF" in ends) == (True, True)
    assert long == f"{path}: question 1: a context of 999,999 characters, read in as many windows as that takes"


# --- windows


def test_short_context_is_one_window(tokenizer: Tokenizer) -> None:
    question = Question("q", "Where?", CONTEXT, (GoldAnswer("France", CONTEXT.index("France")),))
    (window,) = make_windows([question], tokenizer, max_length=64, stride=8, max_query_length=8)
    pieces = [tokenizer.id_to_token(number) for number in window.input_ids.tolist()]
    assert pieces == ["[CLS]", "where", "?", "[SEP]", *WORDS, "[SEP]"]
    assert window.token_type_ids.tolist() == [0] * 4 + [1] * 14
    assert window.first == 4
    assert (pieces[window.start], pieces[window.end]) == ("france", "france")
    assert window.is_best.all()
    assert [CONTEXT[a:b] for a, b in window.offsets.tolist()][1] == "Normans"


def test_windows_overlap_and_answer_needs_complete_span(tokenizer: Tokenizer) -> None:
    text = "normandy , a"
    question = Question("q", "Who?", CONTEXT, (GoldAnswer("Normandy, a", CONTEXT.index("Normandy")),))
    windows = make_windows([question, question], tokenizer, max_length=12, stride=3, max_query_length=1)
    assert [window.question for window in windows] == [0] * 3 + [1] * 3
    found = [[tokenizer.id_to_token(number) for number in window.input_ids] for window in windows[:3]]
    assert all(pieces[:3] == ["[CLS]", "who", "[SEP]"] and pieces[-1] == "[SEP]" for pieces in found)
    assert [" ".join(pieces[3:-1]) for pieces in found] == [
        " ".join(WORDS[begin:end]) for begin, end in ((0, 8), (3, 11), (6, 13))
    ]
    answers = [" ".join(pieces[w.start : w.end + 1]) for pieces, w in zip(found, windows, strict=False) if w.start]
    assert answers == [text] * 2
    assert (windows[0].start, windows[0].end) == (0, 0)


@pytest.mark.parametrize(
    ("tokens", "room", "stride", "expected"),
    [
        (5, 8, 3, [(0, 5)]),
        (8, 8, 3, [(0, 8)]),
        (9, 8, 3, [(0, 8), (3, 9)]),
        (20, 8, 4, [(0, 8), (4, 12), (8, 16), (12, 20)]),
        (20, 8, 100, [(0, 8), (8, 16), (16, 20)]),  # a stride beyond the end of a window would omit tokens
        (0, 8, 4, [(0, 0)]),
    ],
)
def test_spans_cover_all_tokens(tokens: int, room: int, stride: int, expected: list[tuple[int, int]]) -> None:
    assert window_spans(tokens, room, stride) == expected


def test_token_belongs_to_window_with_most_context() -> None:
    spans = [(0, 8), (4, 12), (8, 14)]
    assert best_window(14, spans).tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


def test_window_ties_choose_longer_then_first() -> None:
    assert best_window(9, [(0, 5), (2, 9)])[3] == 1
    assert best_window(7, [(0, 5), (2, 7)])[3] == 0


def test_maximum_context_matches_run_squad_example() -> None:
    """The example in Google's run_squad.py: `bought` is in two windows, with 4 and 0 or 3 and 1 context tokens."""
    assert best_window(11, [(0, 5), (3, 8), (6, 11)])[[3, 4]].tolist() == [0, 1]


def test_long_question_is_truncated_and_must_leave_room(tokenizer: Tokenizer) -> None:
    question = Question("q", "who what where " * 9, CONTEXT, ())
    windows = make_windows([question], tokenizer, max_length=10, stride=1, max_query_length=6)
    assert {window.first for window in windows} == {8}
    assert {len(window.input_ids) for window in windows} == {10}
    with pytest.raises(ValidationError, match=r"data.max_length 9 leaves no room .* must be more than 9"):
        FinetuneConfig(
            task="SQuAD-1.1",
            init_from=Path("model"),
            data=ExamplesConfig(squad=Path("squad"), max_length=9, max_query_length=6),
        )


def test_answer_inside_word_maps_to_whole_token() -> None:
    offsets = np.array([[0, 3], [4, 11], [11, 12], [14, 20]])
    for start, text, expected in [
        (5, "orm", (1, 1)),
        (4, "Normans,", (1, 2)),
        (11, ",", (2, 2)),
        (12, "  France", (3, 3)),
        (12, " ", None),
        (0, "The Normans", (0, 1)),
    ]:
        question = Question("q", "?", "", (GoldAnswer(text, start),))
        assert answer_tokens(question, offsets) == expected


# --- answers


def window(tokens: int = 4, first: int = 3, best: list[bool] | None = None) -> ContextWindow:
    offsets = np.array([[2 * place, 2 * place + 1] for place in range(tokens)])
    ids = np.zeros(first + tokens + 1, np.int64)
    return ContextWindow(0, ids, first, offsets, np.array(best or [True] * tokens), 0, 0)


def logits(context: list[float], cls: float = 0.0, first: int = 3) -> np.ndarray:
    return np.array([cls, *[90.0] * (first - 1), *context, 90.0], np.float32)  # question and [SEP] cannot be answers


QUESTION = Question("q", "?", "a b c d", ())


def texts(candidates: list[dict[str, Any]]) -> list[str]:
    return [found["text"] for found in candidates]


def test_spans_are_ordered_valid_and_bounded() -> None:
    start, end = logits([1, 5, 2, 0]), logits([7, 1, 3, 4])
    found = best_spans(window(), start, end, n_best=10, max_answer_length=2)
    assert [QUESTION.context[span.begin : span.end] for span in found] == ["b c", "a", "b", "c d", "c", "d", "a b"]
    assert found[1] == (8.0, 1.0, 7.0, 0, 1)
    assert all(span.score == span.start_logit + span.end_logit for span in found)


def test_only_n_best_positions_are_paired() -> None:
    start, end = logits([1, 5, 2, 0]), logits([7, 1, 3, 4])
    found = best_spans(window(), start, end, n_best=1, max_answer_length=9)
    assert found == [], "the best end is before the best start"
    assert len(best_spans(window(), start, end, n_best=2, max_answer_length=9)) == 2


def test_answer_starts_in_window_with_most_context() -> None:
    start, end = logits([9, 1, 0, 0]), logits([0, 0, 0, 5])
    found = best_spans(window(best=[False, True, True, True]), start, end, n_best=9, max_answer_length=9)
    assert QUESTION.context[found[0].begin : found[0].end] == "b c d"


def test_spans_with_equal_text_keep_best() -> None:
    question = Question("q", "?", "a b a d", ())
    found = predict(question, [window()], [(logits([1, 0, 3, 0]), logits([1, 0, 3, 0]))], version_2=False)
    assert found.best == "a"
    assert [one["start_logit"] for one in found.candidates if one["text"] == "a"] == [3.0]
    assert sum(one["probability"] for one in found.candidates) == pytest.approx(1.0)  # type: ignore[misc]
    assert found.text(None) == "a"


def test_windows_compete_and_lowest_null_score_counts() -> None:
    pairs = [
        (logits([1, 0, 0, 0], cls=4), logits([1, 0, 0, 0], cls=4)),
        (logits([0, 0, 0, 2], cls=1.5), logits([0, 0, 0, 2], cls=1)),
    ]
    found = predict(QUESTION, [window(), window()], pairs, version_2=True)
    assert found.best == "d"
    assert found.null_odds == 2.5 - 4.0
    assert [found.text(threshold) for threshold in (0.0, -1.5, -1.6)] == ["d", "d", ""]
    null = next(one for one in found.candidates if one["text"] == "")
    assert (null["start_logit"], null["end_logit"]) == (1.5, 1.0)
    assert found.candidates[0]["text"] == "d"


def test_candidates_are_ordered_including_no_answer() -> None:
    pair = (logits([1, 0, 0, 0], cls=4), logits([1, 0, 0, 0], cls=4))
    found = predict(QUESTION, [window()], [pair], version_2=True, n_best=2)
    assert texts(found.candidates)[:2] == ["", "a"]
    assert len(found.candidates) == 3
    assert found.candidates[0]["probability"] == max(one["probability"] for one in found.candidates)
    assert found.text(0.0) == ""


def test_prediction_without_candidates_is_empty_answer() -> None:
    pair = (logits([]), logits([]))
    for version_2 in (False, True):
        found = predict(QUESTION, [window(tokens=0)], [pair], version_2=version_2)
        assert (found.best, texts(found.candidates)) == ("", [""])


def test_predictions_are_written_in_official_format() -> None:
    pair = (logits([1, 0, 0, 0], cls=4), logits([1, 0, 0, 0], cls=4))
    found = predict(QUESTION, [window()], [pair], version_2=True)
    files = prediction_files([found], threshold=0.0)
    assert json.loads(files["predictions.json"]) == {"q": ""}
    assert json.loads(files["null_odds.json"]) == {"q": 6.0}
    assert json.loads(files["nbest_predictions.json"])["q"] == found.candidates
    files = prediction_files([found], threshold=None)
    assert json.loads(files["predictions.json"]) == {"q": "a"}
    assert "null_odds.json" not in files


# --- end to end, on real files


def perfect_predictions(found: Squad, windows: list[ContextWindow]) -> dict[str, Any]:
    """Return predictions from logits that select the first answer in every window that contains it, else [CLS]."""
    by_question: dict[int, list[ContextWindow]] = {}
    for one in windows:
        by_question.setdefault(one.question, []).append(one)
    answered = {}
    for number, group in by_question.items():
        pairs = []
        for one in group:
            start, end = np.zeros((2, len(one.input_ids)), np.float32)
            start[one.start] += 9
            end[one.end] += 9
            pairs.append((start, end))
        answered[found.questions[number].id] = predict(found.questions[number], group, pairs, version_2=found.version_2)
    return answered


@needs_real
@pytest.mark.parametrize(
    ("file", "rows", "version_2", "at_least"),
    [
        ("v1.1/derived-v1.1-from-cs224n-dev.json", 2910, False, 99.0),
        ("v2.0/official-dev-v2.0-5articles.json", 1407, True, 99.0),
    ],
)
def test_perfect_predictions_score_full_marks(file: str, rows: int, version_2: bool, at_least: float) -> None:
    found = read_squad(REAL / file, training=True)
    assert (len(found.questions), found.version_2, found.notes) == (rows, version_2, [])
    found = dataclasses.replace(found, questions=found.questions[::5])
    tokenizer = load_vocabulary(VOCABULARY, lowercase=True)
    windows = make_windows(found.questions, tokenizer, max_length=128, stride=64, max_query_length=64)
    assert len(windows) > 1.5 * len(found.questions)
    answered = perfect_predictions(found, windows)
    texts_of = {name: one.text(0.0 if version_2 else None) for name, one in answered.items()}
    if version_2:
        odds = {name: one.null_odds for name, one in answered.items()}
        scores = score_v2(found.questions, texts_of, odds, threshold=0.0)
        assert scores["NoAns_exact"] == 100.0
        assert scores["HasAns_exact"] > at_least
    else:
        assert score_v1(found.questions, texts_of)["exact_match"] > at_least
