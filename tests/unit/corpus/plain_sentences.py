"""A reference implementation of the rules of `train_jobs.corpus.tokenize.sentences` for clean text."""

from __future__ import annotations

import re

from train_jobs.corpus.tokenize.sentences import StopKind, stop_kind

MAX_WORDS = 256
PARAGRAPH = re.compile(r"\n[ \t]*\n|\n(?=[ \t]*(?:[-*+\u2022]|\(?[0-9]{1,3}[.)]|\(?[a-z][.)])[ \t])")
RARE_BLANK = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
WIDE = "\u3002\uff01\uff1f"
WIDE_CLOSERS = "\u300d\u300f\u201d\u2019\"')"
WIDE_STOP = re.compile(f"(?<=[{WIDE}])(?![{WIDE}{WIDE_CLOSERS}])|(?<=[{WIDE}][{WIDE_CLOSERS}])")
STOP = re.compile("[.!?\u2026][\"'\u2019\u201d)\\]]{0,8} (?=(.))")
OPENERS = "\"'\u2018\u201c([\u00a1\u00bf"


def plain_sentences(document: str) -> list[str]:
    """Return the sentences of a clean document with collapsed blanks."""
    text = RARE_BLANK.sub(" ", document)
    paragraphs = [" ".join(paragraph.split()) for paragraph in PARAGRAPH.split(text)]
    parts = [part.strip() for paragraph in paragraphs for part in WIDE_STOP.split(paragraph)]
    return [sentence for part in parts if part for sentence in cut(part)]


def cut(text: str) -> list[str]:
    """Cut text without line ends at its stops and after `MAX_WORDS` words."""
    found, start = [], 0
    for match in STOP.finditer(text):
        first = match[1]
        begins = first.isupper() or first.isdigit() or first in OPENERS
        if begins and is_end(text, start, match.start(), first):
            found.append(text[start : match.end()].split())
            start = match.end()
    found.append(text[start:].split())
    return [" ".join(words[at : at + MAX_WORDS]) for words in found for at in range(0, len(words), MAX_WORDS)]


def is_end(text: str, start: int, stop: int, first: str) -> bool:
    """Return whether the sentence from `start` ends at the stop; `first` is the first character after it."""
    blank = text.rfind(" ", 0, stop)
    kind = stop_kind(text[blank + 1 : stop + 1].encode())
    return not (
        kind is StopKind.ABBREVIATION
        or (kind is StopKind.NUMBER and first.isdigit())
        or (kind is StopKind.PRONOUN and blank < 0)
        or (kind is StopKind.DIGITS and blank < start)
    )
