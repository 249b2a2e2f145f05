"""Documents in, sentences out."""

from __future__ import annotations

import pytest

from train_jobs.corpus.sentences import MAX_WORDS, split_sentences


@pytest.mark.parametrize(
    ("document", "sentences"),
    [
        ("One here. Two there! Three?", ["One here.", "Two there!", "Three?"]),
        ("Dr. Who met Mr. Bean. They spoke.", ["Dr. Who met Mr. Bean.", "They spoke."]),
        ("Use fruit, e.g. Apples, i.e. Food. Eat.", ["Use fruit, e.g. Apples, i.e. Food.", "Eat."]),
        ("J. R. R. Tolkien wrote. He did.", ["J. R. R. Tolkien wrote.", "He did."]),
        ("It was I. Nobody else.", ["It was I.", "Nobody else."]),
        ("Good vs. Evil, see Fig. 3. Fine.", ["Good vs. Evil, see Fig. 3.", "Fine."]),
        ("No. 5 is alive. No. They went.", ["No. 5 is alive.", "No.", "They went."]),
        ("Pi is 3.14 or so. version 2.0 is out.", ["Pi is 3.14 or so. version 2.0 is out."]),
        ('He said "Go." "Why?" she asked.', ['He said "Go."', '"Why?" she asked.']),
        ("It was the boss's. They left.", ["It was the boss's.", "They left."]),
        ('(Dr. Who) "Mr. Bean" \u201cMrs. Hall\u201d', ['(Dr. Who) "Mr. Bean" \u201cMrs. Hall\u201d']),
        ("I. Newton\nwrote.  He did.", ["I. Newton wrote.", "He did."]),
        ("Oh!? (Yes.)\tNo... \u00bfQu\u00e9? ok", ["Oh!?", "(Yes.)", "No...", "\u00bfQu\u00e9? ok"]),
        ("one\ttwo", ["one two"]),
        ("So did St! George. And al? Yes.", ["So did St!", "George.", "And al?", "Yes."]),
        ("Wait.\u00a0Here. \u2014 There.", ["Wait.", "Here. \u2014 There."]),
        ("In 1990. 1991 came.", ["In 1990.", "1991 came."]),
        ("1. First step. 2. Second.", ["1. First step.", "2. Second."]),
        ("\u00c9t\u00e9. \u00c0 demain.", ["\u00c9t\u00e9.", "\u00c0 demain."]),
        (
            "\u4ed6\u6765\u4e86\u3002\u4f60\u597d\uff01\u300c\u597d\u3002\u300d\u8d70",
            ["\u4ed6\u6765\u4e86\u3002", "\u4f60\u597d\uff01", "\u300c\u597d\u3002\u300d", "\u8d70"],
        ),
        ("a line\nthat   goes\ton\n\nnew one", ["a line that goes on", "new one"]),
        ("Items:\n- one\n- two\n1. three\n(b) four", ["Items:", "- one", "- two", "1. three", "(b) four"]),
        ("", []),
        (" \n\n \n", []),
    ],
)
def test_sentences(document: str, sentences: list[str]) -> None:
    assert split_sentences(document) == sentences


def test_text_without_full_stops_is_cut_and_no_word_is_lost() -> None:
    words = [f"w{n}" for n in range(2 * MAX_WORDS + 7)]
    sentences = split_sentences(" ".join(words))
    assert [len(sentence.split()) for sentence in sentences] == [MAX_WORDS, MAX_WORDS, 7]
    assert " ".join(sentences).split() == words
