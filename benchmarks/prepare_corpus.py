"""Text of any size for benchmarks.prepare, from the real texts of ../shared/data."""

from __future__ import annotations

import lzma
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from train_jobs.config.prepare import CleanConfig
from train_jobs.corpus.steps.document_rules import clean
from train_jobs.corpus.tokenize.sentences import split_sentences

BOOK_PART = 6000  # characters: books are cut into documents of about the length of an encyclopaedia's articles
SHORTEST = 200  # an extracted article with fewer characters is its title


def documents(data: Path) -> list[str]:
    """Return all books, in parts, and all articles with a text, interleaved: 85 MB, each document once."""
    books, articles = list(_books(data)), list(_articles(data))
    every = max(1, len(articles) // max(1, len(books)))
    mixed = []
    for number, article in enumerate(articles):
        mixed.append(article)
        if number % every == 0 and books:
            mixed.append(books.pop())
    return [*mixed, *books]


def write(texts: list[str], folder: Path, size: int) -> int:
    """Write documents as files of plain text until they contain `size` bytes; return their bytes.

    A file has each document once. Its copies in other files are distinguished by an extra line: the same words
    come again, the same documents do not.
    """
    folder.mkdir(parents=True)
    written = copy = 0
    while written < size:
        with (folder / f"copy-{copy:03d}.txt").open("w", encoding="utf-8") as stream:
            for number, text in enumerate(texts):
                # Exact duplicates would be dropped by the pipeline, and the large sizes would measure the same text as
                # the small one.
                document = f"{text}\nCopy {copy}, document {number}.\n\n" if copy else f"{text}\n\n"
                stream.write(document)
                written += len(document.encode())
                if written >= size:
                    break
        copy += 1
    return written


def write_sentences(texts: list[str], path: Path, size: int) -> int:
    """Write one sentence per line, blank lines between documents, until `size` bytes; return the bytes."""
    written = 0
    with path.open("w", encoding="utf-8") as stream:
        for text in texts:
            document = "\n".join(split_sentences(text)) + "\n\n"
            stream.write(document)
            written += len(document.encode())
            if written >= size:
                break
    return written


def _books(data: Path) -> Iterator[str]:
    for path in sorted(data.glob("gutenberg/*.xz")):
        book = lzma.decompress(path.read_bytes()).decode("utf-8-sig")
        part, size = [], 0
        for paragraph in _without_blank_lines(book).split("\n"):
            part.append(paragraph)
            size += len(paragraph)
            if size >= BOOK_PART:
                yield "\n".join(part)
                part, size = [], 0
        yield "\n".join(part)


def _articles(data: Path) -> Iterator[str]:
    for path in sorted(data.glob("wiki_extracted/*.tar.xz")):
        with tarfile.open(path) as archive:
            for member in archive:
                if (stream := archive.extractfile(member)) is not None:
                    text = stream.read().decode("utf-8", "replace")
                    found = re.findall(r"<doc [^>]*>\n(.*?)</doc>", text, re.DOTALL)
                    yield from (_without_blank_lines(body) for body in found if len(body) >= SHORTEST)


def _without_blank_lines(text: str) -> str:
    """Return the cleaned text without blank lines, which would end a document in plain text."""
    return "\n".join(line for part in clean(text, CleanConfig()) for line in part.split("\n") if line.strip())
