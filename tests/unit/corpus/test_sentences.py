"""Splitting documents into sentences."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

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
        ('(Dr. Who) "Mr. Bean" “Mrs. Hall”', ['(Dr. Who) "Mr. Bean" “Mrs. Hall”']),
        ("I. Newton\nwrote.  He did.", ["I. Newton wrote.", "He did."]),
        ("Oh!? (Yes.)\tNo... \u00bfQué? ok", ["Oh!?", "(Yes.)", "No...", "\u00bfQué? ok"]),
        ("one\ttwo", ["one two"]),
        ("So did St! George. And al? Yes.", ["So did St!", "George.", "And al?", "Yes."]),
        ("Wait.\u00a0Here. — There.", ["Wait.", "Here. — There."]),
        ("In 1990. 1991 came.", ["In 1990.", "1991 came."]),
        ("1. First step. 2. Second.", ["1. First step.", "2. Second."]),
        ("Été. À demain.", ["Été.", "À demain."]),
        (
            "他来了。你好！「好。」走",
            ["他来了。", "你好！", "「好。」", "走"],
        ),
        # German: ordinals, months, quotation marks. "I am 23." is no ordinal.
        ("Am 3. Oktober 1990. Im 19. Jahrhundert. Er kam.", ["Am 3. Oktober 1990.", "Im 19. Jahrhundert.", "Er kam."]),
        ("Er hat bzw. Herr Nr. 5 hat. Gut.", ["Er hat bzw. Herr Nr. 5 hat.", "Gut."]),
        (
            "„Ja.“ Er ging. \u00bbNein.\u00ab Sie blieb.",
            ["„Ja.“", "Er ging.", "\u00bbNein.\u00ab", "Sie blieb."],
        ),
        ("I am 23. Smith is 3. 10. 1990.", ["I am 23.", "Smith is 3. 10. 1990."]),
        ("\u00ab Oui. \u00bb Il part. J.-P. Sartre vint.", ["\u00ab Oui. \u00bb", "Il part.", "J.-P. Sartre vint."]),
        ("En el 500 a. C. eran 5 m. Luego no.", ["En el 500 a. C. eran 5 m.", "Luego no."]),
        ("Im Jahr 49 v. Chr. waren es 5 m. Christen.", ["Im Jahr 49 v. Chr. waren es 5 m.", "Christen."]),
        # Text in lower case; a single small letter decides nothing in text with capitals.
        (
            "it rained. we left! why? nobody knew. e.g. you.",
            ["it rained.", "we left!", "why?", "nobody knew.", "e.g. you."],
        ),
        ("It rained. we Left.", ["It rained. we Left."]),
        ('He left (alone.) then "came." (so it goes) Yes.', ['He left (alone.) then "came." (so it goes) Yes.']),
        # Arabic, Urdu, Hebrew, Hindi, Armenian, Amharic, Burmese, Khmer, Korean, Georgian, Greek.
        (
            "قال نعم. ولم يعد؟ لا.",
            ["قال نعم.", "ولم يعد؟", "لا."],
        ),
        (
            "د. محمد قال. نعم",
            ["د. محمد قال.", "نعم"],
        ),
        (
            "یہ ہے۔ وہ ہے۔",
            ["یہ ہے۔", "وہ ہے۔"],
        ),
        (
            "הוא בא. היא הלכה.",
            ["הוא בא.", "היא הלכה."],
        ),
        (
            "वह आया।वह गया। डॉ. राम",
            [
                "वह आया।",
                "वह गया।",
                "डॉ. राम",
            ],
        ),
        (
            "Նա եկավ։ Նա գնաց։",
            ["Նա եկավ։", "Նա գնաց։"],
        ),
        ("መጣ። ሄደ።", ["መጣ።", "ሄደ።"]),
        ("လာ။ သွား။", ["လာ။", "သွား။"]),
        ("មក។ ទៅ។", ["មក។", "ទៅ។"]),
        (
            "그는 왔다. 나는 갔다.",
            ["그는 왔다.", "나는 갔다."],
        ),
        (
            "ის მოვიდა. ის წავიდა.",
            [
                "ის მოვიდა.",
                "ის წავიდა.",
            ],
        ),
        (
            "Τι κάνεις; Καλά; yes; No.",
            ["Τι κάνεις;", "Καλά; yes; No."],
        ),
        # Japanese: a quotation mark opens the next sentence; `?` without a blank.
        (
            "来た。「はい。」彼?行く",
            ["来た。", "「はい。」", "彼?", "行く"],
        ),
        ("「はい。」と彼。とても。", ["「はい。」と彼。", "とても。"]),
        # Armenian with a colon; Korean of one syllable; Russian "and so on".
        ("Նա եկավ: Ես՝ ոչ: այո", ["Նա եկավ:", "Ես՝ ոչ: այո"]),
        ("Note: This. 네. 그는 왔다.", ["Note: This.", "네.", "그는 왔다."]),
        ("Был т.д. Сад и т. п. Дом т. е. Лес.", ["Был т.д.", "Сад и т. п.", "Дом т. е. Лес."]),
        ("走。“好。”他", ["走。", "“好。”", "他"]),
        ("a line\nthat   goes\ton\n\nnew one", ["a line that goes on", "new one"]),
        ("Items:\n- one\n- two\n1. three\n(b) four", ["Items:", "- one", "- two", "1. three", "(b) four"]),
        ("", []),
        (" \n\n \n", []),
    ],
)
def test_document_is_split_into_sentences(document: str, sentences: list[str]) -> None:
    assert split_sentences(document) == sentences


SENTENCES_OF = defaultdict(list)
"""Language -> sentences, written for these tests, with titles, abbreviations, ordinals, numbers and quotations."""
for _line in Path(__file__).with_name("sentences_by_language.tsv").read_text(encoding="utf-8").splitlines():
    SENTENCES_OF[_line.split("\t")[0]].append(_line.split("\t")[1])


@pytest.mark.parametrize("language", SENTENCES_OF)
def test_sentences_of_language_are_found(language: str) -> None:
    sentences = SENTENCES_OF[language]
    text = ("" if language in {"ja", "zh"} else " ").join(sentences)
    assert split_sentences(text) == sentences == plain_sentences(text)


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
    "है",  # Hindi: is
    "डॉ",  # Dr
    "قال",  # Arabic verb
    "د",  # Dr
    "אמר",  # Hebrew
    "한국어",  # Korean
    "ภาษาไทย" * 5,  # Thai
    "е",  # Russian: a letter of an abbreviation
    "ул",  # street
    "т",  # Russian: т. д. is "and so on"
    "д",
    "Նա",  # Armenian: he
    "τι",  # Greek: what
    "არის",  # Georgian
    "am",
    "3",
    "Oktober",
    "bzw",
    "a",
]
SIGNS_OF_THE_WORLD = [
    ": ",
    "፧ ",
    "᠃",
    "܂ ",
    "。」と",
    "।",
    "। ",
    "؟",
    "؟ ",
    "۔ ",
    "։ ",
    "።",
    "។",
    "။",
    "｡",
    "; ",
    ". ",
    ". ",
    "! ",
    "? ",
    "\u00ab",
    " \u00bb ",
    "\u00bb ",
    "„",
    "، ",
    "（",
    "）",
]
BEYOND_ASCII = [
    "É",
    "été",
    "Ж",
    "ж",
    "٣",
    "你好",
    "テ",
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
    "…",
    '"',
    "'",
    ")",
    "(",
    "[",
    "]",
    "‘",
    "’",
    "“",
    "”",
    "—",
]
WIDE_SIGNS = ["。", "！", "？", "「", "」", "』", "\u00bf", "\u00a1", "•"]
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
