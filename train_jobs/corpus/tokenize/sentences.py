"""Documents in, sentences out, by rule: good enough to cut training sequences at, and with nothing to install.

A sentence ends at `.`, `!`, `?` or an ellipsis that is followed by white space and a capital, a digit or an opening
quote, unless the full stop belongs to an abbreviation (`Dr.`, `e.g.`, an initial); at the full stops of Chinese and
Japanese; at a blank line; before a list item; and after 256 words.

Numpy finds the stops of many documents at once and decides most of them. Python looks at the others: one of ten in
English, those beside letters beyond ASCII elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from train_jobs.corpus.tokenize.abbreviations import ABBREVIATED, Kind, kind_of
from train_jobs.corpus.tokenize.pretokens import Offsets, pretoken_starts, with_plain_blanks

SPLITTER = "rules 3"  # name and version: raise it when anything is cut elsewhere
MAX_WORDS = 256  # text without full stops is cut here; one endless sentence would make one training example
BETWEEN = b"\n\n"  # documents

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

SENTENCE, PARAGRAPH = 1, 2  # what begins at a byte
_PADDING = bytes(8)  # so that what is read ahead of the last bytes is there
_MOST_CLOSERS = 8  # behind a stop: one with more of them is passed over
_BEHIND = 64  # bytes that are looked at for the word before a stop
_LONGEST_CHARACTER = 4  # bytes
_NEWLINE, _FIRST_BEYOND_ASCII, _LEAD_OF_SIGNS = ord("\n"), 0x80, 0xE2
_OPENERS = "\"'\u2018\u201c(["
_RARER_OPENERS = "\u00a1\u00bf"

_PARAGRAPH = re.compile(rb"\n(?:[ \t]*\n|[ \t]*(?:[-*+]|\xe2\x80\xa2|\(?\d{1,3}[.)]|\(?[a-z][.)])[ \t])")
_WIDE = rb"(?:\xe3\x80\x82|\xef\xbc[\x81\x9f])"  # the full stop, the exclamation and the question mark
_WIDE_CLOSER = rb"(?:\xe3\x80[\x8d\x8f]|\xe2\x80[\x99\x9d]|[\"')])"
_WIDE_STOP = re.compile(b"%b(?:%b|(?!%b))" % (_WIDE, _WIDE_CLOSER, _WIDE))


def split_sentences(document: str) -> list[str]:
    """The sentences of a clean document, lines joined and blanks squeezed; empty ones never occur."""
    text = with_plain_blanks(document.encode())
    starts = pretoken_starts(text)
    places = [*starts[sentence_starts(text, starts)].tolist(), len(text)]
    found = [" ".join(text[start:end].decode().split()) for start, end in pairwise(places)]
    return [sentence for sentence in found if sentence]


def sentence_starts(text: bytes, starts: Offsets) -> Offsets:
    """Where sentences begin.

    Args:
        text: UTF-8, clean (see `clean`) and as of `with_plain_blanks`; between documents it has `BETWEEN`.
        starts: [pre-tokens] where its pre-tokens start, as of `pretoken_starts`.

    Returns:
        [sentences] the numbers of the pre-tokens that begin one, ascending; if there are any, the first is 0.
    """
    if not len(starts):
        return starts
    raw = np.frombuffer(text + _PADDING, np.uint8)
    marks = np.zeros(len(text), np.uint8)
    _mark_sentences(text, raw, starts, marks, paragraphs=_paragraphs(text, raw, starts))
    return _bounded(raw, starts, np.flatnonzero(marks[starts]))


def _paragraphs(text: bytes, raw: Bytes, starts: Offsets) -> Offsets:
    """The bytes where something begins whatever the words before it: documents, paragraphs, list items, and what is
    behind a wide stop."""
    newlines = np.flatnonzero(raw == _NEWLINE)
    ahead = raw[newlines + 1]
    blank = ahead == _NEWLINE
    may_be = _MAY_BREAK[ahead] & (_LISTED[raw[newlines + 2]] | ~_LOWER[ahead])
    breaks = [place for place in newlines[may_be].tolist() if _PARAGRAPH.match(text, place)]
    stops = (_WIDE_STOP.match(text, place) for place in _wide_stops(raw).tolist())
    breaks += [stop.end() - 1 for stop in stops if stop]
    behind = np.searchsorted(starts, np.append(newlines[blank], np.array(breaks, np.int64)), side="right")
    return starts[np.append(behind[behind < len(starts)], 0)]


def _wide_stops(raw: Bytes) -> Offsets:
    """Where the full stops of Chinese and Japanese are."""
    leads = np.flatnonzero((raw == 0xE3) | (raw == 0xEF))
    second, third = raw[leads + 1], raw[leads + 2]
    return leads[(second == 0x80) & (third == 0x82) | (second == 0xBC) & ((third == 0x81) | (third == 0x9F))]


def _mark_sentences(text: bytes, raw: Bytes, starts: Offsets, marks: Bytes, *, paragraphs: Offsets) -> None:
    """Marks the bytes where paragraphs and sentences begin."""
    bounds = np.append(starts, len(text))
    stops, after, ends = _candidates(text, raw, bounds)
    doubtful = _doubtful(raw, bounds, stops)
    marks[after[~doubtful]] = SENTENCE
    marks[paragraphs] = PARAGRAPH
    seen = marks.data
    for end, place in zip(ends[doubtful].tolist(), after[doubtful].tolist(), strict=True):
        if not seen[place] and _is_end(text, end, place, seen):
            seen[place] = SENTENCE


def _candidates(text: bytes, raw: Bytes, bounds: Offsets) -> tuple[Offsets, Offsets, Offsets]:
    """Stops behind which, and behind closing marks and white space, something follows that can begin a sentence.

    Returns:
        stops: [candidates] numbers of their pre-tokens.
        after: [candidates] the byte where what follows begins.
        ends: [candidates] the byte behind the stop.
    """
    stops = np.flatnonzero(_STOPS[_signs(raw, bounds[:-1])])
    last = _last_closers(raw, bounds, stops)
    stops, last = stops[last < len(bounds) - 2], last[last < len(bounds) - 2]
    after = bounds[last + 1]
    spaced = _SPACES[raw[after - 1]]
    fits = spaced & _OPENING[_signs(raw, after)]
    asked = np.flatnonzero(spaced & ~fits & (raw[after] >= _FIRST_BEYOND_ASCII))
    fits[asked] = [_begins(_character(text, place)) for place in after[asked].tolist()]
    stops, after = stops[fits], after[fits]
    return stops, after, bounds[stops] + np.where(raw[bounds[stops]] < _FIRST_BEYOND_ASCII, 1, 3)


def _last_closers(raw: Bytes, bounds: Offsets, stops: Offsets) -> Offsets:
    """For each stop the last of the closing marks that follow it with nothing between, or the stop itself."""
    last = stops.copy()
    going = np.arange(len(stops))
    for _ in range(_MOST_CLOSERS):
        behind = bounds[last[going] + 1]
        going = going[~_SPACES[raw[behind - 1]] & _CLOSING[_signs(raw, behind)]]
        if not len(going):
            break
        last[going] += 1
    return last


def _doubtful(raw: Bytes, bounds: Offsets, stops: Offsets) -> Flags:
    """Whether the word before a stop may be such that no sentence ends: see `abbreviations.Kind`."""
    at = bounds[stops]
    words = bounds[stops - 1]  # of the first pre-token: the end of the text, and no size fits
    sizes = at - words
    before = raw[at - 1]
    letters = (raw[at] == ord(".")) & _LETTERS[before]
    doubtful = letters & (sizes == 1) | _DOUBTED[before] | (before >= _FIRST_BEYOND_ASCII) & (sizes <= _KEY_BYTES)
    short = np.flatnonzero(letters & (sizes > 1) & (sizes <= _KEY_BYTES))
    doubtful[short] = np.isin(_keys(raw, words[short], sizes[short]), _ABBREVIATED_KEYS)
    return doubtful


def _keys(raw: Bytes, words: Offsets, sizes: Offsets) -> npt.NDArray[np.uint64]:
    """Short words of ASCII, in lower case, each as one number."""
    windows = np.lib.stride_tricks.sliding_window_view(raw, _KEY_BYTES)[words]
    return windows.view(np.uint64)[:, 0] & _KEPT[sizes] | _LOWERED[sizes]


def _is_end(text: bytes, end: int, place: int, seen: memoryview) -> bool:
    """Whether a sentence ends with the stop before `end`, given what begins before it."""
    word = text[max(end - _BEHIND, 0) : end].rsplit(None, 1)[-1]
    if not word.isascii():
        word = _WIDE_STOP.split(word)[-1]
    kind, begins = kind_of(word), end - len(word)
    return not (
        kind is Kind.ABBREVIATION
        or (kind is Kind.NUMBER and _character(text, place).isdigit())
        or (kind is Kind.PRONOUN and seen[begins] == PARAGRAPH)
        or (kind is Kind.DIGITS and seen[begins])
    )


def _begins(character: str) -> bool:
    """Whether a sentence can begin with a character beyond ASCII."""
    return character.isupper() or character.isdigit() or character in _OPENERS + _RARER_OPENERS


def _character(text: bytes, place: int) -> str:
    return text[place : place + _LONGEST_CHARACTER].decode(errors="ignore")[0]


def _bounded(raw: Bytes, starts: Offsets, sentences: Offsets) -> Offsets:
    """The same, and within sentences of too many words those that are to begin another."""
    found = [sentences]
    sizes = np.diff(np.append(sentences, len(starts)))
    for number in np.flatnonzero(sizes > MAX_WORDS).tolist():
        others = np.arange(sentences[number] + 1, sentences[number] + sizes[number])
        words = others[_SPACES[raw[starts[others] - 1]]]
        found.append(words[MAX_WORDS - 1 :: MAX_WORDS])
    return np.sort(np.concatenate(found)) if len(found) > 1 else sentences


def _signs(raw: Bytes, places: Offsets) -> npt.NDArray[np.uint16]:
    """What stands there, for `_table`: bytes, and beyond them dashes, quotation marks and the ellipsis."""
    codes = raw[places].astype(np.uint16)
    lead = np.flatnonzero(codes == _LEAD_OF_SIGNS)
    at = places[lead]
    codes[lead] = np.where(raw[at + 1] == 0x80, raw[at + 2] + np.uint16(0x100), codes[lead])
    return codes


def _table(signs: str) -> Flags:
    """Which of what `_signs` gives is among these."""
    table = np.zeros(0x200, np.bool_)
    table[[ord(sign) if sign.isascii() else 0x100 + sign.encode()[2] for sign in signs]] = True
    return table


def _packed(words: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    return np.frombuffer(b"".join(word.ljust(_KEY_BYTES, b"\0") for word in words), np.uint64)


_DIGITS = "0123456789"
_SMALL = "abcdefghijklmnopqrstuvwxyz"
_SPACES = _table(" \t\n\r")  # as pre-tokens have it
_STOPS = _table(".!?\u2026")
_CLOSING = _table("\"'\u2019\u201d)]")
_OPENING = _table(_SMALL.upper() + _DIGITS + _OPENERS)
_LOWER = _table(_SMALL)
_LISTED = _table(".)")  # behind the letter of a list item
_MAY_BREAK = _table(" \t-*+(" + _DIGITS + _SMALL)
_MAY_BREAK[_LEAD_OF_SIGNS] = True  # a bullet
_LETTERS = _table(_SMALL + _SMALL.upper())
_DOUBTED = _table(_DIGITS + ".!?")  # before a stop
_KEY_BYTES = 8
_KEPT = _packed(b"\xff" * size for size in range(_KEY_BYTES + 1))
_LOWERED = _packed(b"\x20" * size for size in range(_KEY_BYTES + 1))
_ABBREVIATED_KEYS = _packed(word.encode() for word in ABBREVIATED)
