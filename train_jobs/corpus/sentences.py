"""Documents in, sentences out, by rule: good enough to cut training sequences at, and with nothing to install."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache

SPLITTER = "rules 2"  # name and version: raise it when anything is cut elsewhere
MAX_WORDS = 256  # text without full stops is cut here; one endless sentence would make one training example
SURELY_BOUNDED = 2 * MAX_WORDS  # characters: fewer hold no more words than that

_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=[ \t]*(?:[-*+\u2022]|\(?\d{1,3}[.)]|\(?[a-z][.)])[ \t])")
_WIDE = "\u3002\uff01\uff1f"
_CLOSERS = "\u300d\u300f\u201d\u2019\"')"
_WIDE_STOP = re.compile(f"(?<=[{_WIDE}])(?![{_WIDE}{_CLOSERS}])|(?<=[{_WIDE}][{_CLOSERS}])")
_STOPS = ".!?\u2026"
_OPENERS = "\"'\u2018\u201c([\u00a1\u00bf"
# A single sign first: that is what `re` looks for fast. Beyond ASCII, whether a capital follows is asked then.
_STOP = re.compile(f"[{_STOPS}][\"'\u2019\u201d)\\]]*(\\s+)(?=[A-Z0-9\"'(\\[]|[^\x00-\x7f])")
_BEFORE_WORD = "(['\"\u2018\u201c"
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")  # an initial; e.g, i.e, U.S, a.m
_ABBREVIATED = (
    "mr mrs ms dr prof st sr jr rev gen col capt lt sgt hon gov sen rep messrs mme mlle"
    " vs cf al ca approx nos vol fig figs eq sec ch pp ed eds dept univ bros mt"
    " jan feb mar apr jun jul aug sep sept oct nov dec"
)
_ABBREVIATIONS = frozenset(_ABBREVIATED.split())
_NUMBER = "no"


def split_sentences(document: str) -> list[str]:
    """Cuts a document into sentences, lines joined and blanks squeezed; empty ones never occur.

    A sentence ends at `.`, `!`, `?` or an ellipsis that is followed by white space and a capital, a digit or an
    opening quote, unless the full stop belongs to an abbreviation (`Dr.`, `e.g.`, an initial); at the full stops of
    Chinese and Japanese; at a blank line; before a list item; and after 256 words.
    """
    sentences: list[str] = []
    for paragraph in _PARAGRAPH.split(document):
        text = paragraph.replace("\n", " ")
        if "  " in text or "\t" in text:
            text = " ".join(text.split())
        for part in [text] if text.isascii() else _at_wide_stops(text):
            if part := part.strip():
                _add(part, sentences)
    return sentences


def _at_wide_stops(text: str) -> list[str]:
    return _WIDE_STOP.split(text) if any(stop in text for stop in _WIDE) else [text]


def _add(text: str, sentences: list[str]) -> None:
    """Cuts text without white space at its ends at its stops. One long function: calls would cost half of the time."""
    start = 0
    for match in _STOP.finditer(text):
        stop, (end, after) = match.start(), match.span(1)
        first = text[after]
        if first > "\x7f" and not (first.isupper() or first.isdigit() or first in _OPENERS):
            continue
        blank = text.rfind(" ", 0, stop)
        kind = _kind(text[blank + 1 : stop + 1])
        if kind is not None and (
            kind is _Kind.ABBREVIATION
            or (kind is _Kind.NUMBER and first.isdigit())
            or (kind is _Kind.PRONOUN and blank < 1)
            or (kind is _Kind.DIGITS and blank < start)
        ):
            continue
        sentence = text[start:end]
        if len(sentence) < SURELY_BOUNDED:
            sentences.append(sentence)
        else:
            sentences += _bounded(sentence)
        start = after
    sentences += _bounded(text[start:])


class _Kind(Enum):
    """What a word with a stop at its end says about it."""

    ABBREVIATION = auto()
    """It ends no sentence."""
    NUMBER = auto()
    """Nor if a number follows: `No. 5`, but `No. They`."""
    PRONOUN = auto()
    """Nor where text begins: `I. Newton`, but `It was I. Nobody else`."""
    DIGITS = auto()
    """Nor where a sentence begins: `1. First item`."""


@lru_cache(maxsize=1 << 16)
def _kind(word: str) -> _Kind | None:
    """None: it ends one."""
    bare = word.rstrip(_STOPS)
    if bare.isdigit():
        return _Kind.DIGITS
    if word != f"{bare}.":
        return None
    bare = bare.lstrip(_BEFORE_WORD)
    if bare == "I":
        return _Kind.PRONOUN
    if bare.lower() == _NUMBER:
        return _Kind.NUMBER
    return _Kind.ABBREVIATION if bare.lower() in _ABBREVIATIONS or _INITIALS.fullmatch(bare) else None


def _bounded(sentence: str) -> list[str]:
    if len(sentence) < SURELY_BOUNDED:
        return [sentence]
    words = sentence.split()
    return [" ".join(words[start : start + MAX_WORDS]) for start in range(0, len(words), MAX_WORDS)]
