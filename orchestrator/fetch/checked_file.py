"""What is to be fetched, what has been, and what is made sure of in between."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from orchestrator.support.errors import DataError

Progress = Callable[[str, int, int | None], None]  # name of the file, bytes of it that are there, bytes in all
Notice = Callable[[str], None]  # a sentence: what keeps it, and that it is tried again
WEB_PAGE = (b"<!doctype html", b"<html")


def nobody(name: str, done: int, total: int | None) -> None:
    """Tells nobody."""


def silent(sentence: str) -> None:
    """Says nothing."""


class Checksum(NamedTuple):
    """What a file's content hashes to."""

    kind: Literal["md5", "sha1", "sha256"]
    value: str


@dataclass(frozen=True)
class Remote:
    """A file that is published."""

    path: str
    """Behind the address of any mirror."""
    checksum: Checksum | None = None
    size: int | None = None
    """Bytes: a server that has another number of them need not send them."""

    @property
    def name(self) -> str:
        """Its last part."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Fetched:
    """Something that is here now."""

    path: Path
    bytes: int
    new: bool
    """Whether it came now; else it was here already."""
    checked: str
    """What was compared with what is known of it."""


def verify(path: Path, remote: Remote) -> str:
    """Compares a file with all that is known of it; returns what that was.

    Raises:
        DataError: it is empty, a web page, or not what was published.
    """
    if path.stat().st_size == 0:
        raise DataError(f"{remote.name} came empty", facts={"file": path}, fix="--mirror URL of another place")
    if is_web_page(path):
        raise DataError(
            f"{remote.name} came as a web page, not as data", facts={"file": path}, fix="--mirror URL of another place"
        )
    if remote.checksum is None:
        return "content type"
    with path.open("rb") as stream:
        have = hashlib.file_digest(stream, remote.checksum.kind).hexdigest()
    if have != remote.checksum.value:
        raise DataError(
            f"{remote.name} has the wrong checksum",
            facts={"need": f"{remote.checksum.kind} {remote.checksum.value}", "have": have},
            fix="--mirror URL of another place",
        )
    return remote.checksum.kind


def is_web_page(path: Path) -> bool:
    """Whether a file begins as HTML does."""
    with path.open("rb") as stream:
        return stream.read(256).lstrip().lower().startswith(WEB_PAGE)
