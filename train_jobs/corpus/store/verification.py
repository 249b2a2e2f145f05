"""Whether a token store is what its manifest says: every file, every count, every offset, every id."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.store_manifest import SPLITS, Shard, Split, SplitCounts, StoreManifest, require_manifest
from train_jobs.config.errors import DataError
from train_jobs.corpus.store.lengths import unigram_entropy
from train_jobs.corpus.store.token_store import Block, as_block
from train_jobs.corpus.tokenize.vocabulary import CLS, MASK, PAD, SEP, UNK, VOCABULARY_FILE, load_vocabulary

OWN_NAMES = {"manifest.json", VOCABULARY_FILE, "parts"}
CLOSE = 1e-9


def verify(folder: Path) -> list[str]:
    """What is wrong with a store, each with the name of its file; nothing is, if there is nothing.

    Raises:
        DataError: there is no store whose files are all there in full.
    """
    manifest = require_manifest(folder)
    problems = [*_vocabulary(folder, manifest), *_strangers(folder, manifest)]
    counted: dict[Split, SplitCounts] = {split: SplitCounts() for split in SPLITS}
    by_source = [SplitCounts() for _ in manifest.sources]
    whole = True
    for shard in manifest.shards:
        found, counts = _shard(folder / shard.file, shard, manifest)
        problems += [f"{shard.file}: {problem}" for problem in found]
        whole = whole and not found
        counted[shard.split] = _sum(counted[shard.split], counts)
        if shard.source < len(by_source):
            by_source[shard.source] = _sum(by_source[shard.source], counts)
    if not whole:
        return problems  # whatever does not add up does so for that reason
    return [*problems, *_totals(folder, manifest, counted, by_source)]


def _vocabulary(folder: Path, manifest: StoreManifest) -> Iterator[str]:
    path = folder / VOCABULARY_FILE
    if not path.is_file():
        yield f"{VOCABULARY_FILE}: missing"
        return
    if (found := hashlib.sha256(path.read_bytes()).hexdigest()) != manifest.vocab_sha256:
        yield f"{VOCABULARY_FILE}: its SHA-256 is {found[:8]}, the manifest says {manifest.vocab_sha256[:8]}"
        return
    try:
        tokenizer = load_vocabulary(path, lowercase=manifest.lowercase)
    except DataError as problem:
        yield f"{VOCABULARY_FILE}: {problem.message}"
        return
    if tokenizer.get_vocab_size() != manifest.vocab_size:
        yield f"{VOCABULARY_FILE}: {tokenizer.get_vocab_size()} pieces, the manifest says {manifest.vocab_size}"
    for name, piece in (("pad", PAD), ("unk", UNK), ("cls", CLS), ("sep", SEP), ("mask", MASK)):
        if tokenizer.token_to_id(piece) != (told := getattr(manifest.special_ids, name)):
            yield f"manifest.json: special_ids.{name} is {told}, {piece} has {tokenizer.token_to_id(piece)}"


def _strangers(folder: Path, manifest: StoreManifest) -> Iterator[str]:
    known = OWN_NAMES | {shard.file for shard in manifest.shards}
    yield from (f"{path.name}: not in the manifest" for path in sorted(folder.iterdir()) if path.name not in known)


def _shard(path: Path, shard: Shard, manifest: StoreManifest) -> tuple[list[str], SplitCounts]:
    """What is wrong with a shard, and what it holds."""
    counts = SplitCounts()
    if (found := file_sha256(path)) != shard.sha256:
        return [f"its SHA-256 is {found[:8]}, the manifest says {shard.sha256[:8]}"], counts
    problems = []
    if shard.source >= max(len(manifest.sources), 1):
        problems.append(f"of source {shard.source}, and the manifest has {len(manifest.sources)}")
    with pa.memory_map(str(path)) as mapped:
        reader = pa.ipc.open_file(mapped)
        if reader.num_record_batches != shard.blocks:
            problems.append(f"{reader.num_record_batches} blocks, the manifest says {shard.blocks}")
        for index in range(reader.num_record_batches):
            block = as_block(reader.get_batch(index))
            problems += [f"block {index}: {problem}" for problem in block_problems(block, manifest.vocab_size)]
            counts = _sum(counts, counts_of(block))
    return problems, counts


def block_problems(block: Block, vocab_size: int) -> Iterator[str]:
    """What is wrong with a block by itself."""
    for what, offsets, total in (
        ("sentences", block.sentence_offsets, len(block.tokens)),
        ("documents", block.document_offsets, len(block.sentence_offsets) - 1),
    ):
        if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != total:
            yield f"offsets of {what} do not go from 0 to {total}"
        elif (np.diff(offsets) <= 0).any():
            yield f"there are {what} that hold nothing, or less"
    if len(block.tokens) and int(block.tokens.max()) >= vocab_size:
        yield f"an id of {int(block.tokens.max())}, and the vocabulary has {vocab_size} pieces"


def counts_of(block: Block) -> SplitCounts:
    """What a block holds."""
    return SplitCounts(
        documents=len(block.document_offsets) - 1,
        sentences=len(block.sentence_offsets) - 1,
        tokens=len(block.tokens),
        blocks=1,
    )


def _totals(
    folder: Path, manifest: StoreManifest, counted: dict[Split, SplitCounts], by_source: Sequence[SplitCounts]
) -> Iterator[str]:
    for split, counts in counted.items():
        for name in SplitCounts.model_fields:
            told = getattr(manifest.splits[split], name)
            if getattr(counts, name) != told:
                yield f"manifest.json: splits.{split}.{name} is {told}, there are {getattr(counts, name)}"
    for source, counts in zip(manifest.sources, by_source, strict=True):
        for name in ("documents", "sentences", "tokens"):
            if getattr(counts, name) != (told := getattr(source, name)):
                yield f"manifest.json: {name} of source {source.name} is {told}, there are {getattr(counts, name)}"
    entropy = unigram_entropy(folder, manifest.shards, manifest.vocab_size)
    if abs(entropy - manifest.validation_unigram_entropy) > CLOSE:
        told = manifest.validation_unigram_entropy
        yield f"manifest.json: validation_unigram_entropy is {told:.6f}, it should be {entropy:.6f}"


def _sum(one: SplitCounts, other: SplitCounts) -> SplitCounts:
    return SplitCounts(**{name: getattr(one, name) + getattr(other, name) for name in SplitCounts.model_fields})
