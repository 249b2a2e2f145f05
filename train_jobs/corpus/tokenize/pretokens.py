"""Pre-tokens: text cut into words and signs, which BERT's tokens depend on one at a time.

Text is cut only where no rule of BERT's normalisation looks across: at white space and around punctuation of ASCII,
around the common punctuation beyond it, and around Chinese characters. Everything else, control characters and rarer
white space included, stays inside a pre-token, which `tokenizers` may then cut further. All is numpy over the bytes of
UTF-8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Offsets = npt.NDArray[np.int64]
Classes = npt.NDArray[np.uint8]

WORD, ALONE, SPACE, TAIL = range(4)  # of a byte: part of a word; a pre-token of its own; white space; rest of one
_SPACES = b" \t\n\r"
_ALONE_BEYOND_ASCII = (  # of three bytes in UTF-8, with no decomposition: all that English and Chinese text uses
    (0x2010, 0x2027),  # dashes, quotation marks, daggers, bullets, ellipsis
    (0x2030, 0x205E),  # per mille, primes, angle quotation marks; without the two that are not punctuation
    (0x3001, 0x3003),  # ideographic comma and full stop
    (0x3008, 0x3011),  # brackets
    (0x3400, 0x4DBF),  # Chinese characters
    (0x4E00, 0x9FFF),
    (0xFF01, 0xFF01),  # wide exclamation mark
    (0xFF1F, 0xFF1F),  # wide question mark
)
_BLANKS_BEYOND_ASCII = (0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)  # but for the no-break space
_NOT_ALONE = (0x2044, 0x2052)  # fraction slash, commercial minus: mathematics
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
    """For `bytes.translate`: white space becomes a blank, and A-Z a-z, so that there are fewer different ones."""
    table = bytearray(range(256))
    for code in _SPACES:
        table[code] = ord(" ")
    if lowercase:
        table[ord("A") : ord("Z") + 1] = bytes(range(ord("a"), ord("z") + 1))
    return bytes(table)


def _blank_table() -> npt.NDArray[np.bool_]:
    table = np.zeros(1 << 16, np.bool_)
    table[list(_BLANKS_BEYOND_ASCII)] = True
    return table


def _alone_table() -> npt.NDArray[np.bool_]:
    table = np.zeros(1 << 16, np.bool_)
    for first, last in _ALONE_BEYOND_ASCII:
        table[first : last + 1] = True
    table[list(_NOT_ALONE)] = False
    return table


_CLASSES = _class_table()
_ALONE = _alone_table()
_BLANK = _blank_table()


def with_plain_blanks(text: bytes) -> bytes:
    """UTF-8 text with white space beyond ASCII as blanks, one for each of its bytes: nothing moves.

    BERT takes all of it for a blank, so ids stay the same.
    """
    if text.isascii():
        return text
    raw = np.frombuffer(text, np.uint8).copy()
    two = np.flatnonzero(raw == 0xC2)
    two = two[raw[two + 1] == 0xA0]
    three = np.flatnonzero((raw >= 0xE1) & (raw <= 0xE3))
    three = three[_BLANK[_codes(raw, three)]]
    for places in (two, two + 1, three, three + 1, three + 2):
        raw[places] = ord(" ")
    return raw.tobytes()


def pretoken_starts(raw: bytes) -> Offsets:
    """Where pre-tokens start in UTF-8 text: words and signs, each with the white space behind it."""
    classes = np.frombuffer(raw.translate(_CLASSES), np.uint8)
    if not raw.isascii():
        classes = _with_signs_beyond_ascii(classes, np.frombuffer(raw, np.uint8))
    word = classes == WORD
    starts = classes == ALONE
    starts[1:] |= word[1:] & ~word[:-1]
    starts[:1] = True
    return np.flatnonzero(starts)


def _with_signs_beyond_ascii(classes: Classes, raw: Classes) -> Classes:
    lead = np.flatnonzero((raw >= _FIRST_LEAD) & (raw <= _LAST_LEAD))
    alone = lead[_ALONE[_codes(raw, lead)]]
    classes = classes.copy()
    classes[alone] = ALONE
    classes[alone + 1] = classes[alone + 2] = TAIL
    return classes


def _codes(raw: Classes, lead: Offsets) -> npt.NDArray[Any]:
    """The characters of three bytes that begin there."""
    return (raw[lead] & np.uint16(0x0F)) << 12 | (raw[lead + 1] & np.uint16(0x3F)) << 6 | raw[lead + 2] & 0x3F


def pretokens_at(text: bytes, bounds: Offsets) -> pa.LargeBinaryArray:
    """The pre-tokens from each bound to the next."""
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(text)]
    )
