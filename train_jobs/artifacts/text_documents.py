"""Rules that separate the documents of plain text.

Both packages need the same answer: the laptop counts documents for the plan, the job reads them. A source's rule is
`document` of its configuration; `auto` is decided by the files (see `document_rules`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice

from train_jobs.artifacts.remote_files import RemoteFile
from train_jobs.artifacts.text_files import SourceFile, decoded, source_files, text_bytes, unpacked_head
from train_jobs.config.errors import DataError
from train_jobs.config.fields import Config
from train_jobs.config.prepare import AUTO, BLANK_LINE, FILE, LINE, SourceConfig

LONG_FILE = 50_000  # bytes of text: a short book; files of news or notes are shorter, or hold few blank lines
LONGEST_FILE = 32 << 20  # bytes of text: no book is longer, and a document has to fit into memory
SHORT_STRETCH = 600  # bytes between blank lines: 230 to 460 in 12 novels, 2,000 and more in articles
LINE_OF_SPEECH = 100  # bytes; shorter stretches are headings and speech, a fifth and more of those of the novels
SHORT_SHARE = 0.1  # of stretches that are shorter than that, in a book; lists of notes are of more even length
SAMPLED_FILES = 16  # read to decide a source
SAMPLED_BYTES = 256 << 10  # of the text of each of them
COUNTED_BYTES = 64 << 20  # of text of a source, for a plan: about a second; the rest is extrapolated
COUNTED_AT_URLS = 4 << 20  # the same of files by URL, which a plan does not download
BOOK_HEAD_LINES = 1_000  # lines in which Gutenberg's header must end; its oldest licences precede the book
MIN_DOCUMENTS = 2  # distinct documents: one to train on, one to validate on
MIN_WORDS = 100  # distinct words
_RETURNS = re.compile(r"\r+(?=\n|\Z)")
_BLANK_LINES = re.compile(r"\n\s*\n")
_BOOK_STARTS = re.compile(r"\*\*\* ?START OF (?:THE|THIS) PROJECT GUTENBERG|\*END\*? ?THE SMALL PRINT", re.IGNORECASE)
_BOOK_ENDS = re.compile(
    r"\*\*\* ?END OF (?:THE|THIS) PROJECT GUTENBERG|End of (?:the |this )?Project Gutenberg(?:['\u2019]s|\b)",
    re.IGNORECASE,
)
_CREDITS = re.compile(r"(?:Produced|E-?text prepared|(?:This )?e-?(?:book|text) was produced) by\b", re.IGNORECASE)


class TextCount(Config):
    """Files and documents of the plain text of a source."""

    name: str
    """Title of the source."""
    files: int
    """Files of plain text."""
    rule: str
    """What separates its documents: file, blank-line, line or a pattern."""
    chosen: bool
    """Whether the rule was chosen by the files, not given."""
    documents: int
    """Documents under the rule."""
    others: dict[str, int]
    """Each other rule of `file` and `blank-line` -> documents under it."""
    exact: bool
    """Whether all of its text was counted; otherwise counts are extrapolated."""
    books: bool
    """Whether its files look like books, see `document_rules`."""


def too_few_documents(have: str) -> DataError:
    """Return the error of a text that cannot be divided into train and validation."""
    return DataError(
        "cannot split a single document into train and validation",
        facts={"need": f"{MIN_DOCUMENTS} different documents", "have": have},
        fix="separate documents by blank lines, or give more files: --data FILE --data FILE",
    )


def too_few_words(have: int) -> DataError:
    """Return the error of a text with fewer distinct words than `MIN_WORDS`."""
    return DataError(
        "the text is too small to train on",
        facts={"need": f"{MIN_WORDS} different words", "have": have},
        fix="give more text with --data PATH, or omit --data to use the embedded corpus",
    )


def document_rules(sources: Sequence[SourceConfig]) -> list[str]:
    """Return for each source what separates the documents of its plain text: file, blank-line, line or a pattern.

    `auto` is `file` for books: files of 50 kB of text on average and 32 MB at most, not compressed with zstd, with
    blank lines less than 600 bytes apart on average, a tenth of them less than 100 (headings and speech). If the whole
    text is a single file, it is split at blank lines: validation needs a document of its own. The decision
    depends only on the content of the files.

    Raises:
        DataError: a source does not exist, see `source_files`.
    """
    found = [source_files(source) if source.path else [] for source in sources]
    several = sum(map(len, found)) > 1
    return [
        source.document if source.document != AUTO else FILE if several and _are_books(files) else BLANK_LINE
        for source, files in zip(sources, found, strict=True)
    ]


def _are_books(found: Sequence[SourceFile]) -> bool:
    files = [file for file in found if file.format == "text"]
    sizes = [text_bytes(file) for file in files]
    if not files or sum(sizes) < LONG_FILE * len(files) or max(sizes) > LONGEST_FILE:
        return False
    lengths: list[int] = []
    for file in files[:: -(-len(files) // SAMPLED_FILES)]:
        text = _complete_lines(unpacked_head(file.path, file.compression, SAMPLED_BYTES))
        lengths += [len(stretch.encode()) for stretch in split_documents([text], BLANK_LINE)]
    short = sum(length < LINE_OF_SPEECH for length in lengths)
    return sum(lengths) < SHORT_STRETCH * len(lengths) and short >= SHORT_SHARE * len(lengths)


def split_documents(chunks: Iterable[str], rule: str) -> Iterator[str]:
    """Yield the documents of a file that contain a character.

    Args:
        chunks: text of the file, each of complete lines.
        rule: file, blank-line, line, or a pattern: each line that it matches from its beginning begins a document, and
            the characters that it matches are dropped.
    """
    if rule == FILE:
        found: Iterator[str] = iter(["".join(chunks)])
    elif rule == BLANK_LINE:
        found = _between_blank_lines(chunks)
    elif rule == LINE:
        found = (line for chunk in chunks for line in chunk.split("\n"))
    else:
        found = _between_matches(chunks, re.compile(rule))
    return (document for text in found if (document := text.strip("\n")).strip())


def _between_blank_lines(chunks: Iterable[str]) -> Iterator[str]:
    pending: list[str] = []
    for chunk in chunks:
        # A chunk consists of complete lines, and the newline before its first line is matched with it: blank lines
        # are found wherever the chunks are cut.
        first, *others = _BLANK_LINES.split("\n" + chunk)
        pending.append(first)
        for other in others:
            yield "".join(pending)
            pending = [other]
        pending[-1] = pending[-1].removesuffix("\n")
    yield "".join(pending)


def _between_matches(chunks: Iterable[str], pattern: re.Pattern[str]) -> Iterator[str]:
    pending: list[str] = []
    for line in _lines(chunks):
        if match := pattern.match(line):
            yield "".join(pending)
            pending = []
        pending.append(line[match.end() :] if match else line)
    yield "".join(pending)


def without_gutenberg(chunks: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a text without the headers, footers and licences of Project Gutenberg.

    Args:
        chunks: text of a file, each of complete lines. Without their markers it is unchanged.
    """
    lines = _lines(chunks)
    head = list(islice(lines, BOOK_HEAD_LINES))
    in_book = not any(map(_BOOK_STARTS.match, head))
    rest = chain(head, lines)
    for line in rest:
        if _BOOK_STARTS.match(line):
            in_book = True
            _skip_paragraph(rest)  # the marker, which may take two lines
            line = next((line for line in rest if line.strip()), "")
            if _CREDITS.match(line):
                _skip_paragraph(rest)
                continue
        in_book = in_book and not _BOOK_ENDS.match(line)
        if in_book:
            yield line


def _lines(chunks: Iterable[str]) -> Iterator[str]:
    """Yield lines with their newlines; no other character ends a line here."""
    return (line for chunk in chunks for line in io.StringIO(chunk, newline="\n"))


def _skip_paragraph(lines: Iterator[str]) -> None:
    for line in lines:
        if not line.strip():
            return


def count_documents(sources: Sequence[SourceConfig]) -> list[TextCount]:
    """Count the documents of each source with plain text, of large text from its beginning, of zstd none.

    Raises:
        DataError: a source does not exist, see `source_files`.
    """
    counts = []
    for source, rule in zip(sources, document_rules(sources), strict=True):
        found = source_files(source) if source.path else []
        files = [file for file in found if file.format == "text"]
        if files and all(file.compression != "zstd" for file in files):
            counts.append(_count(source, files, rule))
    return counts


def _count(source: SourceConfig, files: Sequence[SourceFile], rule: str) -> TextCount:
    sizes = [text_bytes(file) for file in files]
    most = COUNTED_AT_URLS if isinstance(files[0].path, RemoteFile) else COUNTED_BYTES
    read = sum(1 for before in accumulate([0, *sizes[:-1]]) if before < most)
    whole = read == len(files) and sizes[-1] <= most
    totals = dict.fromkeys((rule, FILE, BLANK_LINE), 0)
    counted = 0
    for file in files[:read]:
        raw = unpacked_head(file.path, file.compression, most)
        whole = whole and len(raw) < most  # a compressed file may hold more text than its size suggests
        chunks = [_complete_lines(raw)]
        counted += min(text_bytes(file), most)
        text = list(without_gutenberg(chunks)) if source.strip_gutenberg else chunks
        for name in totals:
            totals[name] += sum(1 for _ in split_documents(text, name))
    scale = 1.0 if whole else sum(sizes) / max(counted, 1)
    found = {name: round(total * scale) for name, total in totals.items()} | ({} if whole else {FILE: len(files)})
    others = {name: count for name, count in found.items() if name != rule}
    return TextCount(
        name=source.title,
        files=len(files),
        rule=rule,
        chosen=source.document == AUTO,
        documents=found[rule],
        others=others,
        exact=whole,
        books=_are_books(files),
    )


def _complete_lines(raw: bytes) -> str:
    """Return the beginning of a file as text of complete lines."""
    text = plain_newlines(decoded(raw))
    return text if text.endswith("\n") else text + "\n"


def plain_newlines(text: str) -> str:
    """Drop carriage returns at the ends of lines."""
    # `replace` first: it handles Windows files without the regular expression, which halved the speed of reading.
    if "\r" in text:
        text = text.replace("\r\n", "\n")
        if "\r" in text:
            text = _RETURNS.sub("", text)
    return text
