"""Documents in, sentences out, by rule: good enough to cut training sequences at, and with nothing to install."""

from __future__ import annotations

import re
from collections.abc import Iterator

SPLITTER = "rules 1"  # goes into the keys of stores: raise it with every change of what comes out
MAX_WORDS = 256  # text without full stops is cut here; one endless sentence would make one training example

_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=[ \t]*(?:[-*+\u2022]|\(?\d{1,3}[.)]|\(?[a-z][.)])[ \t])")
_WIDE = "\u3002\uff01\uff1f"
_CLOSERS = "\u300d\u300f\u201d\u2019\"')"
_WIDE_STOP = re.compile(f"(?<=[{_WIDE}])(?![{_WIDE}{_CLOSERS}])|(?<=[{_WIDE}][{_CLOSERS}])")
_STOP = re.compile("(?P<stop>[.!?\u2026]+)[\"'\u2019\u201d)\\]]*\\s+")
_OPENERS = "\"'\u2018\u201c([\u00a1\u00bf"
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[\"'])"
    r"(?:[^\W\d_]|(?:[^\W\d_]\.)+[^\W\d_]"  # an initial; e.g, i.e, U.S, a.m
    r"|mr|mrs|ms|dr|prof|st|sr|jr|rev|gen|col|capt|lt|sgt|hon|gov|sen|rep|messrs|mme|mlle"
    r"|vs|cf|al|ca|approx|nos|vol|fig|figs|eq|sec|ch|pp|ed|eds|dept|univ|bros|mt"
    r"|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)$",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?:^|\W)no$", re.IGNORECASE)  # `No. 5`, but `No. They`
_LONGEST_ABBREVIATION = 16


def split_sentences(document: str) -> list[str]:
    """Cuts a document into sentences, white space squeezed; empty ones never occur.

    A sentence ends at `.`, `!`, `?` or an ellipsis that is followed by white space and a capital, a digit or an
    opening quote, unless the full stop belongs to an abbreviation (`Dr.`, `e.g.`, an initial); at the full stops of
    Chinese and Japanese; at a blank line; before a list item; and after 256 words.
    """
    sentences: list[str] = []
    for paragraph in _PARAGRAPH.split(document):
        for part in _WIDE_STOP.split(" ".join(paragraph.split())):
            for sentence in _at_stops(part):
                sentences += _bounded(sentence)
    return sentences


def _at_stops(text: str) -> Iterator[str]:
    start = 0
    for match in _STOP.finditer(text):
        numbered = text[start : match.start()].isdigit()  # `1. First item`
        if not numbered and _opens_sentence(text, match.end()) and not _is_abbreviation(text, match):
            yield text[start : match.end()]
            start = match.end()
    yield text[start:]


def _opens_sentence(text: str, at: int) -> bool:
    first = text[at : at + 1]
    return first.isupper() or first.isdigit() or (first != "" and first in _OPENERS)


def _is_abbreviation(text: str, match: re.Match[str]) -> bool:
    if match["stop"] != ".":
        return False
    before = text[max(0, match.start() - _LONGEST_ABBREVIATION) : match.start()]
    if _NUMBER.search(before):
        return text[match.end()].isdigit()
    return _ABBREVIATION.search(before) is not None and not before.endswith(" I")  # `It was I.` ends


def _bounded(sentence: str) -> Iterator[str]:
    words = sentence.split()
    for start in range(0, len(words), MAX_WORDS):
        yield " ".join(words[start : start + MAX_WORDS])
