"""JSON lines: one object a line, a field of which is a document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from train_jobs.config.errors import DataError
from train_jobs.corpus.sources.pieces import Piece
from train_jobs.corpus.sources.plain_text import not_utf8, place
from train_jobs.corpus.sources.streams import Read, open_text


def read_jsonl(piece: Piece, column: str, read: Read) -> Iterator[str]:
    """Yields the field `column` of every line; blank lines, and lines where it is null, hold no document.

    Raises:
        DataError: a line that is no JSON object, lacks the field, or has something in it that is no text.
    """
    with open_text(piece, read) as stream:
        offset = 0
        for line in stream:
            if line.strip() and (text := _field(line, column, piece, offset)) is not None:
                yield text
            offset += len(line)


def _field(line: bytes, column: str, piece: Piece, offset: int) -> str | None:
    record = _parsed(line, piece, offset)
    if not isinstance(record, dict):
        raise DataError(
            f"{piece.path} is not JSON lines: a line is no object",
            facts={"where": place(piece, offset), "have": _shown(line)},
            fix="one JSON object a line, or another format",
        )
    if column not in record:
        raise DataError(
            f"{piece.path}: a line has no field {column!r}",
            facts={"where": place(piece, offset), "have": ", ".join(map(str, record)) or "no field at all"},
            fix="set the source's column to the field that holds the text",
        )
    text = record[column]
    if text is not None and not isinstance(text, str):
        raise DataError(
            f"{piece.path}: the field {column!r} of a line is no text",
            facts={"where": place(piece, offset), "have": type(text).__name__},
            fix="set the source's column to the field that holds the text",
        )
    return text


def _parsed(line: bytes, piece: Piece, offset: int) -> Any:
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as problem:
        raise not_utf8(piece, offset + problem.start) from None
    except (ValueError, RecursionError) as problem:
        raise DataError(
            f"{piece.path} has a line that is not JSON",
            facts={"where": place(piece, offset), "why": problem, "have": _shown(line)},
            fix="mend or remove the line; a file that breaks off here was not fetched to its end",
        ) from None


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return text if len(text) <= 60 else text[:57] + "..."
