"""What wikiextractor makes of a Wikipedia dump: `<doc ...>`, the title, the text, `</doc>`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from train_jobs.config.errors import DataError
from train_jobs.corpus.sources.pieces import Piece
from train_jobs.corpus.sources.plain_text import not_utf8, place
from train_jobs.corpus.sources.streams import Read, open_text

_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-fA-F]+|[a-zA-Z][a-zA-Z0-9]*);")
_FIX = "extract the dump again; its own XML can be given as it is"


def read_wikiextractor(piece: Piece, read: Read) -> Iterator[str]:
    """Yields the text of every article without its title; articles that are a title only hold no document.

    Entities that wikiextractor wrote (`&lt;`) become the signs that they stand for.

    Raises:
        DataError: text outside of an article, or an article without an end.
    """
    with open_text(piece, read) as stream:
        lines: list[bytes] | None = None
        offset = 0
        for line in stream:
            if lines is None:
                if line.startswith(b"<doc "):
                    lines, start = [], offset
                elif line.strip():
                    raise _misplaced(piece, offset, "text outside of an article")
            elif line.rstrip(b"\r\n") == b"</doc>":
                if text := _article(lines, piece, start):
                    yield text
                lines = None
            if lines is not None:
                lines.append(line)
            offset += len(line)
        if lines is not None:
            raise _misplaced(piece, start, "an article has no end")


def unescaped(text: str) -> str:
    """HTML's entities as the signs that they stand for, where they are written in full."""
    return _ENTITY.sub(lambda match: html.unescape(match[0]), text) if "&" in text else text


def _article(lines: list[bytes], piece: Piece, start: int) -> str:
    """The text below the title, of an article without its last line."""
    try:
        text = b"".join(lines).decode()
    except UnicodeDecodeError as problem:
        raise not_utf8(piece, start + problem.start) from None
    below = text.replace("\r\n", "\n").split("\n", 2)[2:]
    return unescaped("".join(below).strip())


def _misplaced(piece: Piece, offset: int, what: str) -> DataError:
    return DataError(
        f"{piece.path} is not wikiextractor's output: {what}",
        facts={"where": place(piece, offset)},
        fix=_FIX,
    )
