"""The manifest of a token store, built from the records of all steps after the shards are written."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from train_jobs.artifacts.fingerprints import EXTRACTOR, DataFingerprint
from train_jobs.artifacts.store_manifest import (
    SPLITS,
    SourceCounts,
    SpecialIds,
    StepFacts,
    StoreManifest,
    sum_counts,
)
from train_jobs.artifacts.text_rule import TextRule
from train_jobs.artifacts.vocabulary_file import VOCABULARY_FILE
from train_jobs.config.errors import DataError
from train_jobs.config.prepare import TextConfig
from train_jobs.corpus.examples.text_use import recorded_figures
from train_jobs.corpus.sources.text_parts import EMBEDDED, Part
from train_jobs.corpus.steps.document_rules import CLEANER
from train_jobs.corpus.steps.records import (
    DocumentsRecord,
    DuplicatesRecord,
    PreparationSetting,
    TokensRecord,
    VocabularyRecord,
    reading,
)
from train_jobs.corpus.store.inspection import unigram_entropy
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.corpus.tokenize.sentences import SPLITTER
from train_jobs.corpus.tokenize.vocabulary import CLS, MASK, PAD, SEP, UNK, load_vocabulary

PACKAGES = ("numpy", "pyarrow", "tokenizers")


class PreparationRecords(NamedTuple):
    """The records of all steps."""

    documents: Sequence[DocumentsRecord]
    """One per part."""
    duplicates: DuplicatesRecord
    vocabulary: VocabularyRecord
    tokens: Sequence[TokensRecord]
    """One per part."""


def source_names(data: TextConfig) -> list[str]:
    """Return the titles of the sources, in order."""
    return [source.title for source in data.text] or [EMBEDDED]


def make_manifest(
    setting: PreparationSetting, found: DataFingerprint, key: str, parts: Sequence[Part], records: PreparationRecords
) -> StoreManifest:
    """Return the manifest of a store whose shards are all written.

    Args:
        setting: rules and folders.
        found: fingerprint of the text.
        key: key of the store, see `records.store_key`.
        parts: parts of the text.
        records: records of all steps.

    Raises:
        DataError: a split contains no token.
    """
    data, tokens, vocabulary = setting.data, records.tokens, records.vocabulary
    splits = {split: sum_counts(record.splits[split] for record in tokens) for split in SPLITS}
    for split, counts in splits.items():
        if counts.documents == 0:
            raise DataError(f"the {split} split contains no token", fix="give more text: --data PATH")
    shards = [shard for split in SPLITS for record in tokens for shard in record.shards if shard.split == split]
    tokenizer = load_vocabulary(setting.store / VOCABULARY_FILE, **vocabulary.rule._asdict())
    pad, unk, cls, sep, mask = (tokenizer.token_to_id(piece) for piece in (PAD, UNK, CLS, SEP, MASK))
    manifest = StoreManifest(
        key=key,
        data=found,
        reading=reading(data),
        sources=list(_source_counts(data, parts, records)),
        steps=_step_facts(data, vocabulary.rule),
        packages={"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
        vocab_size=vocabulary.pieces,
        vocab_sha256=vocabulary.files[0].sha256,
        special_ids=SpecialIds(pad=pad, unk=unk, cls=cls, sep=sep, mask=mask),
        **vocabulary.rule._asdict(),
        validation_fraction=data.validation_fraction,
        validation_unigram_entropy=unigram_entropy(setting.store, shards, vocabulary.pieces),
        splits=splits,
        shards=shards,
    )
    return manifest.model_copy(update={"sequences": recorded_figures(TokenStore(setting.store, manifest))})


def _source_counts(data: TextConfig, parts: Sequence[Part], records: PreparationRecords) -> Iterable[SourceCounts]:
    documents, duplicates, _, tokens = records
    for number, name in enumerate(source_names(data)):
        ours = [index for index, part in enumerate(parts) if part.source == number]
        counts = sum_counts(tokens[index].splits[split] for index in ours for split in SPLITS)
        dropped = Counter[str]()
        for index in ours:
            dropped.update(documents[index].dropped)
            dropped["duplicate"] += duplicates.dropped[index]
            dropped["no token"] += documents[index].documents - duplicates.dropped[index]
        # Documents whose characters BERT's normalisation drops have no tokens, and the writer leaves them out.
        dropped["no token"] -= counts.documents
        yield SourceCounts(
            name=name,
            weight=data.text[number].weight if data.text else 1.0,
            document=max((parts[index].document for index in ours), default=""),
            parts=len(ours),
            read=sum(documents[index].read for index in ours),
            dropped={why: count for why, count in sorted(dropped.items()) if count},
            documents=counts.documents,
            sentences=counts.sentences,
            tokens=counts.tokens,
            unknown=sum(tokens[index].unknown for index in ours),
        )


TOKENS_METHOD = f"sentences by {SPLITTER}, WordPiece"


def _step_facts(data: TextConfig, rule: TextRule) -> list[StepFacts]:
    rules = data.clean.model_dump(mode="json")
    drop = {"drop_duplicates": rules.pop("drop_duplicates")}
    given = data.vocabulary is not None
    vocabulary: dict[str, Any] = {"added": data.add_tokens} if given else {"size": data.vocab_size}
    return [
        StepFacts(name="documents", method=f"extractor {EXTRACTOR}, cleaning by {CLEANER}", settings=rules),
        StepFacts(name="duplicates", method="128 bits of SHA-256", settings=drop),
        StepFacts(name="vocabulary", method=f"WordPiece, {'given' if given else 'trained'}", settings=vocabulary),
        StepFacts(name="tokens", method=TOKENS_METHOD, settings=rule._asdict()),
    ]
