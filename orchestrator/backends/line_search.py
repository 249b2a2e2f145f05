"""Finds the lines that fit a regular expression, many lines at a time where the expression allows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

LEADING_FLAGS = re.compile(r"\(\?[aimu]+\)")
SPECIAL = set(r".^$*+?{}[]()\\")
# What may reach past the end of a line or looks at what is there; anything doubtful counts.
REACHES_OUT = re.compile(r"[\x00-\x1f]|\\(?![dwbS]|[^\w\s])|\[\^|\(\?(?!:)")
Span = tuple[int, int]


class LineSearch:
    """Lines of a block in which a pattern is found.

    A pattern that can't reach past a line's end finds the same in a whole block as in its lines. One that is words and
    nothing else (`error|warn`) need not be tried on a block whose bytes lack them, and these are far faster searched.

    Args:
        pattern: what a line, without its line end, is searched for.
    """

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._in_line = pattern.search
        body = LEADING_FLAGS.sub("", pattern.pattern, count=1)
        reaches_out = REACHES_OUT.search(body) or pattern.flags & (re.DOTALL | re.VERBOSE)
        self._in_block = None if reaches_out else re.compile(pattern.pattern, pattern.flags | re.MULTILINE).search
        self._any_case = bool(pattern.flags & re.IGNORECASE)
        # some letters beyond ASCII are, in another case, letters of ASCII
        only_words = not (reaches_out or SPECIAL & set(body)) and (body.isascii() or not self._any_case)
        words = body.split("|") if only_words else []
        self._words = [(word.lower() if self._any_case else word).encode(errors="surrogateescape") for word in words]

    def keep(self, block: bytes) -> bytes:
        """The lines that fit, out of whole ones."""
        return b"".join([block[start:end] for start, end in self.spans(block)])

    def spans(self, block: bytes) -> Iterator[Span]:
        """Where the lines that fit begin and end."""
        if self._words and self._lacks_words(block):
            return
        text = block.decode(errors="surrogateescape")
        if self._in_block is None or "\r" in text:  # `$` fits before \n, and not before \r\n
            found = self._one_by_one(text)
        else:
            found = self._at_once(text, self._in_block)
        yield from found if len(text) == len(block) else _in_bytes(text, found)

    def _lacks_words(self, block: bytes) -> bool:
        if self._any_case:
            if not block.isascii():  # there are letters beyond ASCII whose other case is within
                return False
            block = block.lower()
        return not any(word in block for word in self._words)

    def _one_by_one(self, text: str) -> Iterator[Span]:
        start = 0
        for line in text.split("\n"):
            end = start + len(line) + 1
            if self._in_line(line.removesuffix("\r")) and start < len(text):
                yield start, end
            start = end

    def _at_once(self, text: str, search: Callable[[str, int], re.Match[str] | None]) -> Iterator[Span]:
        end = 0
        while end < len(text) and (found := search(text, end)):
            start = text.rfind("\n", 0, found.start()) + 1
            if start == len(text):  # behind the last line's end
                return
            end = text.find("\n", found.start()) + 1 or len(text)
            yield start, end


def _in_bytes(text: str, spans: Iterable[Span]) -> Iterator[Span]:
    """The same places, counted in bytes."""
    characters = count = 0
    for start, end in spans:
        first = count + len(text[characters:start].encode(errors="surrogateescape"))
        count = first + len(text[start:end].encode(errors="surrogateescape"))
        characters = end
        yield first, count
