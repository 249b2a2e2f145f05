"""Readers of text formats: plain text, JSON Lines, the output of wikiextractor, and the embedded corpus.

- plain text: UTF-8, split by `text_documents`
- JSON Lines: one object per line, one field of which is a document
- wikiextractor: `<doc ...>`, the title, the text, `</doc>`
- embedded corpus: docstrings of Python's standard library and topics of its language reference
"""

from __future__ import annotations

import ast
import csv
import html
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import BinaryIO

from train_jobs.artifacts.csv_tables import DOUBLED, UNBALANCED, TableRows, carriage_returns
from train_jobs.artifacts.remote_files import sibling
from train_jobs.artifacts.text_documents import LONGEST_FILE, plain_newlines, split_documents, without_gutenberg
from train_jobs.artifacts.text_files import UTF16_MARKS
from train_jobs.config.errors import DataError, in_shell
from train_jobs.config.prepare import BLANK_LINE
from train_jobs.config.privacy import header_text, names_text, problem_text, value_text
from train_jobs.corpus.sources.streams import (
    BOM,
    Piece,
    Read,
    bounded_lines,
    ignore,
    open_piece,
    open_text,
    require_text,
    unpacked,
)

CHUNK = 1 << 20  # bytes decoded per call
MIN_DOCSTRING_CHARACTERS = 200  # modules with shorter docstrings are skipped
TOPICS = ("pydoc_data", "topics.py")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_ARTICLE_FIELDS = frozenset({"id", "url", "title", "text"})  # of `wikiextractor --json`
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-fA-F]+|[a-zA-Z][a-zA-Z0-9]*);")
_TRIPLE_QUOTED = re.compile(r'"""(.*?)"""', re.DOTALL)
_RULE = re.compile(r"^[ \t]*[^\w\s]{3,}[ \t]*$\n?", re.MULTILINE)  # underlined titles: each sign would be a token


def read_text(piece: Piece, read: Read, *, rule: str = BLANK_LINE, strip_gutenberg: bool = False) -> Iterator[str]:
    """Yield each document of plain text.

    A byte-order mark and carriage returns at line ends are dropped. Memory holds one document and one chunk at most.

    Args:
        piece: a file, or a range of one between two documents.
        read: called with the bytes read from the disk since its last call.
        rule: what separates documents, see `split_documents`.
        strip_gutenberg: drop header, footer and licence of Project Gutenberg.

    Raises:
        DataError: the file is not UTF-8 (the message gives the place) or cannot be read.
    """
    with open_text(piece, read) as stream:
        chunks = _decoded_chunks(stream, piece)
        yield from split_documents(without_gutenberg(chunks) if strip_gutenberg else chunks, rule)


def _decoded_chunks(stream: BinaryIO, piece: Piece) -> Iterator[str]:
    """Yield UTF-8 as texts of about a megabyte, each of complete lines that end with `\\n`."""
    done = 0
    while raw := stream.read(CHUNK):
        if not raw.endswith(b"\n"):
            raw += stream.readline(LONGEST_FILE)
            require_text(raw, piece)
        chunk = plain_newlines(_decoded(raw, piece, done))
        done += len(raw)
        yield chunk if chunk.endswith("\n") else chunk + "\n"


def _decoded(raw: bytes, piece: Piece, offset: int) -> str:
    """Decode UTF-8.

    Args:
        raw: bytes of a piece.
        piece: the piece, for messages.
        offset: offset of the bytes in the decompressed piece.

    Raises:
        DataError: the bytes are not UTF-8; the fix is a command that converts the file.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as problem:
        name = PurePath(PurePath(piece.path).stem if piece.compression else piece.path)
        converted = in_shell(sibling(piece.path, f"{name.stem}.utf8{name.suffix}"))
        source = f"{unpacked(piece)}iconv -f latin1 -t utf-8" + (
            "" if piece.compression else f" {in_shell(piece.path)}"
        )
        raise DataError(
            f"{piece.path} is not UTF-8",
            facts={"where": _place(piece, offset + problem.start)},
            fix=f"{source} > {converted}",
        ) from None


def _place(piece: Piece, offset: int) -> str:
    """Return the byte and the line in the file of a byte of a piece.

    Args:
        piece: a file, or a range of one.
        offset: offset of the byte in the decompressed piece, without a byte-order mark.
    """
    # Lines are counted by reading the file again: only an error needs them, and counting always would cost every read.
    whole = Piece(piece.path, piece.compression)
    with open_piece(whole, ignore) as stream:
        head = stream.peek(len(BOM))  # type: ignore[attr-defined]  # a BufferedReader
    byte = piece.start + offset
    if piece.start == 0 and head.startswith(BOM):
        byte += len(BOM)
    lines, left = 1, byte
    with (open_text if head.startswith(UTF16_MARKS) else open_piece)(whole, ignore) as stream:
        while left > 0 and (block := stream.read(min(left, CHUNK))):
            lines += block.count(b"\n")
            left -= len(block)
    return f"byte {byte}, line {lines}"


def read_jsonl(piece: Piece, column: str, read: Read) -> Iterator[str]:
    """Yield the field `column` of every line; blank lines, and lines where it is null, are skipped.

    Args:
        piece: a file, or a range of complete lines of one.
        column: name of the field.
        read: called with the bytes read from the disk since its last call.

    Articles of `wikiextractor --json` are recognised by their fields: their titles are dropped, and articles without
    text are no documents.

    Raises:
        DataError: a line is not a JSON object, or the field is missing or not text.
    """
    with open_text(piece, read) as stream:
        offset = 0
        for line in bounded_lines(stream, piece):
            if line.strip() and (text := _field(line, column, piece, offset)) is not None:
                yield text
            offset += len(line)


def read_table(piece: Piece, column: str, read: Read, *, separator: str) -> Iterator[str]:
    """Yield a column of every row of a table with a header; empty fields are skipped.

    Args:
        piece: a whole file.
        column: name of the column.
        read: called with the bytes read from the disk since its last call.
        separator: a comma, whose fields may be quoted, or a tab, whose fields are not.

    Raises:
        DataError: the column is missing or duplicate, or a row has too few fields or cannot be read.
    """
    with open_text(piece, read) as stream:
        rows = TableRows(_text_lines(stream, piece), separator)
        try:
            header = next(rows, [])
            if column not in header:
                have = header_text(header, [column])
                raise DataError(f"{piece.path} has no column {column!r}", facts={"have": have}, fix="--column NAME")
            if header.count(column) > 1:
                what = f"{piece.path} has the column {column!r} {header.count(column)} times"
                raise DataError(what, fix="rename one of them in the first line")
            at = header.index(column)
            for row in rows:
                if row and len(row) != len(header):
                    what = f"a row has {len(row)} fields, and the header {len(header)}"
                    fix = f"sed -n {rows.line}p {in_shell(piece.path)} shows it"
                    raise DataError(f"{piece.path}: {what}", facts={"where": f"line {rows.line}"}, fix=fix)
                if row and row[at].strip():
                    yield row[at]
        except csv.Error as problem:
            returns = carriage_returns(problem, piece.path, rows.line, piece.compression)
            what, fix = returns or (UNBALANCED, DOUBLED)
            where = f"line {rows.line}" if returns else f"before line {rows.line}"
            facts = {"where": where, "why": problem_text(problem)}
            raise DataError(f"{piece.path}: {what}", facts=facts, fix=fix) from None


def _text_lines(stream: BinaryIO, piece: Piece) -> Iterator[str]:
    offset = 0
    for line in bounded_lines(stream, piece):
        yield _decoded(line, piece, offset)
        offset += len(line)


def _field(line: bytes, column: str, piece: Piece, offset: int) -> str | None:
    text = _decoded(line, piece, offset)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise DataError(
            f"{piece.path} has a line that is not JSON",
            facts={"where": _place(piece, offset), "why": problem_text(problem), "have": value_text(text.strip())},
            fix="correct or remove the line; if the file ends here, download it again",
        ) from None
    if not isinstance(record, dict):
        raise DataError(
            f"{piece.path} is not JSON Lines: a line is not an object",
            facts={"where": _place(piece, offset), "have": value_text(text.strip())},
            fix="write one JSON object per line, or set another `format`",
        )
    field = record.get(column)
    if _is_wikiextractor(record, column):
        return _without_title(record)
    if column in record and (field is None or isinstance(field, str)):
        return field
    if column in record:
        what, have = f"the field {column!r} of a line is not text", type(field).__name__
    else:
        what, have = f"a line has no field {column!r}", names_text(list(map(str, record)), none="no fields")
    raise DataError(
        f"{piece.path}: {what}",
        facts={"where": _place(piece, offset), "have": have},
        fix="set the source's `column` to the field that contains the text",
    )


def _is_wikiextractor(record: dict[str, object], column: str) -> bool:
    """Return whether a line is an article of `wikiextractor --json`."""
    known = record.keys() >= _ARTICLE_FIELDS and record.keys() <= _ARTICLE_FIELDS | {"revid"}
    return known and column == "text" and "?curid=" in str(record["url"])


def _without_title(article: dict[str, object]) -> str | None:
    """Return the text of an article; version 3 of wikiextractor writes no title before it, earlier ones do."""
    text, title = unescaped(str(article["text"] or "")), unescaped(str(article["title"]))
    first, _, below = text.lstrip("\n").partition("\n")
    return (below if unescaped(first).strip() == title.strip() else text).strip() or None


def read_wikiextractor(piece: Piece, read: Read) -> Iterator[str]:
    """Yield the text of every article without its title; articles without text are skipped.

    Entities that wikiextractor wrote (`&lt;`) are replaced by their characters. Output of its option --json is read as
    JSON Lines.

    Args:
        piece: a file, or a range of one between two articles.
        read: called with the bytes read from the disk since its last call.

    Raises:
        DataError: there is text outside of an article, or an article has no end.
    """
    with open_text(piece, read) as stream:
        lines: list[bytes] | None = None
        offset = 0
        for line in bounded_lines(stream, piece):
            if lines is None:
                if line.startswith(b"{"):
                    if (article := _field(line, "text", piece, offset)) is not None:
                        yield article
                elif line.startswith(b"<doc "):
                    lines, start = [], offset
                elif line.strip():
                    raise _not_wikiextractor(piece, offset, "text outside of an article")
            elif line.rstrip(b"\r\n") == b"</doc>":
                text = _decoded(b"".join(lines), piece, start)
                below_title = text.replace("\r\n", "\n").split("\n", 2)[2:]
                if document := unescaped("".join(below_title).strip()):
                    yield document
                lines = None
            if lines is not None:
                lines.append(line)
            offset += len(line)
        if lines is not None:
            raise _not_wikiextractor(piece, start, "an article has no end")


def unescaped(text: str) -> str:
    """Replace HTML entities with a semicolon, such as `&amp;`, by their characters."""
    # `html.unescape` alone would also replace entities without a semicolon, such as `&not` in `&notice`.
    return _ENTITY.sub(lambda match: html.unescape(match[0]), text) if "&" in text else text


def _not_wikiextractor(piece: Piece, offset: int, what: str) -> DataError:
    return DataError(
        f"{piece.path} is not wikiextractor's output: {what}",
        facts={"where": _place(piece, offset)},
        fix="run wikiextractor again, or give the XML dump itself",
    )


def embedded_documents(files: list[Path]) -> Iterator[str]:
    """Yield the documents in Python source files: topics of the language reference, and docstrings.

    The docstrings of a module (module, classes, functions, in source order) are one document, joined by blank lines.
    Modules with fewer than 200 characters of docstrings, and files that do not parse, are skipped.

    Args:
        files: files of the standard library, see `fingerprints.embedded_files`.
    """
    for path in files:
        source = path.read_text(encoding="utf-8", errors="replace")
        if path.parts[-2:] == TOPICS:
            yield from _topics(source)
        elif document := _docstrings(source):
            yield document


def _topics(source: str) -> Iterator[str]:
    """Yield the values of the one dict literal of pydoc_data/topics.py; the file is parsed, never run."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            texts = [value.value for value in node.values if isinstance(value, ast.Constant)]
            yield from (_without_rules(text) for text in texts if isinstance(text, str) and text.strip())


def _docstrings(source: str) -> str | None:
    if sum(len(text) for text in _TRIPLE_QUOTED.findall(source)) < MIN_DOCSTRING_CHARACTERS:
        return None  # a third of the library, including its largest tables, is skipped without parsing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the source of the standard library
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    document = "\n\n".join(_walk(tree))
    return _without_rules(document) if len(document) >= MIN_DOCSTRING_CHARACTERS else None


def _walk(node: Documented) -> Iterator[str]:
    if docstring := ast.get_docstring(node):
        yield docstring
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _walk(child)


def _without_rules(text: str) -> str:
    return _RULE.sub("", text).strip()
