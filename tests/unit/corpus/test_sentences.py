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
        # German: ordinals, months, quotation marks. "I am 23." is no ordinal.
        ("Am 3. Oktober 1990. Im 19. Jahrhundert. Er kam.", ["Am 3. Oktober 1990.", "Im 19. Jahrhundert.", "Er kam."]),
        ("Er hat bzw. Herr Nr. 5 hat. Gut.", ["Er hat bzw. Herr Nr. 5 hat.", "Gut."]),
        (
            "\u201eJa.\u201c Er ging. \u00bbNein.\u00ab Sie blieb.",
            ["\u201eJa.\u201c", "Er ging.", "\u00bbNein.\u00ab", "Sie blieb."],
        ),
        ("I am 23. Smith is 3. 10. 1990.", ["I am 23.", "Smith is 3. 10. 1990."]),
        ("\u00ab Oui. \u00bb Il part. J.-P. Sartre vint.", ["\u00ab Oui. \u00bb", "Il part.", "J.-P. Sartre vint."]),
        ("En el 500 a. C. eran 5 m. Luego no.", ["En el 500 a. C. eran 5 m.", "Luego no."]),
        # Text in lower case; a single small letter decides nothing in text with capitals.
        (
            "it rained. we left! why? nobody knew. e.g. you.",
            ["it rained.", "we left!", "why?", "nobody knew.", "e.g. you."],
        ),
        ("It rained. we Left.", ["It rained. we Left."]),
        ('He left (alone.) then "came." (so it goes) Yes.', ['He left (alone.) then "came." (so it goes) Yes.']),
        # Arabic, Urdu, Hebrew, Hindi, Armenian, Amharic, Burmese, Khmer, Korean, Georgian, Greek.
        (
            "\u0642\u0627\u0644 \u0646\u0639\u0645. \u0648\u0644\u0645 \u064a\u0639\u062f\u061f \u0644\u0627.",
            ["\u0642\u0627\u0644 \u0646\u0639\u0645.", "\u0648\u0644\u0645 \u064a\u0639\u062f\u061f", "\u0644\u0627."],
        ),
        (
            "\u062f. \u0645\u062d\u0645\u062f \u0642\u0627\u0644. \u0646\u0639\u0645",
            ["\u062f. \u0645\u062d\u0645\u062f \u0642\u0627\u0644.", "\u0646\u0639\u0645"],
        ),
        (
            "\u06cc\u06c1 \u06c1\u06d2\u06d4 \u0648\u06c1 \u06c1\u06d2\u06d4",
            ["\u06cc\u06c1 \u06c1\u06d2\u06d4", "\u0648\u06c1 \u06c1\u06d2\u06d4"],
        ),
        (
            "\u05d4\u05d5\u05d0 \u05d1\u05d0. \u05d4\u05d9\u05d0 \u05d4\u05dc\u05db\u05d4.",
            ["\u05d4\u05d5\u05d0 \u05d1\u05d0.", "\u05d4\u05d9\u05d0 \u05d4\u05dc\u05db\u05d4."],
        ),
        (
            "\u0935\u0939 \u0906\u092f\u093e\u0964\u0935\u0939 \u0917\u092f\u093e\u0964 \u0921\u0949. \u0930\u093e\u092e",
            [
                "\u0935\u0939 \u0906\u092f\u093e\u0964",
                "\u0935\u0939 \u0917\u092f\u093e\u0964",
                "\u0921\u0949. \u0930\u093e\u092e",
            ],
        ),
        (
            "\u0546\u0561 \u0565\u056f\u0561\u057e\u0589 \u0546\u0561 \u0563\u0576\u0561\u0581\u0589",
            ["\u0546\u0561 \u0565\u056f\u0561\u057e\u0589", "\u0546\u0561 \u0563\u0576\u0561\u0581\u0589"],
        ),
        ("\u1218\u1323\u1362 \u1204\u12f0\u1362", ["\u1218\u1323\u1362", "\u1204\u12f0\u1362"]),
        ("\u101c\u102c\u104b \u101e\u103d\u102c\u1038\u104b", ["\u101c\u102c\u104b", "\u101e\u103d\u102c\u1038\u104b"]),
        ("\u1798\u1780\u17d4 \u1791\u17c5\u17d4", ["\u1798\u1780\u17d4", "\u1791\u17c5\u17d4"]),
        (
            "\uadf8\ub294 \uc654\ub2e4. \ub098\ub294 \uac14\ub2e4.",
            ["\uadf8\ub294 \uc654\ub2e4.", "\ub098\ub294 \uac14\ub2e4."],
        ),
        (
            "\u10d8\u10e1 \u10db\u10dd\u10d5\u10d8\u10d3\u10d0. \u10d8\u10e1 \u10ec\u10d0\u10d5\u10d8\u10d3\u10d0.",
            [
                "\u10d8\u10e1 \u10db\u10dd\u10d5\u10d8\u10d3\u10d0.",
                "\u10d8\u10e1 \u10ec\u10d0\u10d5\u10d8\u10d3\u10d0.",
            ],
        ),
        (
            "\u03a4\u03b9 \u03ba\u03ac\u03bd\u03b5\u03b9\u03c2; \u039a\u03b1\u03bb\u03ac; yes; No.",
            ["\u03a4\u03b9 \u03ba\u03ac\u03bd\u03b5\u03b9\u03c2;", "\u039a\u03b1\u03bb\u03ac; yes; No."],
        ),
        # Japanese: a quotation mark opens the next sentence; `?` without a blank.
        (
            "\u6765\u305f\u3002\u300c\u306f\u3044\u3002\u300d\u5f7c?\u884c\u304f",
            ["\u6765\u305f\u3002", "\u300c\u306f\u3044\u3002\u300d", "\u5f7c?", "\u884c\u304f"],
        ),
        ("\u8d70\u3002\u201c\u597d\u3002\u201d\u4ed6", ["\u8d70\u3002", "\u201c\u597d\u3002\u201d", "\u4ed6"]),
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
WORDS_OF_THE_WORLD = [
    "\u0939\u0948",  # Hindi: is
    "\u0921\u0949",  # Dr
    "\u0642\u0627\u0644",  # Arabic: said
    "\u062f",  # Dr
    "\u05d0\u05de\u05e8",  # Hebrew
    "\ud55c\uad6d\uc5b4",  # Korean
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22" * 5,  # Thai
    "\u0435",  # Russian: a letter of an abbreviation
    "\u0443\u043b",  # street
    "\u03c4\u03b9",  # Greek: what
    "\u10d0\u10e0\u10d8\u10e1",  # Georgian
    "am",
    "3",
    "Oktober",
    "bzw",
    "a",
]
SIGNS_OF_THE_WORLD = [
    "\u0964",
    "\u0964 ",
    "\u061f",
    "\u061f ",
    "\u06d4 ",
    "\u0589 ",
    "\u1362",
    "\u17d4",
    "\u104b",
    "\uff61",
    "; ",
    ". ",
    ". ",
    "! ",
    "? ",
    "\u00ab",
    " \u00bb ",
    "\u00bb ",
    "\u201e",
    "\u060c ",
    "\uff08",
    "\uff09",
]
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


def random_document_of_the_world(draw: random.Random) -> str:
    kinds = [
        WORDS_OF_THE_WORLD,
        SIGNS_OF_THE_WORLD,
        [" "],
        draw.choice([BLANKS, WIDE_SIGNS, BEYOND_ASCII, SIGNS, [" "]]),
    ]
    return "".join(draw.choice(draw.choice(kinds)) for _ in range(draw.randrange(60)))


@pytest.mark.parametrize("seed", range(2))
def test_sentences_of_all_scripts_follow_the_rules(seed: int) -> None:
    draw = random.Random(seed)
    drawn = [random_document_of_the_world(draw) for _ in range(2000)]
    documents = [document for text in drawn for document in clean(text, CleanConfig())]
    for document in documents:
        assert split_sentences(document) == plain_sentences(document), ascii(document)


@pytest.mark.parametrize("seed", range(2))
def test_sentences_match_reference_implementation(seed: int) -> None:
    draw = random.Random(seed)
    drawn = [random_document(draw) for _ in range(2000)]
    documents = [document for text in drawn for document in clean(text, CleanConfig())]
    for document in documents:
        assert split_sentences(document) == plain_sentences(document), ascii(document)


def test_batched_documents_match_single_ones() -> None:
    draw = random.Random(7)
    drawn = [make(draw) for _ in range(300) for make in (random_document, random_document_of_the_world)]
    documents = [document for text in drawn for document in clean(text, CleanConfig())]
    raw = [document.encode() + DOCUMENT_SEPARATOR for document in documents]
    text = with_ascii_blanks(b"".join(raw))
    starts = pretoken_starts(text)
    places = [*starts[sentence_starts(text, starts)].tolist(), len(text)]
    found = [" ".join(text[start:end].decode().split()) for start, end in pairwise(places)]
    assert [sentence for sentence in found if sentence] == [
        sentence for document in documents for sentence in plain_sentences(document)
    ]
