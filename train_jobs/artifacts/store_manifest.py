"""manifest.json of a token store: written last, so that a folder without it is not a store.

Both packages read it: the job to train on the store, the laptop to plan and to show it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.fingerprints import DataFingerprint
from train_jobs.artifacts.text_rule import TextRule
from train_jobs.config import Config, DataError, PretrainConfig, TextConfig, in_shell

STORE_VERSION = 3  # raise it, and `version` below, when the layout changes: older stores are then prepared again
MANIFEST_FILE = "manifest.json"
PARTS = "parts"  # folder in a store for intermediate files of its preparation
Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")
Count = Annotated[int, Field(ge=0)]


class SplitCounts(Config):
    """Amount of text in a split."""

    documents: Count = 0
    """Documents with at least one token."""
    sentences: Count = 0
    """Their sentences."""
    tokens: Count = 0
    """Their tokens, without [CLS] and [SEP]."""
    blocks: Count = 0
    """Blocks that store them."""


class SourceCounts(Config):
    """Counts of one source of text: read, dropped, stored."""

    name: str
    """Name given by the user."""
    weight: float = 1.0
    """Passes of an epoch over it."""
    parts: Count
    """Number of units of work."""
    read: Count
    """Documents read from it."""
    dropped: dict[str, Count]
    """Reason -> number of documents that are not in the store."""
    documents: Count
    """Documents in the store, of both splits."""
    sentences: Count
    """Their sentences."""
    tokens: Count
    """Their tokens, without [CLS] and [SEP]."""
    unknown: Count
    """Number of [UNK] among the tokens."""


class StepFacts(Config):
    """Method of one step of the preparation."""

    name: str
    """documents, duplicates, vocabulary or tokens."""
    method: str
    """Name of the method, with its version."""
    settings: dict[str, Any]
    """Its settings."""


class Shard(Config):
    """One Arrow file."""

    file: str
    """Name in the store's folder."""
    split: Split
    """The split that all its blocks belong to."""
    source: Count = 0
    """Index in the manifest's `sources` of the source of all its blocks."""
    blocks: Annotated[int, Field(gt=0)]
    """Number of blocks (Arrow record batches)."""
    size: Count
    """Bytes."""
    sha256: str
    """Hash of the file."""


class SpecialIds(Config):
    """Ids of the five special pieces."""

    pad: Count
    """[PAD], pads a sequence."""
    unk: Count
    """[UNK], a word that the vocabulary cannot represent."""
    cls: Count
    """[CLS], opens a sequence."""
    sep: Count
    """[SEP], closes a segment."""
    mask: Count
    """[MASK], replaces a token to predict."""


class StoreManifest(Config):
    """Content of manifest.json."""

    version: Literal[3] = 3
    """Layout of the folder."""
    key: str
    """`store_key` of its text and settings: equal keys, equal stores."""
    data: DataFingerprint
    """The text."""
    vocab_size: Annotated[int, Field(gt=0)]
    """Pieces in vocab.txt."""
    vocab_sha256: str
    """Hash of vocab.txt."""
    special_ids: SpecialIds
    """Ids of the special pieces."""
    lowercase: bool
    """Whether the text was lower-cased."""
    strip_accents: bool
    """Whether nonspacing marks were dropped."""
    split_unspaced: bool
    """Whether scripts without blanks were cut into characters."""
    validation_fraction: float
    """Share of documents held out for validation."""
    validation_unigram_entropy: float
    """Entropy in nats of the frequencies of validation tokens: the loss of a model that knows only frequencies."""
    reading: str
    """Hash of the settings of reading and cleaning."""
    sources: list[SourceCounts]
    """The sources of the text, in order."""
    steps: list[StepFacts]
    """Steps of its preparation, in order."""
    packages: dict[str, str]
    """Version of each package that decides its content."""
    splits: dict[Split, SplitCounts]
    """Amount of text of each split."""
    shards: list[Shard]
    """The Arrow files, in order."""

    @property
    def rule(self) -> TextRule:
        """Rule for words of the text."""
        return TextRule(self.lowercase, self.strip_accents, self.split_unspaced)

    @property
    def content(self) -> str:
        """`store_content` of this store: stores of equal content are equal, even if their keys differ."""
        return store_content(
            text=self.data.sha256,
            reading=self.reading,
            vocabulary=self.vocab_sha256,
            rule=self.rule,
            validation_fraction=self.validation_fraction,
        )


def store_content(*, text: str, reading: str, vocabulary: str, rule: TextRule, validation_fraction: float) -> str:
    """Return 16 hex digits over the content of a store, whether its vocabulary was trained or given as a file.

    Args:
        text: fingerprint of the text.
        reading: hash of the settings of reading and cleaning.
        vocabulary: SHA-256 of vocab.txt.
        rule, validation_fraction: settings of tokenising and splitting.
    """
    facts = [STORE_VERSION, text, reading, vocabulary, rule, validation_fraction]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def store_folder(data: TextConfig, named: Path | None = None) -> Path | None:
    """Return the folder of a token store given instead of text; None if there is text to read.

    Args:
        data: whose only text may be the folder of a store.
        named: `data.store`.
    """
    if named is not None:
        return named
    if len(data.text) != 1 or len(data.text[0].path) != 1:
        return None
    folder = Path(data.text[0].path[0])
    return folder if (folder / MANIFEST_FILE).is_file() else None


def require_manifest(folder: Path) -> StoreManifest:
    """Return the manifest of a store that the user names.

    Raises:
        DataError: no such store; the message distinguishes an unfinished store, another version, and a damaged one.
    """
    if (manifest := read_manifest(folder)) is not None:
        return manifest
    if (folder / PARTS).is_dir() and not (folder / MANIFEST_FILE).exists():
        raise DataError(
            f"the token store in {folder} is not finished",
            fix="orchestrator resume RUN with the run that started it, or its torchrun command again",
        )
    raise DataError(
        f"no token store in {folder}",
        facts={"why": _why_none(folder)},
        fix="prepare it again from the text",
    )


def _why_none(folder: Path) -> str:
    """Return why a folder has no store that this version can read."""
    try:
        document = json.loads((folder / MANIFEST_FILE).read_text())
    except FileNotFoundError:
        return f"it has no {MANIFEST_FILE}" if folder.is_dir() else "no such folder"
    except (OSError, ValueError):
        return f"{MANIFEST_FILE} is damaged"
    version = document.get("version") if isinstance(document, dict) else None
    if version != STORE_VERSION:
        return f"its version is {version}, this code reads version {STORE_VERSION}"
    try:
        manifest = StoreManifest.model_validate(document)
    except ValidationError as problem:
        return f"{MANIFEST_FILE} is damaged: {problem.errors()[0]['loc']}"
    short = next(shard for shard in manifest.shards if _size(folder / shard.file) != shard.size)
    return f"{short.file} is {'missing' if _size(folder / short.file) is None else 'truncated'}"


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def read_manifest(folder: Path) -> StoreManifest | None:
    """Return the manifest of a store of this version whose files are complete; None for any other folder."""
    try:
        manifest = StoreManifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
        complete = all((folder / shard.file).stat().st_size == shard.size for shard in manifest.shards)
    except (OSError, ValidationError):
        return None
    return manifest if complete else None


def on_store(config: PretrainConfig, manifest: StoreManifest) -> PretrainConfig:
    """Return the configuration of training on a store: words and held-out share of a named store are its own.

    Raises:
        DataError: the store has another vocabulary than the initial model.
    """
    data = config.data
    if store_folder(data, data.store) is None:
        return config
    wanted = file_sha256(data.vocabulary) if data.vocabulary else None
    if wanted is not None and (wanted != manifest.vocab_sha256 or data.add_tokens):
        raise DataError(
            "the token store has another vocabulary than the initial model",
            facts={"need": f"{data.vocabulary}, sha256 {wanted[:8]}", "have": f"sha256 {manifest.vocab_sha256[:8]}"},
            fix=f"prepare the text with --set {in_shell(f'data.vocabulary={data.vocabulary}')}",
        )
    own = {**manifest.rule._asdict(), "validation_fraction": manifest.validation_fraction}
    return config.model_copy(update={"data": data.model_copy(update=own)})
