"""A search in a block gives the same result as a search in each of its lines, for every kind of pattern."""

from __future__ import annotations

import random
import re

import pytest

from orchestrator.backends.log_query import LineSearch

WORDS = ["loss", "nan|error", "error|", "", "NaN loss", "\udcff", "(?i)ERROR|nan", "\u00e4rger"]
WORDS += ["(?i)kelvin", "(?i)kelvin|\u017fun", "(?i)\u00c4RGER"]
IN_A_LINE = ["^step", "9$", "^$", "$", "^", "x*", r"step +\d+", r"loss [0-9]+\.[0-9]", "[Ee]rror", r"\bnan\b"]
IN_A_LINE += ["(?:nan|inf)$", r"(\w)\1", "a.c", "(?i)a.C", "^.{4}$", "^.+$", "9.?$", ".\u00fc", r"\\d", r"\[0", r"\."]
REACHING_OUT = [r"\Astep", r"9\Z", r"loss\s+nan", r"step[^:]*nan", r"\W\W", r"(?s)step.*nan", "step\n", "[^a-z]$"]
REACHING_OUT += ["(?!.*nan)^step", "(?<=step )nan", "(?<!x)nan", r"\D+nan", r"\Bnan", "(?m)^nan$", "(?x) n a n"]
REACHING_OUT += [r"[\s\S]*nan", "a++b", "(?>a+)b", "(?P<n>nan)", "\t", r"\t", "\r", r"\ufffd", r"\n*nan", r"\s*$"]
REACHING_OUT += ["(?s:step.*nan)", re.compile("step.*nan", re.DOTALL), re.compile("n a n", re.VERBOSE)]
PIECES = ["step 1 loss 2.5", "step 20 loss nan", "nan", "error: x", "Error", "", " ", "\t", "a\u212aelvin", "sun"]
PIECES += ["\u017fUN", "\u00e4rger", "\u00c4RGER n\u00fcr", "abc", "aab", "aXC", "loss", "  nan", "inf", "[0]"]
PIECES += ["9", "19", "step", "step:", r"\d 9"]


def blocks(seed: int) -> list[bytes]:
    """Return single lines and blocks of many: ASCII and Unicode, bytes that are not text, no final newline."""
    draw = random.Random(seed)
    made = [piece.encode() + b"\n" for piece in PIECES]
    for end in ("\n", "\r\n"):
        for ascii_only in (True, False):
            pieces = [piece for piece in PIECES if piece.isascii() or not ascii_only]
            text = "".join(draw.choice(pieces) + end for _ in range(60)).encode()
            made += [text, text + b"nan", text[:200] + b"\xff\xfe nan\n" + text[200:], b"\n" * 5, b"\n\n9"]
    return made


@pytest.mark.parametrize("pattern", WORDS + IN_A_LINE + REACHING_OUT)
def test_block_search_equals_line_search(pattern: str | re.Pattern[str]) -> None:
    compiled = re.compile(pattern)
    search = LineSearch(compiled)
    for block in blocks(1):
        lines = block.split(b"\n")
        ended = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
        texts = [line.removesuffix(b"\n").decode(errors="surrogateescape").removesuffix("\r") for line in ended]
        expected = [line for line, text in zip(ended, texts, strict=True) if compiled.search(text)]
        assert [block[start:end] for start, end in search.spans(block)] == expected
        assert search.keep(block) == b"".join(expected)


def test_literals_are_searched_before_decoding() -> None:
    class Undecodable(bytes):
        def decode(self, *_: object, **__: object) -> str:
            raise AssertionError("decoded")

    for pattern in ("nan|inf", "(?i)NaN|Inf"):
        search = LineSearch(re.compile(pattern))
        assert search.keep(Undecodable(b"step 1\nstep 2\n")) == b""
        with pytest.raises(AssertionError, match="decoded"):
            search.keep(Undecodable(b"step 1\nstep nan\n"))
