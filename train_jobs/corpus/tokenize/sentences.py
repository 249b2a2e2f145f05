"""Split documents into sentences by rule, in any language and script, with nothing to install.

The rules start from those of Unicode (UAX 29, section 5) and add what that annex leaves to an implementation:

- The marks that only end sentences, such as the ideographic full stop, the danda and the Arabic question mark, always
  end one, with or without white space after them.
- `.`, `!`, `?` and the ellipsis end one if white space and the beginning of a sentence follow: a capital, a digit, or
  a letter of a script without capitals. In a paragraph written in lower case, a small letter is a beginning too.
- `;` behind a Greek letter and `:` behind an Armenian one are such marks too.
- A full stop ends none after an abbreviation, an initial or an ordinal (see `abbreviations`).
- A blank line and a list item begin one.
- Thai, Lao, Khmer, Burmese and Tibetan put a blank between sentences, but also between clauses. Text without stops is
  cut at blanks into pieces of the usual length of a sentence.
- A sentence is cut after 256 words.

Numpy finds the stops of many documents together and decides most of them. Python examines the others: one in ten in
English.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable
from enum import Enum, auto
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from train_jobs.corpus.tokenize.abbreviations import AFTER_ORDINAL, BEFORE_ORDINAL, LIST_ENDS, NEVER_LAST
from train_jobs.corpus.tokenize.pretokens import Offsets, pretoken_starts, with_ascii_blanks

SPLITTER = "rules 6"  # name and version: raise it when any text is split differently
MAX_WORDS = 256  # limit for text without full stops, which would become one training example
MIN_PIECE = 75  # characters of a piece of text without stops and without blanks between words
DOCUMENT_SEPARATOR = b"\n\n"  # separates documents

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

SENTENCE, PARAGRAPH = 1, 2  # marks of bytes where one begins
_PADDING = bytes(8)  # so that reading ahead at the last bytes is safe
_MOST_CLOSERS = 8  # after a stop; a stop with more of them is skipped
_MOST_OPENERS = 3  # before the first letter of a sentence
_BEHIND = 64  # bytes searched for the word before a stop
_AHEAD = 64  # bytes searched for the word after it
_NEWLINE, _FIRST_BEYOND_ASCII = ord("\n"), 0x80
_LOWERED_SHARE = 50  # a paragraph is in lower case if at most one word in 50 has a capital

_STOP_SIGNS = ".!?\u2026"
_BEFORE_WORD = re.compile("[(\\[\u201c\u201e\u00ab\uff08\u3001-\u3011\u3400-\u4dbf\u4e00-\u9fff]")
_QUOTES_BEFORE = "'\"\u2018\u201a"  # also apostrophes: only before a word
_INITIALS = re.compile(r"(?:[^\W\d_]\.-?)*[^\W\d_]")  # an initial; e.g, i.e, U.S, a.m, J.-P
_NUMBER = "no"
_WORD = re.compile(r"\w+")
_DATE_AHEAD = re.compile(rb"\d{1,2}\.\s?\d")  # the month and year of "3. 10. 1990", "2019. 3. 1"
_LETTER_AHEAD = re.compile(r"(?:[^\W\d_]|Chr|chr)\.")  # the second part of "1000 a. C.", "49 v. Chr."
_DATE_BEHIND = re.compile(rb"\d\.\s?\Z")

# Kinds of characters: their roles at the end and the beginning of a sentence.
OTHER, LOWER, UPPER, UNCASED, IDEOGRAPH, SPACELESS, DIGIT = range(7)
OPENER, CLOSER, QUOTE, LEFT_QUOTE, STOP, ALWAYS, CONTINUES, SCRIPT_STOP = range(7, 15)
_SCRIPT_STOPS = {";": ("\u0370", "\u03ff"), ":": ("\u0531", "\u0587")}  # sign -> first and last letter: Greek, Armenian
_ALWAYS = (  # Unicode's Sentence_Terminal, without those also used inside sentences
    "\u3002\uff01\uff1f\uff61"  # Chinese and Japanese
    "\u061f\u06d4\u0700\u0701\u0702\u07f9\u0589"  # Arabic, Urdu, Syriac, N'Ko, Armenian
    "\u0964\u0965\uabeb\ua876\ua877\u1c7e\u1c7f"  # danda and its like in the scripts of India
    "\u104b\u17d4\u17d5\u1803\u1809\u1362\u1367\u1368"  # Burmese, Khmer, Mongolian, Ethiopic
    "\u1b5a\u1b5b\u1b5e\u1b5f\ua9c8\ua9c9\uaa5d\uaa5e\uaa5f\u1c3b\u1c3c\ua4ff\ua60e\ua6f3\ua6f7\u203c\u2047\u2048\u2049"
)
_CONTINUES = ",:;-\u2013\u2014\u2026\u060c\u061b\u3001\uff0c\uff1a\uff1b\u055d"  # never first in a sentence
_SPACELESS = ((0x0E00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF))
_IDEOGRAPHS = ((0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF))
_GEORGIAN = (0x10D0, 0x10FF)  # has capitals in Unicode that no prose uses
_HANGUL = ("\uac00", "\ud7a3")  # syllables: a word of one is no initial
_QUOTATIVES = (b"\xe3\x81\xa8", b"\xe3\x81\xa3")  # Japanese to and tte
_GUILLEMET = b"\xc2\xbb"  # closes behind a blank in French

_PARAGRAPH = re.compile(rb"\n(?:[ \t]*\n|[ \t]*(?:[-*+]|\xe2\x80\xa2|\(?\d{1,3}[.)]|\(?[a-z][.)])[ \t])")


class StopKind(Enum):
    """Kinds of words whose full stop may not end a sentence."""

    ABBREVIATION = auto()
    """Never ends a sentence."""
    LETTER = auto()
    """A small letter, or one of a script without capitals. Ends one after a number: `5 m. The`, but not `500 a. C.`"""
    NUMBER = auto()
    """Ends none if a number follows: `No. 5`, but `No. They`."""
    PRONOUN = auto()
    """Ends none at the beginning of a paragraph: `I. Newton`, but `It was I. Nobody else`."""
    DIGITS = auto()
    """Ends none at the beginning of a sentence, in a date and in an ordinal: `1. First item`, `am 3. Oktober`."""


@lru_cache(maxsize=1 << 16)
def stop_kind(word: bytes) -> StopKind | None:
    """Return the kind of a word in UTF-8, with adjacent signs, up to its stop; None: the stop ends a sentence."""
    text = word.decode(errors="replace")
    bare = _BEFORE_WORD.split(text.rstrip(_STOP_SIGNS))[-1].lstrip(_QUOTES_BEFORE)
    if not text.endswith(f"{bare}."):
        return None
    if bare.isdigit():
        return StopKind.DIGITS
    if bare == "I":
        return StopKind.PRONOUN
    small = bare.lower()
    if small == _NUMBER:
        return StopKind.NUMBER
    if small in LIST_ENDS or _HANGUL[0] <= bare[-1:] <= _HANGUL[1]:
        return None
    if len(bare) == 1 and bare.isalpha() and not bare.isupper():
        return StopKind.LETTER
    known = small in NEVER_LAST or small.rpartition(".")[2] in NEVER_LAST
    return StopKind.ABBREVIATION if known or _INITIALS.fullmatch(bare) else None


def split_sentences(document: str) -> list[str]:
    """Return the sentences of a clean document, lines joined and blanks squeezed, none of them empty."""
    text = with_ascii_blanks(document.encode() + DOCUMENT_SEPARATOR)
    starts = pretoken_starts(text)
    places = [*starts[sentence_starts(text, starts)].tolist(), len(text)]
    found = [" ".join(text[start:end].decode().split()) for start, end in pairwise(places)]
    return [sentence for sentence in found if sentence]


def sentence_starts(text: bytes, starts: Offsets) -> Offsets:
    """Return where sentences begin.

    Args:
        text: clean UTF-8 with plain blanks (see `clean`, `with_ascii_blanks`), documents separated by
            `DOCUMENT_SEPARATOR`.
        starts: [pre-tokens] where its pre-tokens start, see `pretoken_starts`.

    Returns:
        [sentences] numbers of the pre-tokens that begin a sentence, ascending; the first is 0.
    """
    if not len(starts):
        return starts
    view = _View(text, starts)
    marks = np.zeros(len(text), np.uint8)
    _mark_sentences(view, marks)
    return _bounded(view, np.flatnonzero(marks[starts]))


class _View:
    """Text in arrays: its bytes, its pre-tokens and the kinds of their first characters.

    Attributes:
        raw: uint8 [bytes + padding].
        bounds: int64 [pre-tokens + 1] where pre-tokens start, and the length of the text.
        kinds: uint8 [pre-tokens + 1] kinds of their first characters; CONTINUES at the end.
        breaks: int64 [blank lines + 1] pre-tokens that begin a paragraph after a blank line, ascending from 0.
        paragraphs: int64 the bytes where a paragraph or a list item begins.
    """

    def __init__(self, text: bytes, starts: Offsets) -> None:
        self.text = text
        self.raw = np.frombuffer(text + _PADDING, np.uint8)
        self.bounds = np.append(starts, len(text))
        self.kinds = _kinds(self.raw, self.bounds)
        newlines = np.flatnonzero(self.raw == _NEWLINE)
        ahead = self.raw[newlines + 1]
        double = newlines[ahead == _NEWLINE]
        may_be = _MAY_BREAK[ahead] & (_LISTED[self.raw[newlines + 2]] | ~_LOWER[ahead])
        single = [place for place in newlines[may_be].tolist() if _PARAGRAPH.match(text, place)]
        behind = np.searchsorted(starts, double, side="right")
        self.breaks = np.append(0, behind[behind < len(starts)])
        items = np.searchsorted(starts, np.array(single, np.int64), side="right")
        self.paragraphs = starts[np.append(self.breaks, items[items < len(starts)])]

    def blank_before(self, pretokens: Offsets) -> Flags:
        """Return for each pre-token whether white space precedes it."""
        return _SPACES[self.raw[self.bounds[pretokens] - 1]]

    def same_paragraph(self, pretokens: Offsets) -> Flags:
        """Return for each pre-token whether it belongs to the paragraph of the one before it."""
        at = self.bounds[pretokens]
        return (self.raw[at - 1] != _NEWLINE) | (self.raw[at - 2] != _NEWLINE)

    def lowered(self, pretokens: Offsets) -> Flags:
        """Return for each pre-token whether its paragraph is in lower case: it starts so and has hardly a capital."""
        if not len(pretokens):
            return np.zeros(0, np.bool_)
        of = np.searchsorted(self.breaks, pretokens, side="right") - 1
        upper = np.add.reduceat(self.kinds == UPPER, self.breaks, dtype=np.int32)
        lower = np.add.reduceat(self.kinds == LOWER, self.breaks, dtype=np.int32)
        lowered = upper * _LOWERED_SHARE <= lower
        for paragraph in np.unique(of[lowered[of] & (upper[of] > 0)]).tolist():
            words = self.kinds[slice(*self.breaks[paragraph : paragraph + 2])]
            lowered[paragraph] = np.argmax(words == UPPER) > np.argmax(words == LOWER)
        return lowered[of]


def _kinds(raw: Bytes, bounds: Offsets) -> Bytes:
    """Return the kinds of the characters at `bounds`."""
    table = kind_table()
    first = raw[bounds]
    kinds = table[first]
    beyond = np.flatnonzero(first >= _FIRST_BEYOND_ASCII)
    if len(beyond):
        at = bounds[beyond]
        lead = first[beyond].astype(np.uint32)
        second, third = raw[at + 1] & np.uint32(0x3F), raw[at + 2] & np.uint32(0x3F)
        codes = np.where(lead < 0xE0, (lead & 0x1F) << 6 | second, (lead & 0x0F) << 12 | second << 6 | third)
        kinds[beyond] = table[np.where(lead < 0xF0, codes, 0)]  # characters of four bytes: historic scripts, emoji
    kinds[-1] = CONTINUES
    return kinds


@cache
def kind_table() -> Bytes:
    """Return uint8 [65,536] code point -> kind. Made on first use: 30 ms."""
    table = bytearray(_kind(chr(code)) for code in range(1 << 16))
    for ranges, kind in ((_SPACELESS, SPACELESS), (_IDEOGRAPHS, IDEOGRAPH), ((_GEORGIAN,), UNCASED)):
        for first, last in ranges:
            letters = (code for code in range(first, last + 1) if unicodedata.category(chr(code))[0] in "LM")
            for code in letters:
                table[code] = kind
    for signs, kind in ((_CONTINUES, CONTINUES), (_STOP_SIGNS, STOP), (_ALWAYS, ALWAYS), (_SCRIPT_STOPS, SCRIPT_STOP)):
        for sign in signs:
            table[ord(sign)] = kind
    for sign in "\"'":
        table[ord(sign)] = QUOTE
    return np.frombuffer(bytes(table), np.uint8)


def _kind(character: str) -> int:
    category = unicodedata.category(character)
    by_category = {"Lu": UPPER, "Lt": UPPER, "Ll": LOWER, "Lo": UNCASED, "Lm": UNCASED, "Nd": DIGIT, "No": DIGIT}
    by_category |= {"Ps": OPENER, "Pe": CLOSER, "Pi": LEFT_QUOTE, "Pf": QUOTE, "Mn": UNCASED, "Mc": UNCASED}
    return OPENER if character in "\u00a1\u00bf" else by_category.get(category, OTHER)


def _mark_sentences(view: _View, marks: Bytes) -> None:
    """Mark the bytes where paragraphs and sentences begin."""
    marks[_after_certain_stops(view)] = SENTENCE
    stops, after = _candidates(view)
    at, places = view.bounds[stops], view.bounds[after]
    doubtful = _doubtful(view, stops)
    marks[places[~doubtful]] = SENTENCE
    marks[view.paragraphs] = PARAGRAPH
    seen = marks.data
    ends = at + np.where(view.raw[at] < _FIRST_BEYOND_ASCII, 1, 3)
    for end, place in zip(ends[doubtful].tolist(), places[doubtful].tolist(), strict=True):
        if not seen[place] and _is_end(view.text, end, place, seen):
            seen[place] = SENTENCE


def _after_certain_stops(view: _View) -> Offsets:
    """Return the bytes after the stops that always end a sentence, and after the closing marks behind them."""
    stops = np.flatnonzero(view.kinds == ALWAYS)
    after = _last_closers(view, stops) + 1
    begins = (after < len(view.bounds) - 1) & ~_NEVER_FIRST[view.kinds[after]]
    return view.bounds[after[begins & ~_cited(view, stops, after)]]


def _cited(view: _View, stops: Offsets, after: Offsets) -> Flags:
    """Return whether a Japanese sentence continues behind its quotation: `\u300c...\u3002\u300d\u3068`."""
    at = view.bounds[after]
    quoted = (after > stops + 1) & (view.raw[at] == _QUOTATIVES[0][0])
    found = np.zeros(len(stops), np.bool_)
    for particle in _QUOTATIVES if quoted.any() else ():
        found |= (view.raw[at] == particle[0]) & (view.raw[at + 1] == particle[1]) & (view.raw[at + 2] == particle[2])
    return found & quoted


def _candidates(view: _View) -> tuple[Offsets, Offsets]:
    """Find stops after which, and after closing marks and white space, a sentence can begin.

    Returns:
        stops: [candidates] numbers of their pre-tokens.
        after: [candidates] the pre-token where the next sentence would begin.
    """
    kinds = view.kinds
    stops = np.flatnonzero(_STOPS[kinds])
    of_script = np.flatnonzero(kinds[stops] == SCRIPT_STOP)
    if len(of_script):
        stops = np.delete(stops, of_script[~_after_letter_of_script(view, stops[of_script])])
    after = _last_closers(view, stops) + 1
    inside = after < len(view.bounds) - 1
    stops, after = stops[inside], after[inside]
    spaced = view.blank_before(after)
    first = after[spaced]
    follows = kinds[first]
    asked = np.arange(len(first))
    for _ in range(_MOST_OPENERS):  # the first letter behind opening marks and symbols decides
        asked = asked[_SKIPPED[follows[asked]]]
        if not len(asked):
            break
        ahead = first[asked] + 1
        first[asked], follows[asked] = ahead, np.where(view.same_paragraph(ahead), kinds[ahead], CONTINUES)
    begins = _BEGINS[follows]
    small = np.flatnonzero(follows == LOWER)
    begins[small] = view.lowered(first[small])
    fits = kinds[after] == IDEOGRAPH  # Chinese and Japanese put no blank behind `!` and `?`
    fits &= _EXCLAIMS[view.raw[view.bounds[stops]]]
    fits[spaced] = begins
    return stops[fits], after[fits]


def _after_letter_of_script(view: _View, stops: Offsets) -> Flags:
    """Return for each `;` and `:` whether a letter precedes it in whose script it ends a sentence."""
    at = view.bounds[stops]
    letters = view.raw[at - 2].astype(np.uint16) << 8 | view.raw[at - 1]
    found = np.zeros(len(stops), np.bool_)
    for sign, script in _SCRIPT_STOPS.items():
        first, last = (int.from_bytes(letter.encode(), "big") for letter in script)
        found |= (view.raw[at] == ord(sign)) & (letters >= first) & (letters <= last)
    return found


def _last_closers(view: _View, stops: Offsets) -> Offsets:
    """Return for each stop the last of the closing marks that follow it directly, or the stop itself."""
    last = stops.copy()
    going = np.arange(len(stops))
    for _ in range(_MOST_CLOSERS):
        behind = last[going] + 1
        blank, kinds = view.blank_before(behind), view.kinds[behind]
        closing = ~blank & _CLOSING[kinds]
        left = np.flatnonzero(closing & (kinds == LEFT_QUOTE))
        if len(left):  # closes a quotation in German, opens the next one where no blank comes between
            closing[left] = view.blank_before(np.minimum(behind[left] + 1, len(view.kinds) - 1))
        quotes = np.flatnonzero(blank & (kinds == QUOTE))
        if len(quotes):  # French puts a blank before the guillemet that closes
            at = view.bounds[behind[quotes]]
            right = (view.raw[at] == _GUILLEMET[0]) & (view.raw[at + 1] == _GUILLEMET[1])
            right &= view.same_paragraph(behind[quotes])
            closing[quotes] = right & view.blank_before(np.minimum(behind[quotes] + 1, len(view.kinds) - 1))
        going = going[closing]
        if not len(going):
            break
        last[going] += 1
    return last


def _doubtful(view: _View, stops: Offsets) -> Flags:
    """Return whether the word before a stop may be of a `StopKind`."""
    raw, at = view.raw, view.bounds[stops]
    words = view.bounds[stops - 1]  # for the first pre-token the end of the text, which fits no size
    sizes = at - words
    before = raw[at - 1]
    full = raw[at] == ord(".")
    letters = full & (_LETTERS[before] | (before >= _FIRST_BEYOND_ASCII))
    beyond = before >= _FIRST_BEYOND_ASCII
    doubtful = letters & (sizes > 0) & (sizes <= np.where(beyond, _LETTER_BYTES, 1)) | _DOUBTED[before]
    keyed = np.flatnonzero(letters & (sizes > 1) & ((sizes <= _KEY_BYTES) | beyond))
    keys, known = _keys(raw, words[keyed], np.minimum(sizes[keyed], _KEY_BYTES)), _abbreviated_keys()
    doubtful[keyed] |= known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] == keys
    return doubtful


def _keys(raw: Bytes, words: Offsets, sizes: Offsets) -> npt.NDArray[np.uint64]:
    """Return the first bytes of words, ASCII in lower case, each as one number."""
    windows = np.lib.stride_tricks.sliding_window_view(raw, _KEY_BYTES)[words]
    keys = windows.view(np.uint64)[:, 0] & _KEPT[sizes]
    high = keys & _HIGH_BITS
    return keys | _LOWERED[sizes] & ~(high >> np.uint64(2))  # 0x20, but for the bytes beyond ASCII


def _is_end(text: bytes, end: int, place: int, seen: memoryview) -> bool:
    """Return whether a sentence ends at the stop before `end`, given the sentences that begin before it."""
    word = text[max(end - _BEHIND, 0) : end].rsplit(None, 1)[-1]
    if not word.isascii():
        word = _ALWAYS_SIGNS.split(word)[-1]
    kind, begins = stop_kind(word), end - len(word)
    if kind is StopKind.DIGITS:
        return not seen[begins] and not _is_ordinal(text, begins, end, place)
    if kind is StopKind.LETTER:
        behind = _words_before(text, begins)
        if behind and f"{behind[-1]}{word.decode()}".lower().rstrip(_STOP_SIGNS) in LIST_ENDS:
            return True
        after_number = not seen[begins] and bool(behind) and behind[-1][-1].isdigit()
        return after_number and not _LETTER_AHEAD.match(_words_after(text, place))
    return not (
        kind is StopKind.ABBREVIATION
        or (kind is StopKind.NUMBER and _words_after(text, place)[0].isdigit())
        or (kind is StopKind.PRONOUN and seen[begins] == PARAGRAPH)
    )


def _is_ordinal(text: bytes, begins: int, end: int, place: int) -> bool:
    """Return whether the number at `begins` is an ordinal or part of a date rather than the end of a sentence."""
    if _DATE_BEHIND.search(text, max(begins - 4, 0), begins) or _DATE_AHEAD.match(text, place):
        return True
    if end - begins > len("31."):
        return False
    follows = _WORD.match(_words_after(text, place).lower())
    if follows and follows[0] in AFTER_ORDINAL:
        return True
    behind = [word.lower() for word in _words_before(text, begins)[-2:]]
    return bool(behind) and behind[-1] in BEFORE_ORDINAL and behind != ["i", "am"]


def _words_before(text: bytes, place: int) -> list[str]:
    """Return the words before a place that belong to the same paragraph."""
    return text[max(place - _BEHIND, 0) : place].rpartition(DOCUMENT_SEPARATOR)[2].decode(errors="ignore").split()


def _words_after(text: bytes, place: int) -> str:
    return text[place : place + _AHEAD].decode(errors="ignore")


def _bounded(view: _View, sentences: Offsets) -> Offsets:
    """Return the sentences with additional beginnings within those that are too long."""
    found = [sentences]
    edges = np.append(sentences, len(view.bounds) - 1)
    sizes = np.diff(edges)
    for number in np.flatnonzero(sizes > MAX_WORDS).tolist():
        others = np.arange(edges[number] + 1, edges[number + 1])
        found.append(others[view.blank_before(others)][MAX_WORDS - 1 :: MAX_WORDS])
    if (view.kinds == SPACELESS).any():
        found.append(_pieces(view, edges))
    if len(found) == 1:
        return sentences
    joined = np.sort(np.concatenate(found))
    return joined[np.append(True, joined[1:] > joined[:-1])]


def _pieces(view: _View, edges: Offsets) -> Offsets:
    """Return the beginnings of pieces within sentences of scripts that write no blank between words."""
    spaceless = np.append(0, np.cumsum(view.kinds == SPACELESS))
    share = spaceless[edges[1:]] - spaceless[edges[:-1]]
    length = view.bounds[edges[1:]] - view.bounds[edges[:-1]]
    shortest = MIN_PIECE * 3  # bytes: each character of these scripts has three
    found = []
    for number in np.flatnonzero((share * 2 > np.diff(edges)) & (length > 2 * shortest)).tolist():
        blanks = np.arange(edges[number] + 1, edges[number + 1])
        blanks = blanks[view.blank_before(blanks)]
        at, end = view.bounds[blanks].tolist(), int(view.bounds[edges[number + 1]])
        place = int(view.bounds[edges[number]])
        while (chosen := bisect_left(at, place + shortest)) < len(at):
            place = at[chosen]
            if end - place < shortest // 2:
                break
            found.append(int(blanks[chosen]))
    return np.array(found, np.int64)


def _table(signs: str) -> Flags:
    """Return a table over bytes, True for these signs."""
    table = np.zeros(256, np.bool_)
    table[[ord(sign) for sign in signs]] = True
    return table


def _kinds_of(*kinds: int) -> Flags:
    """Return a table over kinds, True for these."""
    table = np.zeros(16, np.bool_)
    table[list(kinds)] = True
    return table


def _packed(words: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    return np.frombuffer(b"".join(word.ljust(_KEY_BYTES, b"\0") for word in words), np.uint64)


@cache
def _abbreviated_keys() -> npt.NDArray[np.uint64]:
    """Return the keys of the last parts of all abbreviations, small and with a capital."""
    lasts = {word.rpartition(".")[2] for word in (*NEVER_LAST, _NUMBER)}
    words = [form.encode()[:_KEY_BYTES] for last in lasts for form in (last, last.capitalize())]
    sizes = np.array([len(word) for word in words])
    raw = np.frombuffer(b"".join(word.ljust(_KEY_BYTES, b"\0") for word in words), np.uint8)
    return np.unique(_keys(raw, np.arange(len(words)) * _KEY_BYTES, sizes))


_DIGITS = "0123456789"
_SMALL = "abcdefghijklmnopqrstuvwxyz"
_ALWAYS_SIGNS = re.compile(b"|".join(sign.encode() for sign in _ALWAYS))
_SPACES = _table(" \t\n\r")  # as pre-tokens have it
_LOWER = _table(_SMALL)
_LISTED = _table(".)")  # behind the letter of a list item
_MAY_BREAK = _table(" \t-*+(" + _DIGITS + _SMALL)
_MAY_BREAK[0xE2] = True  # a bullet
_LETTERS = _table(_SMALL + _SMALL.upper())
_DOUBTED = _table(_DIGITS + ".!?")  # before a stop
_EXCLAIMS = _table("!?")
_STOPS = _kinds_of(STOP, SCRIPT_STOP)
_NEVER_FIRST = _kinds_of(CONTINUES, SCRIPT_STOP, ALWAYS)
_BEGINS = _kinds_of(UPPER, UNCASED, IDEOGRAPH, SPACELESS, DIGIT)
_SKIPPED = _kinds_of(OPENER, QUOTE, LEFT_QUOTE, OTHER)
_CLOSING = _kinds_of(CLOSER, QUOTE, LEFT_QUOTE, ALWAYS)
_KEY_BYTES = 8
_LETTER_BYTES = 4  # the longest character
_KEPT = _packed(b"\xff" * size for size in range(_KEY_BYTES + 1))
_LOWERED = _packed(b"\x20" * size for size in range(_KEY_BYTES + 1))
_HIGH_BITS = _packed([b"\x80" * _KEY_BYTES])[0]
