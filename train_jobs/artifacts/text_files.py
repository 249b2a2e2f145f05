"""Which files a source stands for, and what each of them is: by its name, and by how it begins.

Folders give every file of a known name (`.txt`, `.jsonl`, `.parquet`, `.xml`, wikiextractor's `wiki_00`, each also
compressed); what is named outright is read whatever it is called.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from train_jobs.config.errors import DataError
from train_jobs.config.names import in_shell
from train_jobs.config.text import Format, SourceConfig

Compression = Literal["gzip", "bzip2", "xz", "zstd"]

COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
FORMATS: dict[str, Format] = {
    ".txt": "text",
    ".text": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".xml": "wikipedia",
}
TABLES = (".csv", ".tsv")  # which are no text: separators and the names of columns would be learned
MAGIC: dict[Compression, bytes] = {
    "gzip": b"\x1f\x8b",
    "bzip2": b"BZh",
    "xz": b"\xfd7zXZ\0",
    "zstd": b"\x28\xb5\x2f\xfd",
}
MOST_PART_BYTES = 64 << 20  # of text, about: what a part of a corpus holds, and what is lost when a process dies
LEAST_PART_BYTES = 8 << 20  # some blocks of a token store
PARTS = 32  # of less text: enough for workers to end at about the same time
FEW = 3  # files that are named of many
HEAD = 512  # bytes that tell one format from another
_OPENERS: dict[str, Callable[[Path], Any]] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
_WIKIEXTRACTOR = re.compile(r"wiki_\d+")
_PAGES = re.compile(r"-p\d+p\d+$")  # what Wikipedia's partial dumps have behind `.xml`
_NO_TEXT = re.compile(
    r"-multistream-index\d*\.txt(-p\d+p\d+)?(\.bz2)?$|(md5|sha1|sha256)sums\.txt$|\.part$"
)  # beside a dump
_WEB_PAGE = re.compile(rb"<(!doctype\s+html|html)[\s>]", re.IGNORECASE)


class SourceFile(NamedTuple):
    """A file of a source."""

    path: Path
    format: Format
    """What is in it; never `auto`."""
    compression: Compression | None


def part_bytes(text: int) -> int:
    """How much text each part of a corpus holds, about, given that of all of them: from 8 to 64 MB."""
    return min(max(text // PARTS, LEAST_PART_BYTES), MOST_PART_BYTES)


def source_files(source: SourceConfig) -> list[SourceFile]:
    """The files of a source, in a fixed order: as `path` lists them, folders and globs sorted, each file once.

    Raises:
        DataError: a path does not exist, a folder holds no file of a known name, or a file is not what it is called.
    """
    found = _expand(source.path, source.format)
    return [_identify(path, source.format) for path in dict.fromkeys(found)]


def require_outside(sources: Sequence[SourceConfig], place: Path, *, what: str, fix: str) -> None:
    """What a job writes may not lie in a folder that it reads all of: the next start would take it for text.

    Args:
        sources: of text.
        place: where it writes.
        what: that is, for the message.
        fix: what to do.

    Raises:
        DataError: it does lie there.
    """
    target = place.resolve()
    for pattern in (pattern for source in sources for pattern in source.path):
        for folder in (Path(name).resolve() for name in [pattern, *glob.glob(pattern, recursive=True)]):  # noqa: PTH207
            if not folder.is_dir() or not target.is_relative_to(folder):
                continue
            if not any(part.startswith(".") for part in target.relative_to(folder).parts):
                raise DataError(
                    f"{what} lies in the folder of the text, and would be read as text",
                    facts={"writes": place, "reads": pattern},
                    fix=fix,
                )


def _expand(patterns: Iterable[str], wanted: Format) -> Iterator[Path]:
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            yield from _inside(path, wanted)
        elif path.exists():
            yield path
        elif matches := sorted(Path(name) for name in glob.glob(pattern, recursive=True)):  # noqa: PTH207  # `**` of it
            for match in matches:
                if match.is_dir():
                    yield from _below(match, wanted)
                elif not _NO_TEXT.search(match.name):
                    yield match
        else:
            what = "no file matches" if glob.has_magic(pattern) else "no such file or folder:"
            raise DataError(f"{what} {pattern}", facts={"where": "data.text"}, fix="--data PATH")


def _inside(folder: Path, wanted: Format) -> list[Path]:
    if not (found := _below(folder, wanted)):
        names = "*.txt, *.jsonl, *.parquet, *.xml, wiki_00" if wanted == "auto" else wanted
        others = _files_below(folder)
        table = next((path for path in others if _is_table(path)), None)
        raise DataError(
            f"no text in folder {folder}",
            facts={"need": f"{names}, plain or .gz, .bz2, .xz, .zst", **_passed_over(others)},
            fix="give the files themselves: --data FILE ..." if table is None else _table_fix(table),
        )
    return found


def _passed_over(files: Sequence[Path]) -> dict[str, str]:
    """A fact: what files are called, a few of them."""
    more = f" and {len(files) - FEW:,} more" if len(files) > FEW else ""
    return {"passed over": ", ".join(path.name for path in files[:FEW]) + more} if files else {}


def _is_table(path: Path) -> bool:
    return Path(_plain_name(path)).suffix.lower() in TABLES


def _table_fix(path: Path) -> str:
    lines, whole = Path(_plain_name(path)).stem + ".jsonl", in_shell(f"data.text=[{{path: {path}, format: text}}]")
    return (
        f'write each row as a document in JSON lines, {{"text": ...}}, and give those: --data {in_shell(lines)}; '
        f"or, if every line is nothing but text: --set {whole}"
    )


def _below(folder: Path, wanted: Format) -> list[Path]:
    """Files below a folder that may be of a format, without the hidden ones."""
    return [path for path in _files_below(folder) if _may_be(path, wanted)]


def _files_below(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _may_be(path: Path, wanted: Format) -> bool:
    if _NO_TEXT.search(path.name):
        return False
    if _WIKIEXTRACTOR.fullmatch(_plain_name(path)):
        return wanted in {"auto", "wikiextractor", "jsonl", "text"}
    named = _format_by_name(path)
    return named is not None and (wanted in {"auto", named} or (named == "text" and wanted == "wikiextractor"))


def _plain_name(path: Path) -> str:
    """The name without what tells of a compression, or of a range of pages."""
    return _PAGES.sub("", path.stem if path.suffix in COMPRESSIONS else path.name)


def _format_by_name(path: Path) -> Format | None:
    return FORMATS.get(Path(_plain_name(path)).suffix)


def _identify(path: Path, wanted: Format) -> SourceFile:
    try:
        with path.open("rb") as stream:
            head = stream.read(HEAD)
    except PermissionError:
        raise DataError(f"cannot read {path}", fix=f"chmod u+r {in_shell(path)}") from None
    compression = next((name for name, magic in MAGIC.items() if head.startswith(magic)), None)
    named = COMPRESSIONS.get(path.suffix)
    if named is not None and compression != named:
        raise DataError(
            f"{path} is not {named}",
            facts={"where": "byte 0", "have": _described(head)},
            fix="fetch it again, or give it its true name",
        )
    if wanted != "auto":
        return SourceFile(path, wanted, compression)
    by_name = _format_by_name(path)
    if by_name is not None and by_name != "text":
        return SourceFile(path, by_name, compression)
    return SourceFile(path, _format_by_content(path, head, compression), compression)


def _format_by_content(path: Path, head: bytes, compression: Compression | None) -> Format:
    if head.startswith(b"PAR1"):
        return "parquet"
    if _is_table(path):
        raise DataError(f"{path} is a table, not text", facts={"need": "documents"}, fix=_table_fix(path))
    if compression is not None:
        head = _decompressed_head(path, compression)
    beginning = decoded_head(head).lstrip()
    if beginning.startswith("<mediawiki"):
        return "wikipedia"
    if beginning.startswith("<doc "):
        return "wikiextractor"
    if beginning.startswith("{") and Path(_plain_name(path)).suffix not in FORMATS:
        return "jsonl"
    if Path(_plain_name(path)).suffix == ".json":
        raise DataError(
            f"{path} is not JSON lines",
            facts={"where": "byte 0", "have": _described(head)},
            fix="one JSON object a line: jq -c '.[]' FILE.json > FILE.jsonl",
        )
    if _WEB_PAGE.match(beginning.encode(errors="replace")):
        raise DataError(
            f"{path} is a web page, not text",
            facts={"where": "byte 0", "have": _described(head)},
            fix="fetch it again; or, to read it as it is, give its format: text",
        )
    return "text"


def decoded_head(head: bytes) -> str:
    """How a text begins, for what can be told of its first signs: UTF-8, or UTF-16 by its byte-order mark."""
    utf16 = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    return head.decode("utf-16" if utf16 else "utf-8-sig", errors="ignore")


def _decompressed_head(path: Path, compression: Compression) -> bytes:
    if compression == "zstd":
        return b""  # no reader in Python 3.11's library: the name decides
    try:
        with _OPENERS[compression](path) as stream:
            head: bytes = stream.read(HEAD)
            return head
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        return b""  # the reader will say where


def _described(head: bytes) -> str:
    return f"begins with {head[:24]!r}" if head else "an empty file"
