"""Fuzzed strings that reveal differences between tokenizers: mostly ASCII, a little of everything else."""

from __future__ import annotations

import random
from collections.abc import Iterator

_WORDS = ["the", "of", "and", "House", "house", "COVID-19", "don't", "U.S.", "unaffable", "3.14", "a_b", "caf\u00e9"]
_PIECES = ["[MASK]", "[CLS]", "[UNK]", "##ing", "##", "x" * 99, "y" * 100, "z" * 101, "1" * 130, "\u00e9" * 100]
_SPACES = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000"
_REMOVED = "\x00\x01\x07\x7f\x80\xad\u200b\u200c\u200d\u200e\u2060\ufeff\ufffd\ue000\U000e0001"
_SIGNS = "".join(map(chr, range(33, 127))) + "\u2010\u2014\u2018\u2019\u201c\u201d\u2026\u2027\u2028\u2044\u2052\u2053"
_MARKS = "\u0300\u0301\u0308\u0327\u0338\u0345\u093c\u3099\U0001d165"
_LETTERS = (
    "\u00c0\u00df\u0130\u0131\u017f\u01c5\u03a3\u03c2\u212a\u1e9e\u0391\u0416\u05d0\u0627\u0939\u0e01\uac00\u1100"
)
_WIDE = (
    "\u3001\u3002\u3003\u3004\u3008\u3011\u3012\u3400\u4dbf\u4dc0\u4dff\u4e00\u6c34\u9fff\ua000\uf900\uff01\U00020000"
)
_EDGES = "\u0fff\u1fff\u2000\u200f\u2030\u205e\u3fff\u8fff\u9000\udfff\ue000\uffff\U00010000\U0010ffff".replace(
    "\udfff", ""
)


def fuzzed_strings(count: int, *, seed: int) -> Iterator[str]:
    """Yield `count` strings of up to 25 parts, deterministic for a seed."""
    draw = random.Random(seed)
    kinds = (_SPACES, _REMOVED, _SIGNS, _MARKS, _LETTERS, _WIDE, _EDGES)
    for _ in range(count):
        parts = []
        for _ in range(draw.randrange(26)):
            kind = draw.random()
            if kind < 0.3:
                parts.append(draw.choice(_WORDS))
            elif kind < 0.45:
                parts.append(" ")
            elif kind < 0.47:
                parts.append(draw.choice(_PIECES))
            elif kind < 0.9:
                parts.append(draw.choice(draw.choice(kinds)))
            else:
                parts.append(_any_character(draw))
        yield "".join(parts)


def _any_character(draw: random.Random) -> str:
    while True:
        code = draw.randrange(draw.choice((0x100, 0x3000, 0x10000, 0x110000)))
        if not 0xD800 <= code < 0xE000:
            return chr(code)
