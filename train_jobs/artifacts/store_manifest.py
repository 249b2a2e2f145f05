"""manifest.json of a token store: written last, so that a folder without it is not a store. It contains its own hash.

Both packages read it: the job to train on the store, the laptop to plan and to print it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError, model_validator

from train_jobs.artifacts.files import checked_json, file_sha256, parse_checked
from train_jobs.artifacts.fingerprints import DataFingerprint
from train_jobs.artifacts.sequence_figures import SequenceFigures
from train_jobs.artifacts.store_places import StorePath, store_bytes, write_whole
from train_jobs.artifacts.text_rule import TextRule
from train_jobs.artifacts.vocabulary_file import VOCABULARY_FILE
from train_jobs.config import Config, DataError, StorageError, in_shell
from train_jobs.config.errors import REMADE, UserError

if TYPE_CHECKING:
    from train_jobs.config import PretrainConfig, TextConfig

# Tokens. Messages have 10 on average, English prose 25, statutes 45, Hindi that a small vocabulary cuts into pieces 60.
USUAL_SENTENCE = (5, 80)
MIN_SENTENCES = 100  # fewer are no basis for an average
STORE_VERSION = 3  # increase it, and `version` below, when the layout changes: older stores are then prepared again
MANIFEST_FILE = "manifest.json"
DAMAGED_FILE = "damaged.txt"  # written by a job that read a damaged shard: the store is made again
OTHER_CONTENT = "has other content than was written"
PARTS = "parts"  # folder in a store for intermediate files of its preparation
Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")
Count = Annotated[int, Field(ge=0)]


class SplitCounts(Config):
    """Amount of text in a split."""

    documents: Count = 0
    """Number of documents with at least one token."""
    sentences: Count = 0
    """Number of sentences."""
    tokens: Count = 0
    """Number of tokens, without [CLS] and [SEP]."""
    blocks: Count = 0
    """Number of blocks."""


def sum_counts(counts: Iterable[SplitCounts]) -> SplitCounts:
    """Return the sum of counts, field by field."""
    each = list(counts)
    return SplitCounts(**{name: sum(getattr(one, name) for one in each) for name in SplitCounts.model_fields})


class SourceCounts(Config):
    """Counts of one source of text: read, dropped, stored."""

    name: str
    """Name given by the user, or the path."""
    weight: float = 1.0
    """Passes of an epoch over the source."""
    document: str = ""
    """What separated the documents of its plain text: file, blank-line, line or a pattern; empty: it has none."""
    parts: Count
    """Number of units of work."""
    read: Count
    """Number of documents read."""
    dropped: dict[str, Count]
    """Reason -> number of documents that are not in the store."""
    documents: Count
    """Number of documents in the store, in both splits."""
    sentences: Count
    """Number of sentences."""
    tokens: Count
    """Number of tokens, without [CLS] and [SEP]."""
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
    tokens: list[Count]
    """Tokens of each block: the order of training mixes sources by them."""
    size: Count
    """Bytes."""
    sha256: str
    """Hash of the file."""

    @model_validator(mode="after")
    def _inside(self) -> Shard:
        if Path(self.file).name != self.file or "\0" in self.file:
            raise ValueError(f"{self.file!r} is not the name of a file in the store")
        return self


class SpecialIds(Config):
    """Ids of the five special pieces."""

    pad: Count
    """[PAD]: pads a sequence."""
    unk: Count
    """[UNK]: a word that the vocabulary cannot represent."""
    cls: Count
    """[CLS]: first token of a sequence."""
    sep: Count
    """[SEP]: end of a segment."""
    mask: Count
    """[MASK]: replaces a token to predict."""


class StoreManifest(Config):
    """Content of manifest.json."""

    version: Literal[3] = 3
    """Layout of the folder."""
    key: str
    """`records.store_key` of its text and settings; equal keys mean equal stores."""
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
    """Versions of Python and of the packages that affect the content."""
    splits: dict[Split, SplitCounts]
    """Amount of text of each split."""
    shards: list[Shard]
    """The Arrow files, in order."""
    sequences: tuple[SequenceFigures, ...] = ()
    """Figures of sequences of the usual lengths."""

    @property
    def rule(self) -> TextRule:
        """Rule for words of the text."""
        return TextRule(self.lowercase, self.strip_accents, self.split_unspaced)

    @property
    def content(self) -> str:
        """`store_content` of this store; equal values mean equal shards, even if the keys differ."""
        return store_content(
            text=self.data.sha256,
            reading=self.reading,
            vocabulary=self.vocab_sha256,
            rule=self.rule,
            validation_fraction=self.validation_fraction,
            method=next((step.method for step in self.steps if step.name == "tokens"), ""),
        )


def store_content(
    *, text: str, reading: str, vocabulary: str, rule: TextRule, validation_fraction: float, method: str
) -> str:
    """Return a hash of everything that determines the shards of a store, 16 hex digits.

    Unlike `records.store_key`, it is the same for a vocabulary that was trained on the text and one given as a file.

    Args:
        text: fingerprint of the text.
        reading: hash of the settings of reading and cleaning.
        vocabulary: SHA-256 of vocab.txt.
        rule: whether text is lower-cased and stripped of accents.
        validation_fraction: share of documents held out for validation.
        method: name and version of the rules that split text into sentences and tokens.
    """
    facts = [STORE_VERSION, text, reading, vocabulary, rule, validation_fraction, method]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def store_warnings(manifest: StoreManifest, *, sequence_length: int | None = None) -> list[str]:
    """Return warnings about text that next-sentence prediction cannot use as intended.

    Args:
        manifest: the manifest of the text.
        sequence_length: length of the sequences to build. None: 128.
    """
    wanted = (sequence_length or 128, "pairs")
    found = [one for one in manifest.sequences if (one.sequence_length, one.layout) == wanted]
    return [*_sentence_warnings(manifest), *(warning for one in found for warning in one.warnings())]


def _sentence_warnings(manifest: StoreManifest) -> list[str]:
    """Return a warning if sentences are so long or so short that sequences cannot be built of them as intended."""
    counts = sum_counts(manifest.splits.values())
    shortest, longest = USUAL_SENTENCE
    mean = counts.tokens / max(counts.sentences, 1)
    if counts.sentences < MIN_SENTENCES or shortest <= mean <= longest:
        return []
    effect = "most next-sentence pairs are random" if mean > longest else "next-sentence pairs have little context"
    return [f"a sentence has {mean:.0f} tokens on average (usual: {shortest} to {longest}): {effect}"]


def store_folder(data: TextConfig, named: Path | None = None) -> Path | None:
    """Return the folder of a token store that is given instead of text; None if text is given.

    Args:
        data: settings whose only source may be the folder of a store.
        named: `data.store` of the configuration.
    """
    if named is not None:
        return named
    if len(data.text) != 1 or len(data.text[0].path) != 1:
        return None
    folder = Path(data.text[0].path[0])
    return folder if (folder / MANIFEST_FILE).is_file() else None


def require_manifest(folder: StorePath) -> StoreManifest:
    """Return the manifest of a store that the user requested.

    Raises:
        DataError: the folder has no usable store; the message distinguishes unfinished, outdated and damaged stores.
    """
    if (manifest := stored_manifest(folder)) is not None:
        if (found := damage(folder, manifest)) is not None:
            raise damaged_store(folder, found)
        return manifest
    if (folder / PARTS).is_dir() and not (folder / MANIFEST_FILE).exists():
        raise DataError(
            f"the token store in {folder} is not finished",
            fix="resume the run that started it: orchestrator resume RUN; or repeat its torchrun command",
        )
    raise DataError(
        f"no token store in {folder}",
        facts={"why": reason_unreadable(folder)},
        fix="prepare it again from the text",
    )


def reason_unreadable(folder: StorePath) -> str:
    """Return the reason why this version cannot read a store from a folder."""
    try:
        document = parse_checked(store_bytes(folder / MANIFEST_FILE))
    except FileNotFoundError:
        return f"it has no {MANIFEST_FILE}" if folder.is_dir() else "no such folder"
    except (OSError, ValueError):
        return f"{MANIFEST_FILE} is damaged"
    if (version := document.get("version")) != STORE_VERSION:
        return f"version {version}, but this code reads version {STORE_VERSION}"
    try:
        manifest = StoreManifest.model_validate(document)
    except ValidationError as problem:
        first = problem.errors()[0]
        return f"{MANIFEST_FILE} is damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    found = damage(folder, manifest)
    assert found is not None, "the store can be read"
    return f"{found.file} {found.why}"


class Damage(NamedTuple):
    """A damaged file of a store."""

    file: str
    """Name of the file."""
    why: str
    """State of the file, such as "is truncated"."""


def damage(folder: StorePath, manifest: StoreManifest) -> Damage | None:
    """Return the first damage of a store that is seen without reading its shards, or None.

    It covers what an earlier job found in a shard, the sizes of all shards and the content of the vocabulary.
    `token_store.TokenStore` compares the hash of a shard when it first reads it.
    """
    with suppress(OSError):
        file, _, why = (folder / DAMAGED_FILE).read_bytes().decode(errors="replace").strip().partition(" ")
        return Damage(file or DAMAGED_FILE, why or "marks the store")
    for shard in manifest.shards:
        # readers make a list of all blocks: 2**40 of them would not fit into memory
        if shard.blocks != len(shard.tokens):
            return Damage(MANIFEST_FILE, f"lists {shard.blocks} blocks and tokens of {len(shard.tokens)}: {shard.file}")
        if (size := _size(folder / shard.file)) != shard.size:
            return Damage(shard.file, "is missing" if size is None else "is truncated")
    try:
        found = file_sha256(folder / VOCABULARY_FILE)
    except FileNotFoundError:
        return Damage(VOCABULARY_FILE, "is missing")
    except OSError as problem:
        return Damage(VOCABULARY_FILE, f"cannot be read: {problem.strerror or problem}")
    return None if found == manifest.vocab_sha256 else Damage(VOCABULARY_FILE, OTHER_CONTENT)


def mark_damaged(folder: StorePath, found: Damage) -> None:
    """Record damage that was found while a shard was read, so that the store is made again instead of read again."""
    with suppress(OSError, StorageError):  # read-only: every job finds the damage itself
        write_whole(folder / DAMAGED_FILE, f"{found.file} {found.why}\n")


def damaged_store(folder: StorePath, found: Damage, *, is_remade: bool = False) -> UserError:
    """Return the error about a damaged file of a store.

    Args:
        folder: folder of the store.
        found: the damage.
        is_remade: whether the next start of the job makes the store again. The disk is then the cause, not the input.
    """
    message = f"the token store is damaged: {folder / found.file}"
    if is_remade:
        again = "the next start makes it again from the text"
        return StorageError(message, facts={"why": found.why, REMADE: again}, fix="orchestrator resume RUN")
    return DataError(message, facts={"why": found.why}, fix="repeat submit prepare")


def _size(path: StorePath) -> int | None:
    return path.stat().st_size if path.is_file() else None


def read_manifest(folder: StorePath) -> StoreManifest | None:
    """Return the manifest of a store of this version without visible damage; None for any other folder."""
    manifest = stored_manifest(folder)
    return manifest if manifest is not None and damage(folder, manifest) is None else None


def stored_manifest(folder: StorePath) -> StoreManifest | None:
    """Return the manifest of a store of this version, also of a store whose other files are damaged."""
    try:
        return StoreManifest.model_validate(parse_checked(store_bytes(folder / MANIFEST_FILE)))
    except (OSError, ValueError):
        return None


def write_manifest(folder: StorePath, manifest: StoreManifest) -> None:
    """Write manifest.json, with its checksum, into the folder of a store whose other files are complete."""
    write_whole(folder / MANIFEST_FILE, checked_json(manifest.model_dump(mode="json"), indent=2))


def on_store(config: PretrainConfig, manifest: StoreManifest) -> PretrainConfig:
    """Return the configuration with the words and validation fraction of the store, if the user named one.

    Args:
        config: configuration of a run.
        manifest: manifest of the store that it trains on.

    Raises:
        DataError: the vocabulary of the store is not that of the initial model.
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
