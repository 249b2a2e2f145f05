"""The kind of a file by its first bytes: text, an empty file, or a known kind of binary file."""

from __future__ import annotations

from train_jobs.artifacts.conversions import ARROW, EXCEL, PDF, RTF, WORD, ZIP, file_conversion
from train_jobs.artifacts.remote_files import TextPath
from train_jobs.artifacts.text_files import UTF16_MARKS, compression_of, file_head, json_document
from train_jobs.readers.findings import Findings

HEAD = 1 << 12  # bytes
_OFFICE = {b"xl/": EXCEL, b"word/": WORD}
"""Folder in a ZIP archive -> kind of document."""
_BINARY = {
    b"PK\x03\x04": ZIP,
    b"%PDF-": PDF,
    b"{\\rtf": RTF,
    b"ARROW1\0\0": ARROW,
    b"\xd0\xcf\x11\xe0": "an old Excel or Word document",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GIF87a": "an image",
    b"GIF89a": "an image",
    b"\x7fELF": "a program",
    b"SQLite format 3\0": "an SQLite database",
}


def binary_kind(head: bytes) -> str | None:
    """Return what kind of binary file begins with some bytes; None: it may be text."""
    if method := compression_of(head):
        return f"compressed with {method}"
    for magic, kind in _BINARY.items():
        if head.startswith(magic):
            office = (document for folder, document in _OFFICE.items() if kind == ZIP and folder in head)
            return next(office, kind)
    return "a binary file" if b"\0" in head and not head.startswith(UTF16_MARKS) else None


def check_kind(path: TextPath, findings: Findings, *, form: str, table: bool) -> bool:
    """Return whether a file may be of a format; add a problem if it is empty, binary or another kind of JSON.

    Args:
        path: the file.
        findings: receives the problem.
        form: its format: `jsonl`, or another one of text.
        table: whether a table is expected, which an Excel workbook can be exported to.

    Raises:
        DataError: the file cannot be opened.
    """
    head = file_head(path, HEAD)
    if not head.strip():
        findings.add(path, "", "is empty" if not head else "contains only white space", "give a file with text")
        return False
    if (kind := binary_kind(head)) is None:
        beginning = head.decode("utf-8-sig", errors="ignore").lstrip()
        if form != "jsonl" or (document := json_document(path, beginning)) is None:
            return True
        findings.add(path, "", *document)
        return False
    known = EXCEL if table and "Excel" in kind else kind
    fix = file_conversion(str(path), path.suffix, known) or "give files of text: convert or leave out this one"
    findings.add(path, "", f"is {kind}, not text", fix)
    return False
