"""MediaWiki's XML dumps: stream the articles of a wiki in any language, and split a dump by its index.

Wikipedia's multi-stream dumps consist of bzip2 streams of 100 pages each; an index file lists their offsets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn
from xml.parsers import expat

from train_jobs.artifacts.remote_files import RemoteFile, TextPath, remote_files, sibling
from train_jobs.artifacts.text_documents import LONGEST_FILE
from train_jobs.artifacts.text_files import compression_of
from train_jobs.config.errors import DataError
from train_jobs.corpus.sources.streams import Piece, Read, ignore, open_piece
from train_jobs.corpus.sources.wikitext import ENGLISH, Namespaces, plain_text

BLOCK = 1 << 16  # bytes parsed per call
ROOT = "mediawiki"
FILES, MEDIA, CATEGORIES = "6", "-2", "14"  # numbers of namespaces, the same in every language
_REDIRECT = re.compile(r"\s*#[^\W\d_]+\s*:?\s*\[\[")  # for dumps without the <redirect> element
_DUMP = re.compile(r"(?P<head>.*-multistream)(?P<number>\d*)\.xml(?P<pages>-p\d+p\d+)?\.bz2")
_COLLECTED = frozenset({"title", "ns", "model", "text", "namespace"})


class Article(NamedTuple):
    """A page of a dump."""

    title: str
    markup: str
    """Wikitext."""
    namespaces: Namespaces
    """Namespaces of its wiki."""


def read_wikipedia(piece: Piece, read: Read) -> Iterator[str]:
    """Yield the plain text of every article that is not empty without its markup.

    Args:
        piece: see `read_articles`.
        read: see `read_articles`.

    Raises:
        DataError: see `read_articles`.
    """
    for article in read_articles(piece, read):
        if text := plain_text(article.markup, article.namespaces):
            yield text


def read_articles(piece: Piece, read: Read) -> Iterator[Article]:
    """Yield every article: the pages of namespace 0 except redirects.

    Args:
        piece: a dump, or a range of one that begins and ends between two pages.
        read: called with the bytes read from the disk since its last call.

    Raises:
        DataError: the file is not a dump, is damaged or truncated, or has no text; the message gives the place.
    """
    # A range in the middle has neither the header with the namespaces nor the root element. The header is read
    # separately, and the root is opened and closed around the range, or the parser would refuse it.
    dump = _DumpParser(piece, _header_namespaces(piece) if piece.start > 0 else ENGLISH)
    with open_piece(piece, read) as stream:
        if piece.start > 0:
            dump.feed(f"<{ROOT}>".encode())
        while block := stream.read(BLOCK):
            dump.feed(block)
            yield from dump.articles()
        if piece.stop is not None:
            dump.feed(f"</{ROOT}>".encode())
        dump.feed(b"", last=True)
        yield from dump.articles()


def _header_namespaces(piece: Piece) -> Namespaces:
    """Return the namespaces that a dump lists in its header, before its first page."""
    dump = _DumpParser(Piece(piece.path, piece.compression), ENGLISH)
    with open_piece(dump.piece, ignore) as stream:
        for line in stream:
            dump.feed(line)
            if dump.header_ended:
                break
    return dump.namespaces


class _DumpParser:
    """Incremental parser of a dump, which keeps finished articles until `articles` is called.

    Args:
        piece: the piece, for messages.
        namespaces: known namespaces; those of the header are added.
    """

    def __init__(self, piece: Piece, namespaces: Namespaces) -> None:
        self.piece, self.namespaces = piece, namespaces
        self.header_ended = False
        self._pages = 0
        self._done: list[Article] = []
        self._fields: dict[str, str] = {}
        self._text: dict[str, str] | None = None  # attributes of the page's <text>
        self._redirect = False
        self._key = ""  # of the current <namespace>
        self._collected: list[str] = []
        self._length = 0  # characters of the current page
        self._depth = 0
        # expat directly: ElementTree's iterparse keeps every page in memory unless each is removed from its parent.
        self._parser = expat.ParserCreate()
        # Otherwise expat calls the handler once per line of text.
        self._parser.buffer_text, self._parser.buffer_size = True, BLOCK
        self._parser.StartElementHandler, self._parser.EndElementHandler = self._start, self._end

    def feed(self, block: bytes, *, last: bool = False) -> None:
        """Parse the next block."""
        try:
            self._parser.Parse(block, last)
        except expat.ExpatError as problem:
            self._refuse(problem, ended=last)

    def articles(self) -> list[Article]:
        """Return the articles that were completed since the last call."""
        done, self._done = self._done, []
        return done

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and name != ROOT:
            raise DataError(
                f"{self.piece.path} is not a MediaWiki dump",
                facts={"where": self._place(), "have": "another root element", "need": f"<{ROOT}>"},
                fix="download it again, or set its `format`",
            )
        if name in _COLLECTED:
            self._collected = []
            self._parser.CharacterDataHandler = self._collect
        if name == "page":
            self._redirect, self._fields, self._text, self._length = False, {}, None, 0
            self._pages += 1
            self.header_ended = True
        elif name == "redirect":
            self._redirect = True
        elif name == "text":
            self._text = attributes
        elif name == "namespace":
            self._key = attributes.get("key", "")

    def _collect(self, text: str) -> None:
        self._length += len(text)
        if self._length > LONGEST_FILE:
            raise DataError(
                f"{self.piece.path}: a page of more than {LONGEST_FILE >> 20} MiB",
                facts={"where": self._place()},
                fix="download the dump again; MediaWiki allows 2 MiB a page",
            )
        self._collected.append(text)

    def _end(self, name: str) -> None:
        self._depth -= 1
        if name in _COLLECTED:
            self._parser.CharacterDataHandler = None
            self._fields[name] = "".join(self._collected)
            if name == "namespace":
                self._add_namespace(self._key, self._fields[name].lower())
        elif name == "siteinfo":
            self.header_ended = True
        elif name == "page":
            self._end_page()

    def _add_namespace(self, key: str, name: str) -> None:
        if key in {FILES, MEDIA}:
            self.namespaces = self.namespaces._replace(files=self.namespaces.files | {name})
        elif key == CATEGORIES:
            self.namespaces = self.namespaces._replace(categories=self.namespaces.categories | {name})

    def _end_page(self) -> None:
        fields = self._fields
        if self._redirect or fields.get("ns", "0") != "0" or fields.get("model", "wikitext") != "wikitext":
            return
        markup = fields.get("text", "")
        # Only the attributes of <text> distinguish an empty or deleted page from a dump that contains no texts.
        empty = self._text is not None and ("deleted" in self._text or self._text.get("bytes", "0") == "0")
        if not markup and not empty:
            raise DataError(
                f"{self.piece.path}: a page has no text",
                facts={"where": self._place(), "have": "a dump without texts, or a damaged one"},
                fix="use a dump with texts: *-pages-articles*.xml.bz2",
            )
        if markup and not _REDIRECT.match(markup):
            self._done.append(Article(fields.get("title", ""), markup, self.namespaces))

    def _refuse(self, problem: expat.ExpatError, *, ended: bool) -> NoReturn:
        if ended:
            what = "contains no dump" if self._pages == 0 and self._depth == 0 else "is truncated"
        else:
            what = "is not well-formed XML"
        facts = {"where": self._place(), "why": expat.ErrorString(problem.code)}
        raise DataError(f"{self.piece.path} {what}", facts=facts, fix="download the dump again") from None

    def _place(self) -> str:
        """Return the position of the parser as line and page, counted from the beginning of the piece."""
        place = f"line {self._parser.CurrentLineNumber}" + (f", page {self._pages}" if self._pages else "")
        return place if self.piece.start == 0 else f"{place}, counted from byte {self.piece.start} of the file"


def index_of(path: TextPath) -> TextPath | None:
    """Return the index file next to a dump, compressed or not; None without one."""
    if (match := _DUMP.fullmatch(path.name)) is None:
        return None
    name = f"{match['head']}-index{match['number']}.txt{match['pages'] or ''}"
    if isinstance(path, RemoteFile):
        found = {listed.file.name: listed.file for listed in remote_files(sibling(path, f"{name}*"))}
        return found.get(f"{name}.bz2") or found.get(name)
    return next((path.with_name(name + end) for end in (".bz2", "") if path.with_name(name + end).is_file()), None)


def stream_cuts(path: TextPath, index: TextPath, distance: int) -> list[int]:
    """Return offsets of streams of a dump at which it can be divided.

    Args:
        path: path of the dump.
        index: path of its index.
        distance: minimum bytes between two offsets, and before the first one.

    Raises:
        DataError: the index is damaged, or belongs to another dump.
    """
    cuts: list[int] = []
    with path.open("rb") as dump:
        for offset in _offsets(index):
            if offset - (cuts[-1] if cuts else 0) < distance:
                continue
            dump.seek(offset)
            if compression_of(dump.read(10)) != "bzip2":
                raise DataError(
                    f"{index} is not the index of {path.name}",
                    facts={"where": f"byte {offset} of the dump", "need": "a bzip2 stream"},
                    fix=f"download both again, of the same date, or delete {index.name} to read the dump as one part",
                )
            cuts.append(offset)
    return cuts


def _offsets(index: TextPath) -> Iterator[int]:
    """Yield the offset of the stream of each page, from the lines `OFFSET:PAGE:TITLE` of the index."""
    with open_piece(Piece(str(index), "bzip2" if index.suffix == ".bz2" else None), ignore) as stream:
        for number, line in enumerate(stream, start=1):
            offset = line.partition(b":")[0]
            if not offset.isdigit():
                raise DataError(
                    f"{index} is not the index of a dump", facts={"where": f"line {number}"}, fix="download it again"
                )
            yield int(offset)
