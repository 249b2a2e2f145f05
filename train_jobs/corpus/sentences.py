"""Documents in, sentences out, by rule: good enough to cut training sequences at, and with nothing to install."""

from __future__ import annotations

import re
from collections.abc import Iterator

SPLITTER = "rules 2"  # name and version: raise it when anything is cut elsewhere
MAX_WORDS = 256  # text without full stops is cut here; one endless sentence would make one training example

_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=[ \t]*(?:[-*+\u2022]|\(?\d{1,3}[.)]|\(?[a-z][.)])[ \t])")
_WIDE = "\u3002\uff01\uff1f"
_CLOSERS = "\u300d\u300f\u201d\u2019\"')"
_WIDE_STOP = re.compile(f"(?<=[{_WIDE}])(?![{_WIDE}{_CLOSERS}])|(?<=[{_WIDE}][{_CLOSERS}])")
_STOP = re.compile("([.!?\u2026]+)[\"'\u2019\u201d)\\]]*\\s+(?=[^a-z])")  # whether a capital follows is asked then
_OPENERS = "\"'\u2018\u201c([\u00a1\u00bf"
_BEFORE_WORD = "(['\"\u2018\u201c"
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")  # an initial; e.g, i.e, U.S, a.m
_ABBREVIATED = (
    "mr mrs ms dr prof st sr jr rev gen col capt lt sgt hon gov sen rep messrs mme mlle"
    " vs cf al ca approx nos vol fig figs eq sec ch pp ed eds dept univ bros mt"
    " jan feb mar apr jun jul aug sep sept oct nov dec"
)
_ABBREVIATIONS = frozenset(_ABBREVIATED.split())
_NUMBER = "no"  # `No. 5`, but `No. They`


def split_sentences(document: str) -> list[str]:
    """Cuts a document into sentences, lines joined and blanks squeezed; empty ones never occur.

    A sentence ends at `.`, `!`, `?` or an ellipsis that is followed by white space and a capital, a digit or an
    opening quote, unless the full stop belongs to an abbreviation (`Dr.`, `e.g.`, an initial); at the full stops of
    Chinese and Japanese; at a blank line; before a list item; and after 256 words.
    """
    sentences: list[str] = []
    for paragraph in _PARAGRAPH.split(document):
        text = paragraph.replace("\n", " ").strip()
        if "  " in text or "\t" in text:
            text = " ".join(text.split())
        for part in _at_wide_stops(text):
            for sentence in _at_stops(part):
                if len(sentence) < 2 * MAX_WORDS:  # so fewer words
                    sentences.append(sentence)
                else:
                    sentences += _bounded(sentence)
    return [sentence for sentence in sentences if sentence]


def _at_wide_stops(text: str) -> list[str]:
    return [text] if text.isascii() or not any(stop in text for stop in _WIDE) else _WIDE_STOP.split(text)


def _at_stops(text: str) -> Iterator[str]:
    start = 0
    for match in _STOP.finditer(text):
        stop, end = match.start(), match.end()
        numbered = text[start:stop].isdigit()  # `1. First item`
        if not numbered and _opens_sentence(text[end]) and not (match[1] == "." and _is_abbreviation(text, stop, end)):
            yield text[start:end].rstrip()
            start = end
    yield text[start:].strip()


def _opens_sentence(first: str) -> bool:
    return first.isupper() or first.isdigit() or first in _OPENERS


def _is_abbreviation(text: str, stop: int, end: int) -> bool:
    """Whether the full stop at `stop`, behind which text goes on at `end`, belongs to the word before it."""
    blank = text.rfind(" ", 0, stop)
    word = text[blank + 1 : stop].lstrip(_BEFORE_WORD)
    lower = word.lower()
    if lower == _NUMBER:
        return text[end].isdigit()
    if lower in _ABBREVIATIONS:
        return True
    return _INITIALS.fullmatch(word) is not None and not (word == "I" and blank > 0)  # `It was I.` ends


def _bounded(sentence: str) -> Iterator[str]:
    words = sentence.split()
    for start in range(0, len(words), MAX_WORDS):
        yield " ".join(words[start : start + MAX_WORDS])
