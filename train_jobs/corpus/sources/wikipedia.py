"""MediaWiki's XML dumps: the articles of a wiki in any language, streamed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn
from xml.parsers import expat

from train_jobs.config.errors import DataError
from train_jobs.corpus.sources.pieces import Piece
from train_jobs.corpus.sources.streams import Read, ignore, open_piece
from train_jobs.corpus.sources.wikitext import ENGLISH, Namespaces, plain_text

BLOCK = 1 << 16  # bytes parsed at once
ROOT = "mediawiki"
FILES, MEDIA, CATEGORIES = "6", "-2", "14"  # numbers of namespaces, in every language
_REDIRECT = re.compile(r"\s*#[^\W\d_]+\s*:?\s*\[\[")  # of dumps without the element
_COLLECTED = frozenset({"title", "ns", "model", "text", "namespace"})


class Article(NamedTuple):
    """A page of a dump."""

    title: str
    markup: str
    namespaces: Namespaces
    """Of the wiki that it is from."""


def read_wikipedia(piece: Piece, read: Read) -> Iterator[str]:
    """Yields the plain text of every article that holds a passage; arguments and errors are of `read_articles`."""
    for article in read_articles(piece, read):
        if text := plain_text(article.markup, article.namespaces):
            yield text


def read_articles(piece: Piece, read: Read) -> Iterator[Article]:
    """Yields every article: pages of namespace 0 that are no redirects.

    Args:
        piece: a dump, or a range of one that begins and ends between two pages.
        read: called with the number of bytes that have been read from the disk.

    Raises:
        DataError: no dump, broken or cut off, or one of a kind that holds no text; the message says where.
    """
    namespaces = _header(piece) if piece.start > 0 else None
    dump = _Dump(piece, namespaces)
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


def _header(piece: Piece) -> Namespaces:
    """The namespaces that a dump names before its first page."""
    dump = _Dump(Piece(piece.path, piece.compression), None)
    with open_piece(dump.piece, ignore) as stream:
        for line in stream:
            dump.feed(line)
            if dump.header_ended:
                break
    return dump.namespaces


class _Dump:
    """What the parser has found so far: of pages the one that it is in, and those that nobody has taken yet."""

    def __init__(self, piece: Piece, namespaces: Namespaces | None) -> None:
        self.piece = piece
        self.namespaces = namespaces or ENGLISH
        self.header_ended = False
        self._pages = 0
        self._done: list[Article] = []
        self._fields: dict[str, str] = {}
        self._text: dict[str, str] | None = None  # attributes of the page's text
        self._redirect = False
        self._key = ""  # of the namespace that is being named
        self._collected: list[str] = []
        self._depth = 0
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.buffer_size = BLOCK
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end

    def feed(self, block: bytes, *, last: bool = False) -> None:
        """Parses on."""
        try:
            self._parser.Parse(block, last)
        except expat.ExpatError as problem:
            self._refuse(problem, ended=last)

    def articles(self) -> list[Article]:
        """The articles that have ended since the last call."""
        done, self._done = self._done, []
        return done

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and name != ROOT:
            raise DataError(
                f"{self.piece.path} is no dump of MediaWiki",
                facts={"where": self._place(), "have": f"<{name}>", "need": f"<{ROOT}>"},
                fix="fetch it again; or give its format",
            )
        if name in _COLLECTED:
            self._collected = []
            self._parser.CharacterDataHandler = self._collected.append
        if name == "page":
            self._redirect = False
            self._fields, self._text = {}, None
            self._pages += 1
            self.header_ended = True
        elif name == "redirect":
            self._redirect = True
        elif name == "text":
            self._text = attributes
        elif name == "namespace":
            self._key = attributes.get("key", "")

    def _end(self, name: str) -> None:
        self._depth -= 1
        if name in _COLLECTED:
            self._parser.CharacterDataHandler = None
            self._fields[name] = "".join(self._collected)
            if name == "namespace":
                self._name_namespace(self._key, self._fields[name].lower())
        elif name == "siteinfo":
            self.header_ended = True
        elif name == "page":
            self._end_page()

    def _name_namespace(self, key: str, name: str) -> None:
        if key in {FILES, MEDIA}:
            self.namespaces = self.namespaces._replace(files=self.namespaces.files | {name})
        elif key == CATEGORIES:
            self.namespaces = self.namespaces._replace(categories=self.namespaces.categories | {name})

    def _end_page(self) -> None:
        fields = self._fields
        if self._redirect or fields.get("ns", "0") != "0" or fields.get("model", "wikitext") != "wikitext":
            return
        markup = fields.get("text", "")
        if not markup and not self._known_empty():
            title = fields.get("title", "")
            raise DataError(
                f"{self.piece.path}: the page {title!r} has no text",
                facts={"where": self._place(), "have": "a dump without texts, or a broken one"},
                fix="take a dump with texts: *-pages-articles*.xml.bz2",
            )
        if markup and not _REDIRECT.match(markup):
            self._done.append(Article(fields.get("title", ""), markup, self.namespaces))

    def _known_empty(self) -> bool:
        """Whether a page without text is said to have none, or to have had it removed."""
        return self._text is not None and ("deleted" in self._text or self._text.get("bytes", "0") == "0")

    def _refuse(self, problem: expat.ExpatError, *, ended: bool) -> NoReturn:
        facts = {"where": self._place(), "why": expat.ErrorString(problem.code)}
        if ended and self._pages == 0 and self._depth == 0:
            raise DataError(f"{self.piece.path} holds no dump", facts=facts, fix="fetch it again") from None
        what = "ends in the middle" if ended else "is not well-formed XML"
        raise DataError(f"{self.piece.path} {what}", facts=facts, fix="fetch the dump again") from None

    def _place(self) -> str:
        """Where the parser is, as line and page; of a range, counted from where it begins."""
        place = f"line {self._parser.CurrentLineNumber}"
        if self._pages:
            place += f", page {self._pages}"
            place += f" ({self._fields['title']})" if "title" in self._fields else ""
        return place if self.piece.start == 0 else f"{place}, counted from byte {self.piece.start} of the file"
