"""Pre-tokens: text split into words and signs, whose BERT tokens do not depend on each other.

Text is split only where no rule of BERT's normalisation looks across the boundary: at white space, around ASCII
punctuation, around common punctuation beyond ASCII, and around Chinese characters. Everything else stays inside a
pre-token, which `tokenizers` may split further; this includes control characters and rarer white space. All functions
work with numpy on the bytes of UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from train_jobs.artifacts.text_rule import STACKERS, UNSPACED_LETTERS, UNSPACED_MARKS

Offsets = npt.NDArray[np.int64]
Classes = npt.NDArray[np.uint8]

WORD, ALONE, SPACE, TAIL = range(4)  # class of a byte: in a word, first of a sign, white space, rest of a sign
_SPACES = b" \t\n\r"
# Signs of English and Chinese text. All have three bytes in UTF-8, so one vectorised test finds them. None has a
# canonical decomposition, so normalisation cannot merge one with its neighbours.
_ALONE_BEYOND_ASCII = (
    (0x0964, 0x0965),  # danda, in the scripts of India
    (0x104B, 0x104B),  # ends of sentences: Burmese
    (0x1362, 0x1362),  # Ethiopic
    (0x1367, 0x1368),
    (0x17D4, 0x17D5),  # Khmer
    (0x1803, 0x1803),  # Mongolian
    (0x1809, 0x1809),
    (0x1B5A, 0x1B5B),  # Balinese
    (0x1B5E, 0x1B5F),
    (0x1C3B, 0x1C3C),  # Lepcha
    (0x1C7E, 0x1C7F),  # Ol Chiki
    (0x2010, 0x2027),  # dashes, quotation marks, daggers, bullets, ellipsis
    (0x2030, 0x205E),  # per mille, primes, angle quotation marks; without the two that are not punctuation
    (0x3001, 0x3003),  # ideographic comma and full stop
    (0x3008, 0x3011),  # brackets
    (0x3400, 0x4DBF),  # Chinese characters
    (0x4E00, 0x9FFF),
    (0xA4FF, 0xA4FF),  # ends of sentences: Lisu
    (0xA60E, 0xA60E),  # Vai
    (0xA6F3, 0xA6F3),  # Bamum
    (0xA6F7, 0xA6F7),
    (0xA876, 0xA877),  # Phags-pa
    (0xA9C8, 0xA9C9),  # Javanese
    (0xAA5D, 0xAA5F),  # Cham
    (0xABEB, 0xABEB),  # Meetei Mayek
    (0xFF01, 0xFF01),  # wide exclamation mark
    (0xFF08, 0xFF09),  # wide brackets
    (0xFF0C, 0xFF0C),  # wide comma, colon, semicolon, question mark
    (0xFF1A, 0xFF1B),
    (0xFF1F, 0xFF1F),
    (0xFF61, 0xFF61),  # narrow ideographic full stop
)
# Signs of two bytes: inverted marks and guillemets; the ends of sentences in Armenian, Arabic, Urdu, Syriac and
# N'Ko.
_PAIRS_ALONE = "\u00a1\u00bf\u00ab\u00bb\u0589\u061f\u06d4\u0700\u0701\u0702\u07f9"
_BLANKS_BEYOND_ASCII = (
    0x1680,
    *range(0x2000, 0x200B),
    0x202F,
    0x205F,
    0x3000,
)  # three bytes in UTF-8
_NOT_ALONE = (0x2044, 0x2052)  # fraction slash, commercial minus: BERT does not treat symbols as punctuation
_FIRST_OF_THREE = 0xE0
_FIRST_LEAD, _LAST_LEAD = 0xE2, 0xEF  # first bytes of these characters


def _class_table() -> bytes:
    table = bytearray(256)
    for code in range(128):
        if code in _SPACES:
            table[code] = SPACE
        elif chr(code).isprintable() and not chr(code).isalnum():
            table[code] = ALONE
    return bytes(table)


def folding_table(*, lowercase: bool) -> bytes:
    """Return a table for `bytes.translate` that folds ASCII.

    Args:
        lowercase: map A-Z to a-z. White space always becomes a blank.
    """
    table = bytearray(range(256))
    for code in _SPACES:
        table[code] = ord(" ")
    if lowercase:
        table[ord("A") : ord("Z") + 1] = bytes(range(ord("a"), ord("z") + 1))
    return bytes(table)


def _table(ranges: Iterable[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Return bool [65,536], True for the code points of the ranges, both ends included."""
    table = np.zeros(1 << 16, np.bool_)
    for first, last in ranges:
        table[first : last + 1] = True
    return table


_CLASSES = _class_table()
_ALONE = _table(_ALONE_BEYOND_ASCII)
_ALONE[list(_NOT_ALONE)] = False
_PREFIXES = sorted(
    {chr(first).encode()[:2] for first, _ in _ALONE_BEYOND_ASCII if chr(first).encode()[0] < _FIRST_LEAD}
)
_PAIRS = {pair[:1]: np.zeros(256, np.bool_) for pair in (sign.encode() for sign in _PAIRS_ALONE)}
for _sign in _PAIRS_ALONE:
    _PAIRS[_sign.encode()[:1]][_sign.encode()[1]] = True
_BLANK = _table((code, code) for code in _BLANKS_BEYOND_ASCII)


def with_ascii_blanks(text: bytes) -> bytes:
    """Replace white space beyond ASCII in UTF-8 text by blanks, one per byte, so that offsets stay valid.

    BERT treats all of it as a blank, so ids do not change.
    """
    if text.isascii():
        return text
    raw = np.frombuffer(text, np.uint8).copy()
    # C2 A0 is the no-break space. In valid UTF-8 the bytes after a lead byte exist, so reading ahead is safe.
    two = np.flatnonzero(raw == 0xC2)
    two = two[raw[two + 1] == 0xA0]
    three = np.flatnonzero((raw >= 0xE1) & (raw <= 0xE3))
    three = three[_BLANK[_codes(raw, three)]]
    for places in (two, two + 1, three, three + 1, three + 2):
        raw[places] = ord(" ")
    return raw.tobytes()


def pretoken_starts(raw: bytes) -> Offsets:
    """Return the byte offsets [pre-tokens] where words and signs start in UTF-8 text.

    A pre-token includes the white space after it. The first one starts at 0, even if the text starts with white space.
    """
    classes = np.frombuffer(raw.translate(_CLASSES), np.uint8)
    if not raw.isascii():
        classes = _with_signs_beyond_ascii(classes, raw)
    word = classes == WORD
    starts = classes == ALONE
    starts[1:] |= word[1:] & ~word[:-1]
    starts[:1] = True
    return np.flatnonzero(starts)


def _with_signs_beyond_ascii(classes: Classes, text: bytes) -> Classes:
    raw = np.frombuffer(text, np.uint8)
    lead = np.flatnonzero((raw >= _FIRST_LEAD) & (raw <= _LAST_LEAD))
    rare = [_starting(raw, prefix) for prefix in _PREFIXES if prefix[:1] in text]
    lead = np.concatenate([lead, *rare]) if rare else lead
    alone = lead[_ALONE[_codes(raw, lead)]]
    classes = classes.copy()
    classes[alone] = ALONE
    classes[alone + 1] = classes[alone + 2] = TAIL
    for first, seconds in _PAIRS.items():
        if first in text:
            pairs = np.flatnonzero(raw == ord(first))
            pairs = pairs[seconds[raw[pairs + 1]]]
            classes[pairs], classes[pairs + 1] = ALONE, TAIL
    return classes


def _starting(raw: Classes, prefix: bytes) -> Offsets:
    """Return where the two bytes of a prefix are, without a list of all places of the first, a script's letters."""
    return np.flatnonzero((raw[:-1] == prefix[0]) & (raw[1:] == prefix[1]))


def _codes(raw: Classes, lead: Offsets) -> npt.NDArray[Any]:
    """Return the code points of the three-byte characters at `lead`."""
    return (raw[lead] & np.uint16(0x0F)) << 12 | (raw[lead + 1] & np.uint16(0x3F)) << 6 | raw[lead + 2] & 0x3F


_LETTER = _table(UNSPACED_LETTERS)
_ENDS_CHARACTER = _LETTER | _table(UNSPACED_MARKS)  # after which another letter starts a character
_ENDS_CHARACTER[list(STACKERS)] = False
_WORD_END = np.zeros(256, np.bool_)  # bytes of ASCII that a letter of these scripts may follow in the same pre-token
_WORD_END[[code for code in range(128) if chr(code).isalnum()]] = True
_UNSPACED_LEADS = np.zeros(256, np.bool_)
_UNSPACED_LEADS[sorted({chr(code).encode()[0] for first, last in UNSPACED_LETTERS for code in (first, last)})] = True


def with_unspaced_starts(raw: bytes, starts: Offsets) -> Offsets:
    """Return the pre-tokens' starts with those of the characters of scripts without blanks.

    Only where the character before is sure to survive normalisation: the encoder cuts the rest, see `word_encoder`.
    """
    if raw.isascii():
        return starts
    text = np.frombuffer(raw, np.uint8)
    lead = np.flatnonzero(_UNSPACED_LEADS[text])
    lead = lead[_LETTER[_codes(text, lead)]]
    before = np.maximum(lead - 3, 0)
    character = (text[before] >= _FIRST_OF_THREE) & (text[before] <= _LAST_LEAD)
    character[character] = _ENDS_CHARACTER[_codes(text, before[character])]
    return np.union1d(starts, lead[character | _WORD_END[text[lead - 1]]])


def pretokens_at(text: bytes, bounds: Offsets) -> pa.LargeBinaryArray:
    """Return the pre-tokens [n] between the byte offsets `bounds` [n + 1].

    Args:
        text: UTF-8; the result refers to its memory.
        bounds: int64, ascending.
    """
    # Text and offsets become Arrow's buffers as they are: no pre-token is copied or becomes a Python object.
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(text)]
    )
