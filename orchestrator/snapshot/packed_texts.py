"""The texts in a file: its own, in UTF-8, and those in it that are packed: archives, compressed files and base64.

Everything here has a limit, because an archive may unpack to any size or contain itself: what is beyond the limits is
not searched.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, NamedTuple

from orchestrator.snapshot.walk import printable

MAX_UNPACKED = 32 << 20  # bytes that are unpacked of one file, with everything packed in it
MAX_MEMBERS = 10_000  # of archives, and texts in base64, of one file
MAX_DEPTH = 5  # of packed files in packed files: there are some that contain themselves
MAX_NAME = 80  # characters of a member's name in a message
BLOCK = 1024  # bytes: an error loses the block in which it is found
ZIP, TAR, TAR_AT = b"PK\x03\x04", b"ustar", 257  # TAR_AT: place in the first header
ENDINGS = (".gz", ".bz2", ".xz")
COMPRESSED: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
DAMAGED = (
    *(OSError, EOFError, RuntimeError, ValueError, struct.error, zlib.error, lzma.LZMAError),
    *(zipfile.BadZipFile, tarfile.TarError),
)
"""Errors of damaged and of encrypted files, and of other formats that begin like one of these."""
BYTE_ORDER_MARKS = {  # those of UTF-32 first: one begins like that of UTF-16
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
# Lines of the length that `base64` and MIME write, or one run of characters.
_BASE64 = re.compile(rb"(?<![\w+/])(?:(?:[A-Za-z0-9+/]{60,100}\r?\n[ \t]*)+[A-Za-z0-9+/]+|[A-Za-z0-9+/]{24,})={0,2}")
_PROBE = 64  # characters of base64 that show whether it is a text
_NO_ASCII, _NO_TEXT = re.compile(rb"[^\t\n\r -~]"), re.compile(rb"[^\t\n\r -~\x80-\xf4]")


class Text(NamedTuple):
    """One text of a file."""

    content: bytes
    path: str
    """Of the file, or of the member of an archive."""
    packed: str = ""
    """Note for messages, such as the kind of compression."""


@dataclass
class _Allowance:
    """The rest that may be unpacked of one file."""

    size: int
    members: int


def texts_of(content: bytes, path: str = "") -> Iterator[Text]:
    """Yield the text of a file; of a packed one the texts in it, and of a damaged one also its bytes as they are."""
    return _texts(Text(content, path), MAX_DEPTH, _Allowance(MAX_UNPACKED, MAX_MEMBERS))


def base64_texts(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the texts that a text contains in base64, each with the place where it begins. They are not unpacked."""
    allowance = _Allowance(MAX_UNPACKED, MAX_MEMBERS)
    for match in _BASE64.finditer(content):
        encoded = b"".join(match[0].split()).rstrip(b"=")
        if _NO_ASCII.search(_decoded(encoded[:_PROBE])):
            continue
        allowance.size -= len(encoded)
        allowance.members -= 1
        if min(allowance.size, allowance.members) < 0:
            return
        if not _NO_TEXT.search(decoded := _decoded(encoded)):
            yield match.start(), decoded


def _decoded(encoded: bytes) -> bytes:
    """Return the whole bytes of a piece of base64 without padding."""
    bits = len(encoded) * 6 // 8 * 8
    whole = encoded[: -(-bits // 6)]
    return base64.b64decode(whole + b"=" * (-len(whole) % 4))


def _texts(packed: Text, depth: int, allowance: _Allowance) -> Iterator[Text]:
    intact, empty = True, True
    try:
        for member, whole in _members(packed, allowance) if depth else ():
            intact, empty = intact and whole, False
            yield from _texts(member, depth - 1, allowance)
    except DAMAGED:
        intact = False
    if empty or not intact:
        yield packed._replace(content=_as_utf8(packed.content))


def _members(packed: Text, allowance: _Allowance) -> Iterator[tuple[Text, bool]]:
    """Yield what is packed in a file, each with whether it could be read to its end or to that of the allowance."""
    content, path, note = packed
    if content.startswith(ZIP) or zipfile.is_zipfile(BytesIO(content)):  # a zipapp begins with a line of its own
        with zipfile.ZipFile(BytesIO(content)) as archive:
            for member in archive.infolist():
                if not member.is_dir() and _allowed(allowance):
                    read, whole = _read(partial(archive.open, member), allowance)
                    whole = whole and content.startswith(ZIP)
                    yield Text(read, member.filename, _in_archive(member.filename)), whole
    elif content.startswith(TAR, TAR_AT):
        yield from _tar_members(content, allowance)
    for magic, opened in COMPRESSED.items():
        if content.startswith(magic) and _allowed(allowance):
            read, whole = _read(partial(opened, BytesIO(content)), allowance)
            ending = next((ending for ending in ENDINGS if path.endswith(ending)), "")
            yield Text(read, path.removesuffix(ending), note or ", compressed"), whole


def _tar_members(content: bytes, allowance: _Allowance) -> Iterator[tuple[Text, bool]]:
    with tarfile.open(fileobj=BytesIO(content), mode="r:") as archive:
        for member in archive:
            if member.isfile() and _allowed(allowance):
                # from the bytes themselves: a sparse member claims any size
                read = content[member.offset_data : member.offset_data + member.size]
                yield Text(read, member.name, _in_archive(member.name)), True
        if content[archive.offset :].strip(b"\0"):
            raise tarfile.ReadError("something follows the archive")


def _allowed(allowance: _Allowance) -> bool:
    allowance.members -= 1
    return allowance.members >= 0 and allowance.size > 0


def _read(opener: Callable[[], Any], allowance: _Allowance) -> tuple[bytes, bool]:
    read = bytearray()
    try:
        with opener() as stream:
            while allowance.size > 0 and (block := stream.read1(min(BLOCK, allowance.size))):
                read += block
                allowance.size -= len(block)
    except DAMAGED:
        return bytes(read), False
    return bytes(read), True


def _in_archive(name: str) -> str:
    return f", in {printable(name)[:MAX_NAME]}"


def _as_utf8(content: bytes) -> bytes:
    """Return a text in UTF-8; other content as it is."""
    encoding = next((name for mark, name in BYTE_ORDER_MARKS.items() if content.startswith(mark)), None)
    if encoding is None and len(content) > 3 and content[:4].count(0) == 2:  # ASCII in UTF-16, without a mark
        encoding = {(0, 0): "utf-16-le"}.get((content[1], content[3])) or {(0, 0): "utf-16-be"}.get(
            (content[0], content[2])
        )
    return content.decode(encoding, errors="replace").encode() if encoding else content
