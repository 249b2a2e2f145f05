"""Files as both floors write and check them: whole, on the disk, named by their content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Writes a file so that a reader on the same disk sees the old one or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_draft(texts: Mapping[Path, str]) -> None:
    """Writes files of a folder that nobody sees yet; all are on the disk when this returns.

    They are waited for together, which takes a journalling file system little longer than waiting for one.
    """
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    with ThreadPoolExecutor(max_workers=len(texts)) as pool:
        list(pool.map(sync, texts))


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
