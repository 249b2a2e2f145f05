"""Exact match and F1 as in the official scripts."""

from __future__ import annotations

import pytest

from train_jobs.readers.squad_data import GoldAnswer, Question
from train_jobs.tasks.squad.scoring import best_threshold, exact, f1, normalised, score_v1, score_v2


def question(name: str, *answers: str) -> Question:
    return Question(name, "?", "context", tuple(GoldAnswer(text, 0) for text in answers))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Normans,", "normans"),
        ("a an the", ""),
        ("Theatre of an Andes", "theatre of andes"),  # an article is a whole word, not a prefix
        ("U.S.A.", "usa"),
        ("rock-and-roll", "rockandroll"),  # punctuation is removed first, without a gap
        ("the-end", "theend"),
        (
            "\u201cquoted\u201d \u2014 5\u20136",
            "\u201cquoted\u201d \u2014 5\u20136",
        ),  # only ASCII signs are removed
        ("10%\tof\u00a0it", "10 of it"),
        ("", ""),
        ("!?", ""),
    ],
)
def test_answer_is_normalised(text: str, expected: str) -> None:
    assert normalised(text) == expected


@pytest.mark.parametrize(
    ("gold", "answer", "expected", "words"),
    [
        ("Denver Broncos", "The Denver Broncos!", 1.0, 1.0),
        ("Denver Broncos", "Denver", 0.0, 2 / 3),
        ("Denver Broncos", "Carolina Panthers", 0.0, 0.0),
        ("to be or not to be", "to be to", 0.0, 6 / 9),  # words count as often as both contain them
        ("1066", "in 1066 or 1067", 0.0, 0.4),
        ("Denver Broncos", "", 0.0, 0.0),
        ("", "Denver", 0.0, 0.0),
    ],
)
def test_golden_scores_are_same_in_both_versions(gold: str, answer: str, expected: float, words: float) -> None:
    assert exact(gold, answer) == expected
    for version_2 in (False, True):
        assert f1(gold, answer, version_2=version_2) == pytest.approx(words)


def test_two_empty_answers_match_only_in_version_2() -> None:
    assert exact("", "the") == 1.0
    assert f1("", "the", version_2=True) == 1.0
    assert f1("", "the", version_2=False) == 0.0


def test_version_1_best_of_answers_unanswered_counted() -> None:
    questions = [question("q1", "Paris", "Paris, France"), question("q2", "the Seine"), question("q3", "the")]
    found = score_v1(questions, {"q1": "paris france", "q3": "a"})
    assert found == pytest.approx({"exact_match": 200 / 3, "f1": 100 / 3})


def test_version_2_omits_unanswered_questions() -> None:
    found = score_v2([question("q1", "Paris"), question("q2", "Seine")], {"q1": "paris"})
    assert found == {
        "exact": 100.0,
        "f1": 100.0,
        "total": 1.0,
        "HasAns_exact": 100.0,
        "HasAns_f1": 100.0,
        "HasAns_total": 1.0,
    }


def test_version_2_scores_unanswerable_questions() -> None:
    questions = [question("yes", "the Seine", "a"), question("no"), question("no too"), question("wrong", "Rome")]
    found = score_v2(questions, {"yes": "Seine river", "no": "", "no too": "Paris", "wrong": ""})
    expected = {
        "exact": 25.0,
        "f1": 100 * (2 / 3 + 1) / 4,
        "total": 4.0,
        "HasAns_exact": 0.0,
        "HasAns_f1": 100 / 3,
        "HasAns_total": 2.0,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2.0,
    }
    assert found == pytest.approx(expected)


def test_answer_of_articles_only_is_empty_in_version_2() -> None:
    assert score_v2([question("q", "the")], {"q": ""})["exact"] == 100.0
    assert score_v2([question("q", "the", "Paris")], {"q": ""})["exact"] == 0.0


def test_threshold_withdraws_answers() -> None:
    questions = [question("q1", "Paris"), question("q2"), question("q3", "Rome")]
    answers = {"q1": "Paris", "q2": "Nice", "q3": "Rome"}
    odds = {"q1": -3.0, "q2": 2.0, "q3": 1.0}
    assert score_v2(questions, answers, odds, threshold=1.0)["exact"] == 100.0
    assert score_v2(questions, answers, odds, threshold=0.99)["exact"] == pytest.approx(200 / 3)
    found = score_v2(questions, answers, odds, threshold=5.0)
    assert (found["exact"], found["best_exact"], found["best_exact_thresh"]) == pytest.approx((200 / 3, 100.0, 1.0))
    assert (found["best_f1"], found["best_f1_thresh"]) == (100.0, 1.0)


@pytest.mark.parametrize(
    ("odds", "answers", "expected"),
    [
        ({"a": 0.5, "n": 2.0}, {"a": "x", "n": "y"}, (100.0, 0.5)),
        ({"a": 2.0, "n": 0.5}, {"a": "x", "n": "y"}, (50.0, 0.0)),  # answering n first never pays
        ({"a": -7.0, "n": -8.0}, {"a": "x", "n": ""}, (100.0, -7.0)),  # "" is not withdrawn
        ({"a": 2.0, "n": 0.5, "gone": 0.0}, {"a": "x", "n": ""}, (100.0, 2.0)),
    ],
)
def test_best_threshold_maximizes_score(
    odds: dict[str, float], answers: dict[str, str], expected: tuple[float, float]
) -> None:
    scores = {"a": 1.0, "n": float(answers["n"] == "")}
    assert best_threshold(scores, answers, odds, {"a": True, "n": False}) == expected


def test_best_threshold_tie_takes_first() -> None:
    scores, answers = {"a": 1.0, "b": 0.0}, {"a": "x", "b": "y"}
    assert best_threshold(scores, answers, {"a": 1.0, "b": 3.0}, {"a": True, "b": True}) == (50.0, 1.0)
