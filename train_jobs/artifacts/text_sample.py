"""A sample of each source of text, read without the packages of the job, and what a rule for words would lose of it.

The laptop measures it before anything starts. The job decides on its own, larger sample, of cleaned documents.
"""

from __future__ import annotations

import csv
import json
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from html import unescape
from io import StringIO
from lzma import LZMAError
from typing import NamedTuple

from train_jobs.artifacts.csv_tables import SEPARATORS
from train_jobs.artifacts.text_documents import MIN_WORDS
from train_jobs.artifacts.text_files import (
    READ_WHOLE,
    UTF16_MARKS,
    SourceFile,
    decoded,
    open_unpacked,
    source_files,
    text_bytes,
)
from train_jobs.artifacts.text_rule import (
    CHARACTER,
    CONTINUATION,
    NO_CHARACTER,
    LetterCounts,
    TextRule,
    bert_rule,
    count_letters,
    resolve_rule,
)
from train_jobs.artifacts.word_rules import LONGEST_WORD, is_removed, is_separate_word, without_marks
from train_jobs.config.fields import Config
from train_jobs.config.prepare import DOCUMENT_RULES, SourceConfig, TextConfig

SAMPLE_BYTES = 1 << 18  # of a source
FILES = 8  # of a source, at equal distances
HEAPS = 0.6  # exponent of the growth of the vocabulary with the text; 0.4 to 0.6 in English
PLACES = 4  # in a file that is not compressed
LITERAL = frozenset({"text", "jsonl", "csv", "tsv"})  # formats without markup that the job may turn into words
COUNTED = bert_rule(lowercase=True)  # the rule of the words that the job counts, whatever that of the vocabulary
_MOST_UNSPACED = 0.25  # share of the characters: beyond it sentences are pieces between blanks, without stops
_LEAST_WORDS = 8_000  # fewer are no basis for the length of a sentence
_CHARACTERS = re.compile(f"{CHARACTER}|{NO_CHARACTER}")
_SENTENCE_END = re.compile(
    "[.!?\u2026]+(?=[\\s\"'\u2019\u201d\u00bb)\\]]|\\Z)|[\u3002\uff01\uff1f\u0964\u061f\u06d4\u0589\u1362\u1367\u17d4\u104b]+|\\n\\s*\\n"
)
_MARKUP = re.compile(r"<[^<>]*>")


class SourceSample(NamedTuple):
    """Some text of a source."""

    title: str
    """Name of the source."""
    total_bytes: int
    """Size of its files."""
    text: str
    """The sample; empty for a format that only the job can read."""
    share: float
    """Approximate share of the source that was read for it, at most 1."""
    whole: bool = False
    """Whether the sample has every word of the source as the job reads it."""

    @property
    def letters(self) -> LetterCounts:
        """Its characters, as many as if all of the source had been read."""
        counts = count_letters(self.text)
        scale = self.total_bytes / max(counts.characters, 1)
        return LetterCounts(
            characters=round(counts.characters * scale),
            marks=round(counts.marks * scale),
            unspaced=round(counts.unspaced * scale),
        )


class TextLoss(Config):
    """Losses of a source under a rule and a vocabulary, as shares of a sample."""

    source: str
    """Name of the source."""
    characters: int
    """Characters of the sample."""
    dropped: float
    """Share of the characters that are dropped as accents, or taken apart (Korean)."""
    unknown_words: float
    """Share of the words that become [UNK]."""
    unknown_text: float
    """Share of the characters that are in such words."""
    too_long: float
    """Share of the characters that are in such words because these have more than 100 characters."""
    words_per_end: float = 0.0
    """Words for each end of a sentence or paragraph: at most as many as a sentence has. 0: not counted, in a small
    text or a script without stops."""
    words: int = 0
    """Words of the whole source, extrapolated."""
    distinct_words: int = 0
    """Distinct words of the whole source, extrapolated by Heaps' law."""


class TextFacts(Config):
    """Rule for words of a text, and its losses."""

    rule: TextRule
    """The rule, with every `auto` resolved."""
    losses: list[TextLoss]
    """Of each source that can be read without the packages of the job."""
    unread: list[str]
    """Names of the other sources."""
    few_words: int | None = None
    """Distinct words of the text as the job counts them, if all was read and they are fewer than `MIN_WORDS`."""

    @property
    def words(self) -> int | None:
        """Words of the text, extrapolated; None: some source was not read."""
        return None if self.unread else sum(loss.words for loss in self.losses)

    @property
    def distinct_words(self) -> int | None:
        """Distinct words of the text, extrapolated; None: some source was not read."""
        return None if self.unread else sum(loss.distinct_words for loss in self.losses)


def measure_text(data: TextConfig, pieces: Sequence[str] | None = None) -> TextFacts:
    """Read a sample of each source and measure what is lost of it.

    Args:
        data: the sources and settings.
        pieces: of the given vocabulary. None: one is trained, which loses no word that is short enough.

    Raises:
        DataError: a source does not exist.
    """
    samples = [sample_source(source) for source in data.text]
    known = None if pieces is None else [*pieces, *data.add_tokens]
    rule = resolve_rule(data, sum((sample.letters for sample in samples if sample.text), LetterCounts()), pieces)
    losses = [_loss(sample, rule, None if known is None else frozenset(known)) for sample in samples if sample.text]
    return TextFacts(
        rule=rule,
        losses=losses,
        unread=[sample.title for sample in samples if not sample.text],
        few_words=_few_words(samples),
    )


def sample_source(source: SourceConfig) -> SourceSample:
    """Return some text of a source; the same files give the same sample.

    Raises:
        DataError: a path does not exist.
    """
    files = source_files(source) if source.dataset is None else []
    chosen = [files[index * len(files) // FILES] for index in range(FILES)] if len(files) > FILES else files
    read = [(file, raw) for file in chosen for raw in _pieces_of(file, len(chosen))]
    texts = [_readable(raw, file, source.column) for file, raw in read]
    share = sum(len(raw) for _, raw in read) / max(sum(map(text_bytes, files)), 1)
    limit = SAMPLE_BYTES // max(len(chosen), 1)
    all_read = [file for file, _ in read] == list(files) and all(len(raw) < limit for _, raw in read)
    literal = all(file.format in LITERAL and file.compression in READ_WHOLE for file in files)
    return SourceSample(
        source.title,
        sum(file.path.stat().st_size for file in files),
        "\n".join(texts),
        min(share, 1.0),
        whole=bool(texts) and all_read and literal and source.document in DOCUMENT_RULES,
    )


def _pieces_of(file: SourceFile, files: int) -> Iterator[bytes]:
    """Yield some places of a file, of a compressed one the beginning; nothing of formats that need pyarrow."""
    limit = SAMPLE_BYTES // files
    if file.format == "parquet" or file.compression == "zstd":
        return
    if file.compression is not None:
        try:
            with open_unpacked(file.path, file.compression) as stream:
                yield stream.read(limit)
        except (OSError, EOFError, LZMAError, zlib.error):
            return  # the job reports where
        return
    size = file.path.stat().st_size
    with file.path.open("rb") as stream:
        if size <= limit or file.format in SEPARATORS:
            yield stream.read(limit)
            return
        mark = b""
        for place in range(PLACES):
            stream.seek(size * place // PLACES // 2 * 2)  # a character of UTF-16 has an even number of bytes
            raw = stream.read(limit // PLACES)
            yield mark + raw if mark in UTF16_MARKS else raw
            mark = mark or raw[: len(UTF16_MARKS[0])]


def _readable(raw: bytes, file: SourceFile, column: str) -> str:
    """Return the text in some bytes of a file; lines that the sample cuts are left out of JSON."""
    text = decoded(raw)
    if file.format == "jsonl":
        return "\n\n".join(_documents(text, column))
    if file.format in SEPARATORS:
        rows = _table_rows(text, SEPARATORS[file.format])
        at = rows[0].index(column) if rows and column in rows[0] else None
        return "" if at is None else "\n\n".join(row[at] for row in rows[1:] if len(row) > at)
    return unescape(_MARKUP.sub(" ", text)) if file.format in {"wikipedia", "wikiextractor"} else text


def _table_rows(text: str, separator: str) -> list[list[str]]:
    """Return the rows of the beginning of a table; only fields of CSV are quoted."""
    lines = StringIO(text, newline="\n")  # only newlines end lines, as in the job
    if separator != ",":
        return [line.rstrip("\r\n").split(separator) for line in lines]
    rows: list[list[str]] = []
    limit = csv.field_size_limit(SAMPLE_BYTES)  # global in csv, so it is restored
    try:
        with suppress(csv.Error):  # the job reports where
            rows.extend(csv.reader(lines))
    finally:
        csv.field_size_limit(limit)
    return rows


def _documents(lines: str, column: str) -> Iterator[str]:
    for line in lines.split("\n"):  # JSON may hold other line ends inside of a text
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get(column), str):
            yield row[column]


def _loss(sample: SourceSample, rule: TextRule, pieces: Collection[str] | None) -> TextLoss:
    text = unicodedata.normalize("NFC", sample.text)
    words = Counter(split_words(text, rule))
    unknown = {word for word in words if _is_unknown(word, pieces)}
    scale = 1 / sample.share if sample.share else 0.0
    total, length = max(words.total(), 1), max(sum(len(word) * count for word, count in words.items()), 1)
    letters, ends = count_letters(text), len(_SENTENCE_END.findall(text))
    counted = words.total() >= _LEAST_WORDS and letters.unspaced <= _MOST_UNSPACED * letters.characters
    return TextLoss(
        source=sample.title,
        characters=len(text),
        dropped=letters.marks / max(len(text), 1) if rule.strip_accents else 0.0,
        unknown_words=sum(words[word] for word in unknown) / total,
        unknown_text=sum(words[word] * len(word) for word in unknown) / length,
        too_long=sum(words[word] * len(word) for word in unknown if len(word) > LONGEST_WORD) / length,
        words_per_end=words.total() / max(ends, 1) if counted else 0.0,
        words=round(words.total() * scale),
        distinct_words=round(len(words) * scale**HEAPS),
    )


def _few_words(samples: Sequence[SourceSample]) -> int | None:
    """Return the distinct words of sources that were read whole, if they are fewer than `MIN_WORDS`; otherwise None."""
    if not samples or not all(sample.whole for sample in samples):
        return None
    words: set[str] = set()
    for line in (line for sample in samples for line in sample.text.split("\n")):
        words.update(split_words(unicodedata.normalize("NFC", line), COUNTED))
        if len(words) >= MIN_WORDS:  # after a few lines of most texts
            return None
    return len(words)


def split_words(text: str, rule: TextRule) -> list[str]:
    """Return the words of a text as BERT's normalisation and splitting make them."""
    normal = _normal(rule)
    words = "".join(map(normal.__getitem__, text)).split()
    return [part for word in words for part in _CHARACTERS.findall(word)] if rule.split_unspaced else words


@lru_cache
def _normal(rule: TextRule) -> _Normal:
    return _Normal(rule)


class _Normal(dict[str, str]):
    """Maps each character to its normal form, with blanks around those that are words of their own."""

    def __init__(self, rule: TextRule) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, character: str) -> str:
        if character.isspace() and character != "\x1f":  # white space to Python alone
            normal = " "
        elif is_removed(character):
            normal = ""
        elif is_separate_word(character):
            normal = f" {character} "
        else:
            normal = without_marks(character) if self._rule.strip_accents else character
            normal = "".join(map(str.lower, normal)) if self._rule.lowercase else normal
            if normal != character:  # such as that of U+2260, an equals sign with a stroke
                normal = "".join(f" {part} " if is_separate_word(part) else part for part in normal)
        return self.setdefault(character, normal)


def _is_unknown(word: str, pieces: Collection[str] | None) -> bool:
    """Return whether WordPiece makes [UNK] of a word."""
    if len(word) > LONGEST_WORD or pieces is None:
        return len(word) > LONGEST_WORD
    start = 0
    while start < len(word):
        before = CONTINUATION if start else ""
        end = next((end for end in range(len(word), start, -1) if before + word[start:end] in pieces), None)
        if end is None:
            return True
        start = end
    return False
