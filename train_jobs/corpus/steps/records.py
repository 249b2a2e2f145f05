"""Records of the steps of a preparation, the keys that decide whether a record is valid, and the tasks of workers.

    parts/documents-00012.arrow   cleaned documents of part 12
    parts/documents-00012.json    key, counts, size and SHA-256 of the files; SHA-256 of this content

A record is written last: files without one are ignored. Its key is a hash of everything that determines the content of
its files. A step whose record has the expected key is skipped; any other step is repeated. Nothing relies on renames,
because a mounted blob store does not make them atomic.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from train_jobs.artifacts.files import checked_json, file_sha256, parse_checked
from train_jobs.artifacts.fingerprints import EXTRACTOR, DataFingerprint, content_hashes
from train_jobs.artifacts.store_manifest import STORE_VERSION, Shard, Split, SplitCounts
from train_jobs.artifacts.store_places import StoreFolder, StorePath, write_whole
from train_jobs.artifacts.text_rule import LetterCounts, TextRule
from train_jobs.artifacts.vocabulary_file import read_vocabulary
from train_jobs.config.fields import Config
from train_jobs.config.prepare import TextConfig
from train_jobs.config.urls import is_url
from train_jobs.corpus.sources.text_parts import Part
from train_jobs.corpus.steps.document_rules import CLEANER
from train_jobs.corpus.tokenize.sentences import SPLITTER

Count = Annotated[int, Field(ge=0)]
RowRange = tuple[int, int]  # rows of the file of duplicates: first row, number of rows
KEY_DIGITS = 16
RecordT = TypeVar("RecordT", bound="StepRecord")


class PreparationSetting(Config):
    """Settings that all tasks of a preparation share."""

    data: TextConfig
    """Sources and rules."""
    store: StoreFolder
    """Folder of the shards."""
    folder: StoreFolder
    """Folder of the records and documents."""
    block_tokens: int
    """See `token_store.StoreWriter`."""


class TextFile(Config):
    """A file of the text as the process that gives the tasks sees it."""

    size: Count
    """Bytes."""
    sha256: str
    """Hash of the content."""


class PartTask(Config):
    """One step for one part, sent to a worker as JSON."""

    step: Literal["documents", "tokens"]
    """Which step."""
    number: int
    """Number of the part."""
    part: Part
    """The part."""
    key: str
    """Key of the record."""
    size: int
    """Bytes to read: of the part's files, or of its cleaned text."""
    text: dict[str, TextFile] = {}  # noqa: RUF012 - pydantic copies defaults
    """Step documents: path -> content of the part's files on a disk; a worker of another machine compares them."""
    threshold: int = 0
    """Step tokens: see `document_rules.split_threshold`."""
    drop: RowRange = (0, 0)
    """Step tokens: rows of the part in the file of duplicates, see `documents.stretches`."""
    rule: TextRule | None = None
    """tokens: see `VocabularyRecord`."""


class StepFile(Config):
    """A file that a step wrote."""

    name: str
    """Name in the folder of its record."""
    size: Count
    """Bytes."""
    sha256: str
    """Hash of the content."""


class StepRecord(Config):
    """Fields of every step's record."""

    key: str
    """Hash of everything that determines the content of the files."""
    seconds: float
    """Duration of the step."""
    files: list[StepFile] = []  # noqa: RUF012 - pydantic copies defaults
    """Files that the step wrote, except shards."""

    @property
    def contents(self) -> list[StepFile]:
        """All files that the step wrote."""
        return self.files


class DocumentsRecord(StepRecord):
    """The documents of a part, extracted and cleaned."""

    raw_bytes: Count
    """Bytes on the disk that were read."""
    text_bytes: Count
    """Bytes of the cleaned text, as UTF-8."""
    read: Count
    """Documents found."""
    documents: Count
    """Documents kept."""
    dropped: dict[str, Count]
    """Reason for dropping -> number of documents."""
    lowest: int
    """See `document_rules.DocumentSurvey`."""
    highest: int
    """See `document_rules.DocumentSurvey`."""
    words: list[str]
    """See `document_rules.DocumentSurvey`."""
    letters: LetterCounts
    """Characters of a sample, see `document_rules.DocumentSurvey`."""

    @property
    def processed(self) -> int:
        """Documents that the step read."""
        return self.read


class DuplicatesRecord(StepRecord):
    """The documents that repeat an earlier one."""

    dropped: list[Count]
    """Number of duplicates in each part."""
    digests: list[str]
    """Hash of their positions, for each part."""


class VocabularyRecord(StepRecord):
    """The vocabulary; its file is in the store."""

    pieces: Count
    """Number of pieces."""
    rule: TextRule
    """How text becomes words: the settings, with every `auto` resolved."""


class TokensRecord(StepRecord):
    """The shards of a part; they are in the store."""

    shards: list[Shard]
    """Shards to train on, then shards to validate on."""
    splits: dict[Split, SplitCounts]
    """Counts by split."""
    unknown: Count
    """Tokens that are [UNK]."""

    @property
    def processed(self) -> int:
        """Documents that the step read."""
        return sum(counts.documents for counts in self.splits.values())

    @property
    def contents(self) -> list[StepFile]:
        """The shards."""
        return [StepFile(name=shard.file, size=shard.size, sha256=shard.sha256) for shard in self.shards]


def part_name(step: str, part: int) -> str:
    """Return the name of the record or files of a step for a part."""
    return f"{step}-{part:05d}"


def describe_file(path: StorePath) -> StepFile:
    """Write a new file through to the disk, read it back and return its size and hash."""
    # A record must not outlive its files in a power failure: they are synced before it is written.
    if isinstance(path, Path):  # a service returns only when an object is stored
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    return StepFile(name=path.name, size=path.stat().st_size, sha256=file_sha256(path))


def write_record(folder: StorePath, name: str, record: StepRecord) -> None:
    """Write NAME.json, with its checksum, into a folder."""
    write_whole(folder / f"{name}.json", checked_json(record.model_dump(mode="json"), indent=1))


def read_record(
    folder: StorePath, name: str, kind: type[RecordT], key: str, *, files: StorePath | None = None
) -> RecordT | None:
    """Return the record with this key; None if it is missing or damaged, or if a file has another size.

    Args:
        folder: folder of the record.
        name: name of the record, without `.json`.
        kind: class of the record.
        key: the expected key.
        files: folder of its files. None: the folder of the record.
    """
    try:
        record = kind.model_validate(parse_checked((folder / f"{name}.json").read_bytes()))
        whole = all(((files or folder) / file.name).stat().st_size == file.size for file in record.contents)
    except (OSError, ValueError):
        return None
    return record if whole and record.key == key else None


def damaged_file(folder: StorePath, record: StepRecord) -> StepFile | None:
    """Return the first file in `folder` whose content does not match the record, or None; all files are hashed."""
    return next((file for file in record.contents if file_sha256(folder / file.name) != file.sha256), None)


def key_of(**facts: Any) -> str:
    """Return a hash of the facts that determine the result of a step, 16 hex digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]


def reading(data: TextConfig) -> str:
    """Return a hash of the settings of reading: formats, weights, rules for documents and sentences; 16 hex digits.

    Paths and names of the sources are left out, because `fingerprints.fingerprint` hashes the content of their files.
    """
    shape = ("dataset", "format", "column", "document", "strip_gutenberg", "weight")
    return key_of(
        sources=[{name: getattr(source, name) for name in shape} for source in data.text],
        clean=[CLEANER, data.clean.model_dump(mode="json")],
        extractor=EXTRACTOR,
        sentences=SPLITTER,
    )


def store_key(data: TextConfig, found: DataFingerprint) -> str:
    """Return a hash of everything that determines a token store, 16 hex digits; equal keys mean equal stores.

    It covers the text, the rules for reading it, the vocabulary (its content and added words, or the size to train),
    case and accents, and the validation fraction. It excludes the sequence length and all other settings of training.

    Args:
        data: sources and rules.
        found: fingerprint of the text.

    Raises:
        DataError: the vocabulary file cannot be read.
    """
    return key_of(
        text=found.sha256,
        reading=reading(data),
        vocabulary=_vocabulary_facts(data),
        rule=_rule_facts(data),
        validation_fraction=data.validation_fraction,
        sentences=SPLITTER,
        store=STORE_VERSION,
    )


def _vocabulary_facts(data: TextConfig) -> list[Any]:
    """Return the facts that determine the vocabulary, except the text."""
    if data.vocabulary is None:
        return [data.vocab_size, _rule_facts(data)]
    return [hashlib.sha256(read_vocabulary(data.vocabulary)).hexdigest(), data.add_tokens, _rule_facts(data)]


def _rule_facts(data: TextConfig) -> list[bool | str]:
    return [data.lowercase, data.strip_accents, data.split_unspaced]


def text_files_of(parts: Sequence[Part], cache: Path | None) -> dict[str, TextFile]:
    """Return path -> size and hash of the files on a disk that parts read.

    Args:
        parts: parts of the text.
        cache: see `fingerprints.content_hashes`.

    Raises:
        DataError: a file is not readable.
    """
    names = sorted({piece.path for part in parts for piece in part.pieces if Path(piece.path).is_file()})
    paths = [Path(name) for name in names]
    return {
        name: TextFile(size=path.stat().st_size, sha256=digest)
        for name, path, digest in zip(names, paths, content_hashes(paths, cache), strict=True)
    }


def documents_keys(
    data: TextConfig, parts: Sequence[Part], found: DataFingerprint, files: Mapping[str, TextFile]
) -> list[str]:
    """Return the key of each part's documents, from the content of its files.

    Args:
        data: sources and rules.
        parts: parts of the text.
        found: fingerprint of the text, used for pieces that are not files.
        files: see `text_files_of`.
    """
    hashes = {path: file.sha256 for path, file in files.items()}
    hashes |= {
        piece.path: piece.version for part in parts for piece in part.pieces if is_url(piece.path) and piece.version
    }
    clean = data.clean.model_dump(mode="json")

    def key(part: Part) -> str:
        pieces = [
            [hashes.get(piece.path, found.sha256), piece.compression, piece.start, piece.stop] for piece in part.pieces
        ]
        source = data.text[part.source] if data.text else None
        return key_of(
            pieces=pieces,
            format=part.format,
            read_as=[source.column, part.document, source.strip_gutenberg] if source else None,
            clean=[CLEANER, clean],
            extractor=EXTRACTOR,
        )

    return [key(part) for part in parts]


def duplicates_key(data: TextConfig, documents: Sequence[DocumentsRecord]) -> str:
    """Return the key of the duplicates of all parts."""
    # One key for all parts: a document of any part can make one of a later part a duplicate.
    return key_of(documents=[record.key for record in documents], drop=data.clean.drop_duplicates)


def vocabulary_key(data: TextConfig, duplicates: DuplicatesRecord) -> str:
    """Return the key of the vocabulary; that of a given one does not depend on the text."""
    return key_of(vocabulary=_vocabulary_facts(data), text=duplicates.key if data.vocabulary is None else None)


def tokens_key(
    setting: PreparationSetting, threshold: int, documents: str, duplicates: str, vocabulary: VocabularyRecord
) -> str:
    """Return the key of the shards of a part.

    Args:
        setting: rules and size of a block.
        threshold: see `document_rules.split_threshold`.
        documents: key of the part's documents.
        duplicates: digest of the part's duplicates.
        vocabulary: record of vocab.txt.
    """
    # The part's own duplicates, not the key of all: another source then leaves the shards of this part valid.
    return key_of(
        documents=documents,
        dropped=duplicates,
        vocabulary=vocabulary.files[0].sha256,
        rule=vocabulary.rule,
        threshold=threshold,
        sentences=SPLITTER,
        block_tokens=setting.block_tokens,
        store=STORE_VERSION,
    )
