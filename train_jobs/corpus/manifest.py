"""What a token store says about itself: manifest.json, written last, so that a folder without it is no store."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from train_jobs.config.base import Config
from train_jobs.config.sources import DataFingerprint

STORE_VERSION = 1  # raise it, and `version` below, when the layout changes: older stores are then made again
MANIFEST_FILE = "manifest.json"
Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")
Count = Annotated[int, Field(ge=0)]


class SplitCounts(Config):
    """How much text a split holds."""

    documents: Count = 0
    """Documents with at least one token."""
    sentences: Count = 0
    """Their sentences."""
    tokens: Count = 0
    """Their tokens, without [CLS] and [SEP]."""
    blocks: Count = 0
    """Blocks that they are stored in."""


class Shard(Config):
    """One Arrow file."""

    file: str
    """Name in the store's folder."""
    split: Split
    """The split that all its blocks belong to."""
    blocks: Annotated[int, Field(gt=0)]
    """Number of blocks (Arrow record batches)."""
    size: Count
    """Bytes."""
    sha256: str
    """Hash of the file."""


class SpecialIds(Config):
    """Where the five special pieces stand in the vocabulary."""

    pad: Count
    """[PAD], fills a sequence up."""
    unk: Count
    """[UNK], a word that the vocabulary cannot spell."""
    cls: Count
    """[CLS], opens a sequence."""
    sep: Count
    """[SEP], closes a segment."""
    mask: Count
    """[MASK], stands for a token to predict."""


class StoreManifest(Config):
    """The contents of manifest.json."""

    version: Literal[1] = 1
    """Layout of the folder."""
    key: str
    """`prepare.store_key` of what it was made from: equal keys, equal stores."""
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
    validation_fraction: float
    """Share of documents that validation was to get."""
    validation_unigram_entropy: float
    """Entropy in nats of the validation tokens' frequencies: the loss of a model that knows frequencies alone."""
    splits: dict[Split, SplitCounts]
    """How much text each split holds."""
    shards: list[Shard]
    """The Arrow files, in order."""

    @property
    def content(self) -> str:
        """`store_content` of it: stores of equal content are equal, though their keys may differ."""
        return store_content(
            text=self.data.sha256,
            vocabulary=self.vocab_sha256,
            lowercase=self.lowercase,
            validation_fraction=self.validation_fraction,
        )


def store_content(*, text: str, vocabulary: str, lowercase: bool, validation_fraction: float) -> str:
    """16 hex digits over what a store holds, whether its vocabulary was trained on the text or given as a file.

    Args:
        text: fingerprint of the text.
        vocabulary: SHA-256 of vocab.txt.
        lowercase, validation_fraction: as the text was tokenised and split.
    """
    facts = [STORE_VERSION, text, vocabulary, lowercase, validation_fraction]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def read_manifest(folder: Path) -> StoreManifest | None:
    """The manifest of a store of this version whose files are all there in full; None for any other folder."""
    try:
        manifest = StoreManifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
        complete = all((folder / shard.file).stat().st_size == shard.size for shard in manifest.shards)
    except (OSError, ValidationError):
        return None
    return manifest if complete else None
