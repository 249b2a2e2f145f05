"""Names by content: what decides a token store, and what decides the result of each step on the way to it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train_jobs.artifacts.fingerprints import EXTRACTOR, DataFingerprint, content_hashes
from train_jobs.artifacts.store_manifest import STORE_VERSION
from train_jobs.config.prepare import TextConfig
from train_jobs.corpus.sources import Part
from train_jobs.corpus.steps.cleaning import CLEANER
from train_jobs.corpus.steps.records import DocumentsRecord, DuplicatesRecord, key_of
from train_jobs.corpus.tokenize.sentences import SPLITTER
from train_jobs.corpus.tokenize.vocabulary import read_vocabulary


def sources_text(data: TextConfig) -> list[dict[str, Any]]:
    """What of the sources shapes a store besides the content of their files: not where these lie, nor their names."""
    shape = ("dataset", "format", "column", "weight")
    return [{name: getattr(source, name) for name in shape} for source in data.text]


def reading(data: TextConfig) -> str:
    """16 hex digits over how text is read: formats, weights, rules for documents and sentences."""
    return key_of(
        sources=sources_text(data),
        clean=[CLEANER, data.clean.model_dump(mode="json")],
        extractor=EXTRACTOR,
        sentences=SPLITTER,
    )


def store_key(data: TextConfig, found: DataFingerprint) -> str:
    """16 hex digits over what determines a token store: equal keys, equal stores.

    That is the text, how it is read, the vocabulary (its content and the words added to it, or the size to train),
    lower case and the share held out, not the length of sequences or anything else of training.

    Raises:
        DataError: the vocabulary file cannot be read.
    """
    return key_of(
        text=found.sha256,
        reading=reading(data),
        vocabulary=vocabulary_facts(data),
        lowercase=data.lowercase,
        validation_fraction=data.validation_fraction,
        store=STORE_VERSION,
    )


def vocabulary_facts(data: TextConfig) -> list[Any]:
    """What decides the vocabulary, but for the text."""
    if data.vocabulary is None:
        return [data.vocab_size, data.lowercase]
    return [hashlib.sha256(read_vocabulary(data.vocabulary)).hexdigest(), data.add_tokens]


def documents_keys(data: TextConfig, parts: Sequence[Part], found: DataFingerprint, cache: Path | None) -> list[str]:
    """Of the documents of each part: by the content of the very files that it is read from.

    Args:
        found: fingerprint of the text, which stands for what is not a file.
        cache: as of `sources.content_hashes`.
    """
    paths = sorted({piece.path for part in parts for piece in part.pieces if Path(piece.path).is_file()})
    hashes = dict(zip(paths, content_hashes([Path(path) for path in paths], cache), strict=True))
    clean = data.clean.model_dump(mode="json")

    def key(part: Part) -> str:
        pieces = [
            [hashes.get(piece.path, found.sha256), piece.compression, piece.start, piece.stop] for piece in part.pieces
        ]
        column = data.text[part.source].column if data.text else None
        return key_of(pieces=pieces, format=part.format, column=column, clean=[CLEANER, clean], extractor=EXTRACTOR)

    return [key(part) for part in parts]


def duplicates_key(data: TextConfig, documents: Sequence[str]) -> str:
    """Of the documents that are dropped, given the keys of all parts."""
    return key_of(documents=list(documents), drop=data.clean.drop_duplicates)


def vocabulary_key(data: TextConfig, duplicates: str) -> str:
    """Of the vocabulary."""
    text = duplicates if data.vocabulary is None else None
    return key_of(vocabulary=vocabulary_facts(data), text=text)


def tokens_key(
    data: TextConfig,
    documents: DocumentsRecord,
    duplicates: DuplicatesRecord,
    number: int,
    *,
    vocabulary: str,
    threshold: int,
    block_tokens: int,
) -> str:
    """Of the shards of a part.

    Args:
        documents: of the part.
        duplicates: of all parts.
        number: of the part.
        vocabulary: SHA-256 of vocab.txt.
        threshold: as of `splits.SplitRule`.
        block_tokens: as of `store.StoreWriter`.
    """
    return key_of(
        documents=documents.key,
        dropped=duplicates.digests[number],
        vocabulary=vocabulary,
        lowercase=data.lowercase,
        threshold=threshold,
        sentences=SPLITTER,
        block_tokens=block_tokens,
        store=STORE_VERSION,
    )
