"""What a token store says about itself: manifest.json, written last, so that a folder without it is no store.

Both floors read it: the job to train on it, the laptop to plan and to show.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.fingerprints import DataFingerprint
from train_jobs.config.base import Config
from train_jobs.config.errors import DataError
from train_jobs.config.names import in_shell
from train_jobs.config.prepare import TextConfig
from train_jobs.config.pretrain import PretrainConfig

STORE_VERSION = 2  # raise it, and `version` below, when the layout changes: older stores are then made again
MANIFEST_FILE = "manifest.json"
PARTS = "parts"  # folder in a store for what the steps of its making leave
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


class SourceCounts(Config):
    """What a source of text gave, and what of it is in the store."""

    name: str
    """As the user called it."""
    weight: float = 1.0
    """How often an epoch goes over it."""
    parts: Count
    """Units that it was cut into."""
    read: Count
    """Documents that were found in it."""
    dropped: dict[str, Count]
    """Why documents are not in the store -> how many of them."""
    documents: Count
    """Documents in the store, of both splits."""
    sentences: Count
    """Their sentences."""
    tokens: Count
    """Their tokens, without [CLS] and [SEP]."""
    unknown: Count
    """Those of them that are [UNK]."""


class StepFacts(Config):
    """How a step of the making was done."""

    name: str
    """documents, duplicates, vocabulary or tokens."""
    method: str
    """What did it, with its version."""
    settings: dict[str, Any]
    """With which settings."""


class Shard(Config):
    """One Arrow file."""

    file: str
    """Name in the store's folder."""
    split: Split
    """The split that all its blocks belong to."""
    source: Count = 0
    """Number of the source, in the manifest's `sources`, that all its blocks belong to."""
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

    version: Literal[2] = 2
    """Layout of the folder."""
    key: str
    """`keys.store_key` of what it was made from: equal keys, equal stores."""
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
    reading: str
    """Hash of how the text is read and cleaned, see `keys.reading`."""
    sources: list[SourceCounts]
    """The sources of the text, in order."""
    steps: list[StepFacts]
    """How it was made, in order."""
    packages: dict[str, str]
    """Version of each package that shapes it."""
    splits: dict[Split, SplitCounts]
    """How much text each split holds."""
    shards: list[Shard]
    """The Arrow files, in order."""

    @property
    def content(self) -> str:
        """`store_content` of it: stores of equal content are equal, though their keys may differ."""
        return store_content(
            text=self.data.sha256,
            reading=self.reading,
            vocabulary=self.vocab_sha256,
            lowercase=self.lowercase,
            validation_fraction=self.validation_fraction,
        )


def store_content(*, text: str, reading: str, vocabulary: str, lowercase: bool, validation_fraction: float) -> str:
    """16 hex digits over what a store holds, whether its vocabulary was trained on the text or given as a file.

    Args:
        text: fingerprint of the text.
        reading: hash of how it is read and cleaned.
        vocabulary: SHA-256 of vocab.txt.
        lowercase, validation_fraction: as the text was tokenised and split.
    """
    facts = [STORE_VERSION, text, reading, vocabulary, lowercase, validation_fraction]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def store_folder(data: TextConfig, named: Path | None = None) -> Path | None:
    """The folder of a token store that stands in the place of text, or None: there is text to read.

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
    """The manifest of a store that the user names.

    Raises:
        DataError: there is none; tells apart a store half-made, one of another version, and a damaged one.
    """
    if (manifest := read_manifest(folder)) is not None:
        return manifest
    if (folder / PARTS).is_dir() and not (folder / MANIFEST_FILE).exists():
        raise DataError(
            f"the token store in {folder} is not finished",
            fix="orchestrator resume RUN, of the run that began it, or its torchrun command again",
        )
    raise DataError(
        f"no token store in {folder}",
        facts={"why": _why_none(folder)},
        fix="prepare it again from the text",
    )


def _why_none(folder: Path) -> str:
    """Why a folder holds no store that this version can read."""
    try:
        document = json.loads((folder / MANIFEST_FILE).read_text())
    except FileNotFoundError:
        return f"it has no {MANIFEST_FILE}" if folder.is_dir() else "there is no such folder"
    except (OSError, ValueError):
        return f"{MANIFEST_FILE} is damaged"
    version = document.get("version") if isinstance(document, dict) else None
    if version != STORE_VERSION:
        return f"it is of version {version}, this code reads version {STORE_VERSION}"
    try:
        manifest = StoreManifest.model_validate(document)
    except ValidationError as problem:
        return f"{MANIFEST_FILE} is damaged: {problem.errors()[0]['loc']}"
    short = next(shard for shard in manifest.shards if _size(folder / shard.file) != shard.size)
    return f"{short.file} is {'missing' if _size(folder / short.file) is None else 'cut short'}"


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def read_manifest(folder: Path) -> StoreManifest | None:
    """The manifest of a store of this version whose files are all there in full; None for any other folder."""
    try:
        manifest = StoreManifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
        complete = all((folder / shard.file).stat().st_size == shard.size for shard in manifest.shards)
    except (OSError, ValidationError):
        return None
    return manifest if complete else None


def on_store(config: PretrainConfig, manifest: StoreManifest) -> PretrainConfig:
    """The configuration of training on a store: where that is named, case and share held out are the store's own.

    Raises:
        DataError: the store is of another vocabulary than the model that training starts from.
    """
    data = config.data
    if store_folder(data, data.store) is None:
        return config
    wanted = file_sha256(data.vocabulary) if data.vocabulary else None
    if wanted is not None and (wanted != manifest.vocab_sha256 or data.add_tokens):
        raise DataError(
            "the token store is of another vocabulary",
            facts={"need": f"{data.vocabulary}, sha256 {wanted[:8]}", "have": f"sha256 {manifest.vocab_sha256[:8]}"},
            fix=f"prepare the text with --set {in_shell(f'data.vocabulary={data.vocabulary}')}",
        )
    told = {"lowercase": manifest.lowercase, "validation_fraction": manifest.validation_fraction}
    return config.model_copy(update={"data": data.model_copy(update=told)})
