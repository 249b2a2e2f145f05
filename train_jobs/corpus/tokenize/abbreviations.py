"""Words whose full stop ends no sentence, or not everywhere."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache

_STOPS = ".!?\u2026"
_BEFORE_WORD = "(['\"\u2018\u201c"
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")  # an initial; e.g, i.e, U.S, a.m
_WORDS = (
    "mr mrs ms dr prof st sr jr rev gen col capt lt sgt hon gov sen rep messrs mme mlle"
    " vs cf al ca approx nos vol fig figs eq sec ch pp ed eds dept univ bros mt"
    " jan feb mar apr jun jul aug sep sept oct nov dec"
)
_NUMBER = "no"
_ABBREVIATIONS = frozenset(_WORDS.split())
ABBREVIATED = _ABBREVIATIONS | {_NUMBER}  # all but initials


class Kind(Enum):
    """What a word with a stop at its end says about it."""

    ABBREVIATION = auto()
    """It ends no sentence."""
    NUMBER = auto()
    """Nor if a number follows: `No. 5`, but `No. They`."""
    PRONOUN = auto()
    """Nor where a paragraph begins: `I. Newton`, but `It was I. Nobody else`."""
    DIGITS = auto()
    """Nor where a sentence begins: `1. First item`."""


@lru_cache(maxsize=1 << 16)
def kind_of(word: bytes) -> Kind | None:
    """Of a word in UTF-8, with all that stands beside it, up to a stop; None: that ends a sentence."""
    text = word.decode(errors="replace")
    bare = text.rstrip(_STOPS)
    if bare.isdigit():
        return Kind.DIGITS
    if text != f"{bare}.":
        return None
    bare = bare.lstrip(_BEFORE_WORD)
    if bare == "I":
        return Kind.PRONOUN
    if bare.lower() == _NUMBER:
        return Kind.NUMBER
    return Kind.ABBREVIATION if bare.lower() in _ABBREVIATIONS or _INITIALS.fullmatch(bare) else None
