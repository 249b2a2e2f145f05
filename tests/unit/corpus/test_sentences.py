"""Splitting documents into sentences."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from plain_sentences import plain_sentences

from train_jobs.config.prepare import CleanConfig
from train_jobs.corpus.steps.document_rules import clean
from train_jobs.corpus.tokenize.pretokens import pretoken_starts, with_ascii_blanks
from train_jobs.corpus.tokenize.sentences import DOCUMENT_SEPARATOR, MAX_WORDS, sentence_starts, split_sentences


@pytest.mark.parametrize(
    ("document", "sentences"),
    [
        ("One here. Two there! Three?", ["One here.", "Two there!", "Three?"]),
        ("Dr. Who met Mr. Bean. They spoke.", ["Dr. Who met Mr. Bean.", "They spoke."]),
        ("Use fruit, e.g. Apples, i.e. Food. Eat.", ["Use fruit, e.g. Apples, i.e. Food.", "Eat."]),
        ("J. R. R. Tolkien wrote. He did.", ["J. R. R. Tolkien wrote.", "He did."]),
        ("It was I. Nobody else.", ["It was I.", "Nobody else."]),
        ("Yes. I. Nobody else.", ["Yes.", "I.", "Nobody else."]),
        ("By 5.\n\nI. Newton came.", ["By 5.", "I. Newton came."]),
        ("At 3\u00a0p.m. They met St.\u00a0Peter.", ["At 3 p.m. They met St. Peter."]),
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
def test_document_is_split_into_sentences(document: str, sentences: list[str]) -> None:
    assert split_sentences(document) == sentences


def test_text_without_stops_is_cut_without_loss() -> None:
    words = [f"w{n}" for n in range(2 * MAX_WORDS + 7)]
    sentences = split_sentences(" ".join(words))
    assert [len(sentence.split()) for sentence in sentences] == [MAX_WORDS, MAX_WORDS, 7]
    assert " ".join(sentences).split() == words


def test_long_sentence_between_others_is_cut() -> None:
    words = [f"w{n}" for n in range(MAX_WORDS + 7)]
    sentences = split_sentences(f"First. X{' '.join(words)}. Last one.")
    assert [len(sentence.split()) for sentence in sentences] == [1, MAX_WORDS, 7, 2]


WORDS = ["word", "Word", "it", "I", "no", "No", "Dr", "e.g", "U.S", "J", "x", "Nos", "approx", "5", "12", "2b", "A1"]
BEYOND_ASCII = [
    "\u00c9",
    "\u00e9t\u00e9",
    "\u0416",
    "\u0436",
    "\u0663",
    "\u4f60\u597d",
    "\u30c6",
    "\u00b2",
    "\U0001d400",
]
SIGNS = [
    ".",
    ".",
    ".",
    ".",
    "!",
    "?",
    "...",
    "\u2026",
    '"',
    "'",
    ")",
    "(",
    "[",
    "]",
    "\u2018",
    "\u2019",
    "\u201c",
    "\u201d",
    "\u2014",
]
WIDE_SIGNS = ["\u3002", "\uff01", "\uff1f", "\u300c", "\u300d", "\u300f", "\u00bf", "\u00a1", "\u2022"]
BLANKS = [
    " ",
    " ",
    " ",
    "\n",
    "\n\n",
    "  ",
    "\t",
    "\n \n",
    "\u00a0",
    "\u3000",
    "\u2003 ",
    "\n- ",
    "\n1. ",
    "\n(b) ",
    "\na) ",
]


def random_document(draw: random.Random) -> str:
    kinds = [WORDS, WORDS, SIGNS, SIGNS, BLANKS, BLANKS, BLANKS, draw.choice([WORDS, BEYOND_ASCII]), WIDE_SIGNS]
    return "".join(draw.choice(draw.choice(kinds[: draw.choice([7, 9])])) for _ in range(draw.randrange(40)))


@pytest.mark.parametrize("seed", range(2))
def test_sentences_match_reference_implementation(seed: int) -> None:
    draw = random.Random(seed)
    drawn = [random_document(draw) for _ in range(2000)]
    documents = [document for text in drawn for document in clean(text, CleanConfig())]
    for document in documents:
        assert split_sentences(document) == plain_sentences(document), ascii(document)


def test_batched_documents_match_single_ones() -> None:
    draw = random.Random(7)
    documents = [document for _ in range(300) for document in clean(random_document(draw), CleanConfig())]
    raw = [document.encode() + DOCUMENT_SEPARATOR for document in documents]
    text = with_ascii_blanks(b"".join(raw))
    starts = pretoken_starts(text)
    places = [*starts[sentence_starts(text, starts)].tolist(), len(text)]
    found = [" ".join(text[start:end].decode().split()) for start, end in pairwise(places)]
    assert [sentence for sentence in found if sentence] == [
        sentence for document in documents for sentence in plain_sentences(document)
    ]
