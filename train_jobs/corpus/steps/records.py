"""What the steps of preparing text leave beside their files: a record, written last, without which a file is nothing.

    parts/documents-00012.arrow   cleaned documents of part 12
    parts/documents-00012.json    key, counts, size and SHA-256 of the files

A record's key is a hash of all that decides what its files hold. A step whose record has the key that it would get is
skipped; any other is done again. No rename is trusted, since a mounted blob store keeps no such promise.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from train_jobs.artifacts.files import file_sha256, write_text
from train_jobs.artifacts.store_manifest import Shard, Split, SplitCounts
from train_jobs.config.base import Config

Count = Annotated[int, Field(ge=0)]
KEY_DIGITS = 16
RecordT = TypeVar("RecordT", bound="Record")


class StepFile(Config):
    """A file that a step wrote."""

    name: str
    """In the folder of its record."""
    size: Count
    """Bytes."""
    sha256: str
    """Hash of its content."""


class Record(Config):
    """What every step says of itself."""

    key: str
    """Hash of all that decides what the files hold."""
    seconds: float
    """How long it took."""
    files: list[StepFile] = []  # noqa: RUF012 - pydantic copies defaults
    """What it wrote, but for shards."""

    @property
    def contents(self) -> list[StepFile]:
        """All that it wrote."""
        return self.files


class DocumentsRecord(Record):
    """The documents of a part, extracted and cleaned."""

    raw_bytes: Count
    """Bytes on the disk that they were read from."""
    text_bytes: Count
    """Bytes of the cleaned text, as UTF-8."""
    read: Count
    """Documents found."""
    documents: Count
    """Documents kept."""
    dropped: dict[str, Count]
    """Why documents were dropped -> how many."""
    lowest: int
    """As of `splits.Survey`."""
    highest: int
    """As of `splits.Survey`."""
    words: list[str]
    """As of `splits.Survey`."""


class DuplicatesRecord(Record):
    """Which documents are in the text already."""

    dropped: list[Count]
    """How many of each part."""
    digests: list[str]
    """Hash of which ones, for each part."""


class VocabularyRecord(Record):
    """The vocabulary; its file lies in the store."""

    pieces: Count
    """How many it has."""


class TokensRecord(Record):
    """The shards of a part; they lie in the store."""

    shards: list[Shard]
    """Those to train on, then those to validate on."""
    splits: dict[Split, SplitCounts]
    """What they hold."""
    unknown: Count
    """Tokens that are [UNK]."""

    @property
    def contents(self) -> list[StepFile]:
        """The shards."""
        return [StepFile(name=shard.file, size=shard.size, sha256=shard.sha256) for shard in self.shards]


def key_of(**decides: Any) -> str:
    """16 hex digits over what decides the result of a step."""
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]


def describe_file(path: Path) -> StepFile:
    """A file that has just been written, forced to the disk and read back."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
    return StepFile(name=path.name, size=path.stat().st_size, sha256=file_sha256(path))


def write_record(folder: Path, name: str, record: Record) -> None:
    """Writes NAME.json."""
    write_text(folder / f"{name}.json", record.model_dump_json(indent=1))


def read_record(folder: Path, name: str, kind: type[RecordT], key: str, *, files: Path | None = None) -> RecordT | None:
    """The record of that key, or None: there is none, it is torn or of another key, or a file has another size.

    Args:
        folder: of the record.
        name: of the record.
        kind: of the record.
        key: that it must have.
        files: where its files lie. None: beside it.
    """
    try:
        record = kind.model_validate_json((folder / f"{name}.json").read_bytes())
        whole = all(((files or folder) / file.name).stat().st_size == file.size for file in record.contents)
    except (OSError, ValidationError):
        return None
    return record if whole and record.key == key else None


def damaged_file(folder: Path, record: Record) -> StepFile | None:
    """The first file in `folder` that is not what its record says; every byte is read."""
    return next((file for file in record.contents if file_sha256(folder / file.name) != file.sha256), None)
