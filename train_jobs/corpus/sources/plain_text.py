"""Plain text: UTF-8, blank lines between documents, as Google's `create_pretraining_data.py` has it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from train_jobs.config.errors import DataError
from train_jobs.config.names import in_shell
from train_jobs.corpus.sources.pieces import Piece
from train_jobs.corpus.sources.streams import BOM, UTF16_BOMS, Read, ignore, open_piece, open_text, unpacked

CHUNK = 1 << 20  # bytes decoded at once
_BLANK_LINES = re.compile(r"\n\s*\n")
_RETURNS = re.compile(r"\r+(?=\n|\Z)")


def read_text(piece: Piece, read: Read) -> Iterator[str]:
    """Yields each document of plain text, its lines joined by newlines; a file without a blank line is one.

    A byte-order mark and carriage returns at the ends of lines are dropped. No more than one document, and what is
    read at once, is in memory.

    Raises:
        DataError: what is read is not UTF-8 (the message says where), or cannot be read.
    """
    with open_text(piece, read) as stream:
        pending: list[str] = []
        for chunk in decoded_chunks(stream, piece):
            # A chunk is whole lines, and the newline before its first line is seen with it: blank lines are found
            # wherever the chunks are cut.
            first, *others = _BLANK_LINES.split("\n" + chunk)
            pending.append(first)
            for other in others:
                if document := _joined(pending):
                    yield document
                pending = [other]
            pending[-1] = pending[-1].removesuffix("\n")
        if document := _joined(pending):
            yield document


def decoded_chunks(stream: BinaryIO, piece: Piece) -> Iterator[str]:
    """Yields UTF-8 as texts of about a megabyte, each of whole lines with `\\n` at the end of every one.

    Raises:
        DataError: it is not UTF-8.
    """
    done = 0
    while raw := stream.read(CHUNK):
        if not raw.endswith(b"\n"):
            raw += stream.readline()
        try:
            chunk = raw.decode("utf-8")
        except UnicodeDecodeError as problem:
            raise not_utf8(piece, done + problem.start) from None
        done += len(raw)
        if "\r" in chunk:
            chunk = chunk.replace("\r\n", "\n")
            if "\r" in chunk:
                chunk = _RETURNS.sub("", chunk)
        yield chunk if chunk.endswith("\n") else chunk + "\n"


def not_utf8(piece: Piece, offset: int) -> DataError:
    """Text that is not UTF-8 at a byte, counted from where the piece begins."""
    path = Path(piece.path)
    name = path.with_suffix("") if piece.compression else path
    converted = name.with_suffix(f".utf8{name.suffix}")
    source = f"{unpacked(piece)}iconv -f latin1 -t utf-8" + ("" if piece.compression else f" {in_shell(path)}")
    return DataError(
        f"{path} is not UTF-8", facts={"where": place(piece, offset)}, fix=f"{source} > {in_shell(converted)}"
    )


def place(piece: Piece, offset: int) -> str:
    """Where in its file a byte of a piece is, counted from where the text of the piece begins: as byte and line."""
    whole = Piece(piece.path, piece.compression)
    with open_piece(whole, ignore) as stream:
        head = stream.peek(len(BOM))  # type: ignore[attr-defined]  # a BufferedReader
    byte = piece.start + offset
    if piece.start == 0 and head.startswith(BOM):
        byte += len(BOM)
    lines, left = 1, byte
    with (open_text if head.startswith(UTF16_BOMS) else open_piece)(whole, ignore) as stream:
        while left > 0 and (block := stream.read(min(left, CHUNK))):
            lines += block.count(b"\n")
            left -= len(block)
    return f"byte {byte}, line {lines}"


def _joined(pieces: list[str]) -> str:
    return "".join(pieces).strip("\n")
