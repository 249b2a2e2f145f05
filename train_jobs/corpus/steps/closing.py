"""The end of the preparation: the records of all parts become the manifest of the store."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from train_jobs.artifacts.fingerprints import EXTRACTOR, DataFingerprint
from train_jobs.artifacts.store_manifest import (
    SPLITS,
    SourceCounts,
    SpecialIds,
    SplitCounts,
    StepFacts,
    StoreManifest,
)
from train_jobs.config.errors import DataError
from train_jobs.config.prepare import TextConfig
from train_jobs.corpus.sources import Part
from train_jobs.corpus.sources.text_parts import EMBEDDED
from train_jobs.corpus.steps.cleaning import CLEANER
from train_jobs.corpus.steps.keys import reading
from train_jobs.corpus.steps.records import DocumentsRecord, DuplicatesRecord, TokensRecord, VocabularyRecord
from train_jobs.corpus.store.lengths import unigram_entropy
from train_jobs.corpus.tokenize.sentences import SPLITTER
from train_jobs.corpus.tokenize.vocabulary import CLS, MASK, PAD, SEP, UNK, VOCABULARY_FILE, load_vocabulary

PACKAGES = ("numpy", "pyarrow", "tokenizers")


def source_names(data: TextConfig) -> list[str]:
    """What the sources are called, in order."""
    return [source.title for source in data.text] or [EMBEDDED]


def make_manifest(
    data: TextConfig,
    found: DataFingerprint,
    store: Path,
    key: str,
    parts: Sequence[Part],
    documents: Sequence[DocumentsRecord],
    duplicates: DuplicatesRecord,
    vocabulary: VocabularyRecord,
    tokens: Sequence[TokensRecord],
) -> StoreManifest:
    """The manifest of a store whose shards are all there.

    Raises:
        DataError: a split holds no token.
    """
    splits = {split: _together([record.splits[split] for record in tokens]) for split in SPLITS}
    for split, counts in splits.items():
        if counts.documents == 0:
            raise DataError(f"the {split} split holds no token", fix="--data PATH with more text")
    shards = [shard for split in SPLITS for record in tokens for shard in record.shards if shard.split == split]
    tokenizer = load_vocabulary(store / VOCABULARY_FILE, lowercase=data.lowercase)
    pad, unk, cls, sep, mask = (tokenizer.token_to_id(piece) for piece in (PAD, UNK, CLS, SEP, MASK))
    return StoreManifest(
        key=key,
        data=found,
        reading=reading(data),
        sources=_sources(data, parts, documents, duplicates, tokens),
        steps=_steps(data),
        packages={"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
        vocab_size=vocabulary.pieces,
        vocab_sha256=vocabulary.files[0].sha256,
        special_ids=SpecialIds(pad=pad, unk=unk, cls=cls, sep=sep, mask=mask),
        lowercase=data.lowercase,
        validation_fraction=data.validation_fraction,
        validation_unigram_entropy=unigram_entropy(store, shards, vocabulary.pieces),
        splits=splits,
        shards=shards,
    )


def _sources(
    data: TextConfig,
    parts: Sequence[Part],
    documents: Sequence[DocumentsRecord],
    duplicates: DuplicatesRecord,
    tokens: Sequence[TokensRecord],
) -> list[SourceCounts]:
    found = []
    for number, name in enumerate(source_names(data)):
        ours = [index for index, part in enumerate(parts) if part.source == number]
        counts = _together([tokens[index].splits[split] for index in ours for split in SPLITS])
        dropped = Counter[str]()
        for index in ours:
            dropped.update(documents[index].dropped)
            dropped["duplicate"] += duplicates.dropped[index]
        kept = sum(documents[index].documents - duplicates.dropped[index] for index in ours)
        dropped["no token"] = kept - counts.documents
        found.append(
            SourceCounts(
                name=name,
                weight=data.text[number].weight if data.text else 1.0,
                parts=len(ours),
                read=sum(documents[index].read for index in ours),
                dropped={why: count for why, count in sorted(dropped.items()) if count},
                documents=counts.documents,
                sentences=counts.sentences,
                tokens=counts.tokens,
                unknown=sum(tokens[index].unknown for index in ours),
            )
        )
    return found


def _steps(data: TextConfig) -> list[StepFacts]:
    trained = {"size": data.vocab_size} if data.vocabulary is None else {"added": data.add_tokens}
    rules = data.clean.model_dump(mode="json")
    drop = {"drop_duplicates": rules.pop("drop_duplicates")}
    return [
        StepFacts(name="documents", method=f"extractor {EXTRACTOR}, cleaning by {CLEANER}", settings=rules),
        StepFacts(name="duplicates", method="128 bits of SHA-256", settings=drop),
        StepFacts(
            name="vocabulary",
            method=f"WordPiece, {'trained' if data.vocabulary is None else 'given'}",
            settings=trained,
        ),
        StepFacts(name="tokens", method=f"sentences by {SPLITTER}, WordPiece", settings={"lowercase": data.lowercase}),
    ]


def _together(counts: Sequence[SplitCounts]) -> SplitCounts:
    fields = SplitCounts.model_fields
    return SplitCounts(**{name: sum(getattr(count, name) for count in counts) for name in fields})
