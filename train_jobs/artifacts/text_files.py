"""Text files of a source, and the format of each, from its name and its first bytes.

In a folder, files with known names are read: `.txt`, `.jsonl`, `.parquet`, `.xml`, wikiextractor's `wiki_00`, and their
compressed forms. A file that the user names is read regardless of its name.
"""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import lzma
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Literal, NamedTuple

from train_jobs.artifacts.conversions import folder_conversion
from train_jobs.artifacts.csv_tables import SEPARATORS, require_column
from train_jobs.artifacts.regular_files import open_regular
from train_jobs.artifacts.remote_files import RemoteFile, TextPath, remote_files, remote_head, sibling
from train_jobs.artifacts.unreadable import unreadable
from train_jobs.config.errors import DataError, in_shell, python_command
from train_jobs.config.prepare import Format, SourceConfig
from train_jobs.config.privacy import value_text
from train_jobs.config.urls import is_url

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
PROSE = frozenset({"", ".adoc", ".asc", ".eml", ".log", ".markdown", ".md", ".org", ".rst", ".tex"})
"""Suffixes of files that may be plain text too. A folder's are read only if a glob names them."""
_TABLES: dict[str, Format] = {".csv": "csv", ".tsv": "tsv"}
# A text may begin with the letters of bzip2 or Parquet: what must follow them is no text.
_MAGIC: dict[Compression, re.Pattern[bytes]] = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "bzip2": re.compile(rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)"),  # a block, or the end of an empty stream
    "xz": re.compile(rb"\xfd7zXZ\0"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
}
_PARQUET = re.compile(rb"PAR1[\0-\x08\x0e-\x1f]")
# Approximate text per byte on the disk. The exact values do not matter, but a change would change all stores.
EXPANDED: dict[Compression | None, int] = {None: 1, "gzip": 3, "bzip2": 4, "xz": 4, "zstd": 3}
MOST_PART_BYTES = 64 << 20  # approximate text of a part of a corpus: the work that is lost when a process dies
LEAST_PART_BYTES = 8 << 20  # a few blocks of a token store
PARTS = 32  # parts of a smaller corpus: enough for workers to finish at about the same time
FEW = 3  # files named in a message
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
HEAD = 512  # bytes that identify a format
HEADER = 1 << 16  # bytes in which the first line of a table must end
# Of bzip2 and xz, the standard library drops what follows zeros between two streams, and the job reads it.
READ_WHOLE: frozenset[Compression | None] = frozenset({None, "gzip"})
REQUESTS = 16  # to a service at the same time, for the beginnings of files
_OPENERS: dict[str, Callable[[BinaryIO], Any]] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
_STORE_FILES = frozenset({"manifest.json", "vocab.txt"})  # next to the shards of a token store
_WIKIEXTRACTOR = re.compile(r"wiki_\d+")
_PAGES = re.compile(r"-p\d+p\d+$")  # suffix of Wikipedia's partial dumps after `.xml`
# Files next to a dump that are not text: indexes, checksums, incomplete downloads.
_NO_TEXT = re.compile(r"-multistream-index\d*\.txt(-p\d+p\d+)?(\.bz2)?$|(md5|sha1|sha256)sums\.txt$|\.part$")
# An object of JSON, also over several lines, and also a truncated one: its reader reports the damage.
_JSON_OBJECT = re.compile(r'\{\s*(\}|"([^"\\]|\\.)*"\s*:)')
_WEB_PAGE = re.compile(rb"<(!doctype\s+html|html)[\s>]", re.IGNORECASE)


class SourceFile(NamedTuple):
    """A file of a source."""

    path: TextPath
    format: Format
    """Format of the file; never `auto`."""
    compression: Compression | None
    """None: not compressed."""


class SkippedFiles(NamedTuple):
    """Files below a folder of text that are not read, since their names have no format."""

    folder: Path
    """The folder."""
    read: int
    """Number of its files that are read."""
    skipped: int
    """Number of those that are not."""
    names: str
    """A few of their names."""
    fix: str | None
    """Flag or command by which more are read; None: none is known."""


def part_bytes(text: int) -> int:
    """Return the approximate bytes of text per part, 8 to 64 MiB.

    Args:
        text: approximate bytes of text of the corpus.
    """
    return min(max(text // PARTS, LEAST_PART_BYTES), MOST_PART_BYTES)


def source_files(source: SourceConfig) -> list[SourceFile]:
    """Return the files of a source in a fixed order.

    The order is that of `path`, with folders and globs sorted; a file that several of them contain is returned once.

    Raises:
        DataError: a path does not exist, a folder has no file of a known name, or a file does not match its name.
    """
    paths = list(dict.fromkeys(_expand(source.path, source.format)))
    identify = partial(_identify, source=source)
    if not any(isinstance(path, RemoteFile) for path in paths):
        return [identify(path) for path in paths]
    with ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(identify, paths))


def skipped_files(sources: Iterable[SourceConfig], read: Collection[TextPath]) -> list[SkippedFiles]:
    """Return what is not read of each local folder of the sources, apart from files known to be no text.

    Args:
        sources: sources of text.
        read: their files that are read.
    """
    found = []
    for folder in (Path(path) for source in sources for path in source.path if not is_url(path)):
        named = [path for path in _names_below(folder) if not _NO_TEXT.search(path.name)] if folder.is_dir() else []
        others = [path for path in named if path not in read]
        if others:
            names, number = _skipped_fact(others)["skipped"], len(named) - len(others)
            found.append(SkippedFiles(folder, number, len(others), names, _fix(folder, _regular(others))))
    return found


def _fix(folder: Path | str, files: Sequence[TextPath]) -> str | None:
    """Return the flag that reads files whose names have no format, or the command that makes text of them."""
    if pattern := _text_pattern(folder, files):
        return f"--data {in_shell(pattern)}"
    local = [path for path in files if isinstance(path, Path)]
    return folder_conversion(folder, local) if isinstance(folder, Path) else None


def _text_pattern(folder: Path | str, files: Sequence[TextPath]) -> str | None:
    """Return the glob that reads the most files below a folder that seem to be text; None: none do.

    The first file of a suffix stands for all of them.
    """
    by_suffix: dict[str, list[Path]] = {}
    for path in files:
        if isinstance(path, Path):  # at a URL, it would be one more request
            by_suffix.setdefault(path.suffix, []).append(path)
    prose = [suffix for suffix, same in by_suffix.items() if suffix.lower() in PROSE and _seems_text(same[0])]
    if not prose or ("" in prose and len(by_suffix) > 1):  # `*` would match all of them
        return None
    return f"{glob.escape(str(folder))}/**/*{max(prose, key=lambda suffix: len(by_suffix[suffix]))}"


def _seems_text(path: Path) -> bool:
    try:
        head = file_head(path, HEAD).lstrip()
    except DataError:  # it is skipped in any case
        return False
    return bool(head) and (b"\0" not in head or head.startswith(UTF16_MARKS)) and _WEB_PAGE.match(head) is None


def require_outside(sources: Sequence[SourceConfig], place: Path | str, *, what: str, fix: str) -> None:
    """Require that an output is not in a folder of the text, where the next start would read it as text.

    Args:
        sources: sources of text.
        place: path or URL of the output.
        what: name of the output, for the message.
        fix: fix of the error.

    Raises:
        DataError: the output is in a folder of the text.
    """
    if isinstance(place, str):
        above = [path for source in sources for path in source.path if f"{place}/".startswith(f"{path.rstrip('/')}/")]
        if above:
            raise _inside_text(place, above[0], what, fix)
        return
    target = place.resolve()
    for pattern in (pattern for source in sources for pattern in source.path if not is_url(pattern)):
        for folder in (Path(name).resolve() for name in [pattern, *glob.glob(pattern, recursive=True)]):  # noqa: PTH207
            if not folder.is_dir() or not target.is_relative_to(folder):
                continue
            if not any(part.startswith(".") for part in target.relative_to(folder).parts):
                raise _inside_text(place, pattern, what, fix)


def _inside_text(place: Path | str, pattern: str, what: str, fix: str) -> DataError:
    return DataError(
        f"{what} is in the folder of the text, and would be read as text",
        facts={"writes": place, "reads": pattern},
        fix=fix,
    )


def _expand(patterns: Iterable[str], wanted: Format) -> Iterator[TextPath]:
    for pattern in patterns:
        path = Path(pattern)
        if is_url(pattern):
            yield from _at_url(pattern, wanted)
        elif path.is_dir():
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
            raise DataError(f"{what} {pattern}", facts={"where": "data.text"}, fix="give an existing path: --data PATH")


def _at_url(pattern: str, wanted: Format) -> list[RemoteFile]:
    """Return the files of a URL, chosen as those of a path are.

    Raises:
        DataError: there is no text, or the folder is a token store.
    """
    listed = remote_files(pattern)
    if {str(below) for _, below in listed} >= _STORE_FILES:
        raise DataError(
            f"{pattern} is a token store, and training maps its files into memory",
            facts={"size": f"{sum(file.size for file, _ in listed) / 1e9:.1f} GB"},
            fix="copy it to a disk that all nodes see, then: --data FOLDER",
        )
    shown = [(file, below) for file, below in listed if below is None or not _is_hidden(below)]
    found = [
        file
        for file, below in shown
        if (_may_be(file, wanted) if below is not None else len(listed) == 1 or not _NO_TEXT.search(file.name))
    ]
    if not listed:
        raise DataError(f"no file matches {pattern}", facts={"where": "data.text"}, fix="give an existing address")
    if not found:
        raise _no_text(pattern, [file for file, _ in shown], wanted)
    return found


def _inside(folder: Path, wanted: Format) -> list[Path]:
    if not (found := _below(folder, wanted)):
        raise _no_text(folder, files_below(folder), wanted)
    return found


def _no_text(folder: Path | str, others: Sequence[TextPath], wanted: Format) -> DataError:
    """Return the error for a folder without text.

    Args:
        folder: the folder.
        others: its files.
        wanted: format of the source.
    """
    names = "*.txt, *.jsonl, *.parquet, *.xml, wiki_00" if wanted == "auto" else wanted
    table = next((path for path in others if _is_table(path)), None)
    fix = _fix(folder, others) if wanted == "auto" else None
    if table is not None:
        fix = f"--data {in_shell(table)} --column NAME"
    return DataError(
        f"no text in folder {folder}",
        facts={"need": f"{names}, plain or .gz, .bz2, .xz, .zst", **_skipped_fact(others)},
        fix=fix or "--data FILE",
    )


def _skipped_fact(files: Sequence[TextPath]) -> dict[str, str]:
    """Return the names of a few skipped files as a fact."""
    more = f" and {len(files) - FEW:,} more" if len(files) > FEW else ""
    return {"skipped": ", ".join(path.name for path in files[:FEW]) + more} if files else {}


def _is_table(path: TextPath) -> bool:
    return _table_name(path) is not None


def _below(folder: Path, wanted: Format) -> list[Path]:
    """Return the files below a folder that may have the wanted format, without hidden ones.

    One that is not a regular file, or a link to nothing, is among them: it would be missed, so reading it must fail.
    """
    return [path for path in _names_below(folder) if _may_be(path, wanted)]


def files_below(folder: Path) -> list[Path]:
    """Return the regular files below a folder, sorted, without hidden ones.

    Links to folders are followed. A folder that is found twice is listed once, under its own name if it has one there.

    Raises:
        DataError: a folder below it cannot be read.
    """
    return _regular(_names_below(folder))


def _regular(paths: Iterable[Path]) -> list[Path]:
    try:
        return [path for path in paths if path.is_file()]
    except OSError as problem:  # their folder may be listed, but not entered
        raise unreadable(Path(problem.filename), problem) from None


def _names_below(folder: Path) -> list[Path]:
    found: list[Path] = []
    seen: set[Path] = set()
    starts = [folder]
    try:
        for start in starts:  # links are appended, so that they are followed after all folders with names of their own
            for name, subfolders, names in os.walk(start, onerror=_raise):
                real = Path(name).resolve()
                if real in seen:  # also a link to a folder that contains it
                    subfolders.clear()
                    continue
                seen.add(real)
                subfolders[:] = sorted(below for below in subfolders if not _is_unlisted(below))
                starts += [link for below in subfolders if (link := Path(name, below)).is_symlink()]
                found += [Path(name, file) for file in names if not _is_unlisted(file)]
        return sorted(found)
    except OSError as problem:
        raise unreadable(Path(problem.filename), problem) from None


def _raise(problem: OSError) -> None:
    """Raise the error of a folder, which `os.walk` would leave out."""
    raise problem


def _is_unlisted(name: str) -> bool:
    return name.startswith(".") or name == "lost+found"  # at the root of a disk, and only root can read it


def _is_hidden(below: PurePath) -> bool:
    return any(part.startswith(".") for part in below.parts)


def _may_be(path: TextPath, wanted: Format) -> bool:
    if _NO_TEXT.search(path.name):
        return False
    if _WIKIEXTRACTOR.fullmatch(_plain_name(path)):
        return wanted in {"auto", "wikiextractor", "jsonl", "text"}
    if wanted in SEPARATORS:
        return _table_name(path) == wanted
    named = _format_by_name(path)
    return named is not None and (wanted in {"auto", named} or (named == "text" and wanted == "wikiextractor"))


def _plain_name(path: TextPath) -> str:
    """Return the name of a file without the suffixes of compression and page range."""
    return _PAGES.sub("", path.stem if path.suffix.lower() in COMPRESSIONS else path.name)


def _format_by_name(path: TextPath) -> Format | None:
    return FORMATS.get(Path(_plain_name(path)).suffix.lower())  # Windows writes NOTES.TXT


def _table_name(path: TextPath) -> Format | None:
    """Return the format of a table by its name, which a folder's tables have only where it is asked for."""
    return _TABLES.get(Path(_plain_name(path)).suffix.lower())


def file_head(path: TextPath, most: int) -> bytes:
    """Return the first bytes of a file.

    Raises:
        DataError: the file cannot be read.
    """
    if isinstance(path, RemoteFile):
        return remote_head(path, most)
    try:
        with open_regular(path) as stream:
            return stream.read(most)
    except OSError as problem:
        raise unreadable(path, problem) from None


def compression_of(head: bytes) -> Compression | None:
    """Return the compression of a file that begins with some bytes, at least 10; None: it is not compressed."""
    return next((name for name, magic in _MAGIC.items() if magic.match(head)), None)


def _identify(path: TextPath, source: SourceConfig) -> SourceFile:
    head = file_head(path, HEAD)
    compression = compression_of(head)
    named = COMPRESSIONS.get(path.suffix.lower())
    if named is not None and compression != named:
        raise DataError(
            f"{path} is not {named}",
            facts={"where": "byte 0", "have": _described(head)},
            fix="download it again, or correct its extension",
        )
    form = _table_name(path) if source.format == "auto" else source.format
    if form in SEPARATORS and compression != "zstd":
        require_column(path, decoded(unpacked_head(path, compression, HEADER)), form, compression, source.column)
    if form is not None and (form in SEPARATORS or source.format != "auto"):
        return SourceFile(path, form, compression)
    by_name = _format_by_name(path)
    # wikiextractor and others also write `.txt`, so the content of these decides.
    if by_name is not None and by_name != "text":
        return SourceFile(path, by_name, compression)
    return SourceFile(path, _format_by_content(path, head, compression), compression)


def _format_by_content(path: TextPath, head: bytes, compression: Compression | None) -> Format:
    if _PARQUET.match(head):
        return "parquet"
    if compression is not None:
        head = unpacked_head(path, compression, HEAD)
    beginning = decoded(head).lstrip()
    if beginning.startswith("<mediawiki"):
        return "wikipedia"
    if beginning.startswith("<doc "):
        return "wikiextractor"
    if _format_by_name(path) is None and _JSON_OBJECT.match(beginning):
        return "jsonl"
    if Path(_plain_name(path)).suffix.lower() == ".json":
        what, fix = json_document(path, beginning) or ("is not JSON Lines", "write one JSON object per line")
        raise DataError(f"{path} {what}", facts={"where": "byte 0", "have": _described(head)}, fix=fix)
    if _WEB_PAGE.match(beginning.encode(errors="replace")):
        raise DataError(
            f"{path} is a web page, not text",
            facts={"where": "byte 0", "have": _described(head)},
            fix="download it again, or set format: text to read it as text",
        )
    return "text"


def json_document(path: TextPath, beginning: str) -> tuple[str, str] | None:
    """Return problem and fix of a file of JSON that spreads over its lines; None: it may be JSON Lines."""
    copy = in_shell(sibling(path, f"{path.stem}.fixed.jsonl"))
    if beginning.startswith("["):
        code = f"import json; print(*map(json.dumps, json.load(open({str(path)!r}))), sep=chr(10))"
        return "is a JSON array, not an object in each line", f"{python_command(code)} > {copy}"
    if beginning.partition("\n")[0].strip() == "{":
        return "has JSON objects of several lines, not one in each line", f"jq -c . {in_shell(path)} > {copy}"
    return None


@contextmanager
def open_unpacked(path: TextPath, compression: Compression | None) -> Iterator[Any]:
    """Open the content of a file; of zstd, the standard library has no reader before Python 3.14.

    Raises:
        DataError: a file by URL cannot be read. Reading the stream raises it too.
        OSError: the file cannot be opened, or the data is damaged; also EOFError, LZMAError and zlib.error.
    """
    with path.open("rb") if isinstance(path, RemoteFile) else open_regular(path) as packed:
        if compression is None:
            yield packed
        else:
            with _OPENERS[compression](packed) as stream:
                yield stream


def unpacked_head(path: TextPath, compression: Compression | None, most: int) -> bytes:
    """Return the first bytes of the content of a file, as far as it can be decompressed; the reader reports damage.

    zstd is not decompressed: Python 3.11 has no reader, and Arrow's is the job's alone.
    """
    if compression == "zstd":
        return b""  # the standard library has no zstd reader before Python 3.14: the name decides
    try:
        with open_unpacked(path, compression) as stream:
            return bytes(stream.read(most))
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        return b""  # the reader of the format reports the damage with its place


def decoded(raw: bytes) -> str:
    """Return the beginning of a file as text without its byte-order mark; the reader reports wrong encodings."""
    return raw.decode("utf-16" if raw.startswith(UTF16_MARKS) else "utf-8-sig", errors="ignore")


def text_bytes(file: SourceFile) -> int:
    """Return about how many bytes of text a file holds, from its size on the disk."""
    return file.path.stat().st_size * EXPANDED[file.compression]


def _described(head: bytes) -> str:
    if not head:
        return "an empty file"
    # The first bytes of a text are part of it: only those that identify a format are shown.
    if _WEB_PAGE.match(head.lstrip()):
        return "a web page"
    return compression_of(head) or f"other content: {value_text(head[:24])}"
