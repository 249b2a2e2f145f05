"""Inspection of a token store: verify files, counts, offsets and ids; measure lengths and entropy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.store_manifest import (
    DAMAGED_FILE,
    SPLITS,
    Shard,
    Split,
    SplitCounts,
    StoreManifest,
    require_manifest,
    stored_manifest,
    sum_counts,
)
from train_jobs.artifacts.store_places import StorePath
from train_jobs.artifacts.vocabulary_file import VOCABULARY_FILE
from train_jobs.config.errors import DataError
from train_jobs.corpus.arrow import mapped_file
from train_jobs.corpus.store.token_store import Block, as_block
from train_jobs.corpus.tokenize.vocabulary import CLS, MASK, PAD, SEP, UNK, load_vocabulary

OWN_NAMES = {"manifest.json", VOCABULARY_FILE, DAMAGED_FILE, "parts"}
ENTROPY_TOLERANCE = 1e-9
QUANTILES = (0.05, 0.5, 0.95)


def verify(folder: StorePath) -> list[str]:
    """Verify every file, count, offset and id of a store against its manifest.

    Args:
        folder: folder of the store.

    Returns:
        One line per problem, each with the name of its file; an empty list if the store is valid.

    Raises:
        DataError: the folder contains no manifest of this version.
    """
    manifest = stored_manifest(folder) or require_manifest(folder)  # of a damaged store, every problem is listed
    known = OWN_NAMES | {shard.file for shard in manifest.shards}
    problems = [*_vocabulary_problems(folder, manifest)]
    if (mark := folder / DAMAGED_FILE).is_file():
        problems.append(f"{DAMAGED_FILE}: a job found that {mark.read_bytes().decode(errors='replace').strip()}")
    problems += [f"{name}: not in the manifest" for name in sorted({path.name for path in folder.glob("*")} - known)]
    counted: dict[Split, list[SplitCounts]] = {split: [] for split in SPLITS}
    by_source: list[list[SplitCounts]] = [[] for _ in manifest.sources]
    whole = True
    for shard in manifest.shards:
        found, counts = _inspect_shard(folder / shard.file, shard, manifest)
        problems += [f"{shard.file}: {problem}" for problem in found]
        whole = whole and not found
        counted[shard.split].append(counts)
        if shard.source < len(by_source):
            by_source[shard.source].append(counts)
    if whole:  # else wrong totals are only a consequence of the problems above
        problems += _count_problems(manifest, counted, by_source)
        listed = manifest.validation_unigram_entropy
        entropy = unigram_entropy(folder, manifest.shards, manifest.vocab_size)
        if abs(entropy - listed) > ENTROPY_TOLERANCE:
            problems.append(f"manifest.json: validation_unigram_entropy is {listed:.6f}, the shards have {entropy:.6f}")
    return problems


def _vocabulary_problems(folder: StorePath, manifest: StoreManifest) -> Iterator[str]:
    path = folder / VOCABULARY_FILE
    if not path.is_file():
        yield f"{VOCABULARY_FILE}: missing"
        return
    if (found := hashlib.sha256(path.read_bytes()).hexdigest()) != manifest.vocab_sha256:
        yield f"{VOCABULARY_FILE}: its SHA-256 is {found[:8]}, the manifest lists {manifest.vocab_sha256[:8]}"
        return
    try:
        tokenizer = load_vocabulary(path, **manifest.rule._asdict())
    except DataError as problem:
        yield f"{VOCABULARY_FILE}: {problem.message}"
        return
    if tokenizer.get_vocab_size() != manifest.vocab_size:
        yield f"{VOCABULARY_FILE}: {tokenizer.get_vocab_size()} pieces, the manifest lists {manifest.vocab_size}"
    for name, piece in (("pad", PAD), ("unk", UNK), ("cls", CLS), ("sep", SEP), ("mask", MASK)):
        if tokenizer.token_to_id(piece) != (listed := getattr(manifest.special_ids, name)):
            yield f"manifest.json: special_ids.{name} is {listed}, {piece} has {tokenizer.token_to_id(piece)}"


def _inspect_shard(path: StorePath, shard: Shard, manifest: StoreManifest) -> tuple[list[str], SplitCounts]:
    """Return the problems of a shard, and its counts."""
    if not path.is_file():
        return ["missing"], SplitCounts()
    # The hash comes first: Arrow would follow wrong offsets of a damaged file out of its buffers.
    if (found := file_sha256(path)) != shard.sha256:
        return [f"its SHA-256 is {found[:8]}, the manifest lists {shard.sha256[:8]}"], SplitCounts()
    problems, counts = [], []
    if shard.source >= max(len(manifest.sources), 1):
        problems.append(f"unknown source {shard.source}: the manifest lists {len(manifest.sources)} sources")
    try:
        for index, block in enumerate(_blocks(path)):
            problems += [f"block {index}: {problem}" for problem in _block_problems(block, manifest.vocab_size)]
            documents, sentences = len(block.document_offsets) - 1, len(block.sentence_offsets) - 1
            counts.append(SplitCounts(documents=documents, sentences=sentences, tokens=len(block.tokens), blocks=1))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:
        if isinstance(problem, OSError) and problem.errno is not None:
            raise  # of the disk; Arrow's own OSError about a damaged file has no errno
        return [f"block {len(counts)}: {str(problem).partition(chr(10))[0]}"], sum_counts(counts)
    if len(counts) != shard.blocks:
        problems.append(f"{len(counts)} blocks, the manifest lists {shard.blocks}")
    elif not problems and [each.tokens for each in counts] != shard.tokens:
        problems.append("its blocks have other numbers of tokens than the manifest lists")
    return problems, sum_counts(counts)


def _blocks(path: StorePath) -> Iterator[Block]:
    with mapped_file(path) as mapped:
        reader = pa.ipc.open_file(mapped)
        for index in range(reader.num_record_batches):
            yield as_block(reader.get_batch(index))


def _block_problems(block: Block, vocab_size: int) -> Iterator[str]:
    for what, offsets, total in (
        ("sentences", block.sentence_offsets, len(block.tokens)),
        ("documents", block.document_offsets, len(block.sentence_offsets) - 1),
    ):
        if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != total:
            yield f"invalid offsets of {what}: they do not run from 0 to {total}"
        elif (np.diff(offsets) <= 0).any():
            yield f"invalid offsets of {what}: they do not increase"
    if len(block.tokens) and int(block.tokens.max()) >= vocab_size:
        yield f"invalid id {int(block.tokens.max())}: the vocabulary has {vocab_size} pieces"


def _count_problems(
    manifest: StoreManifest, counted: dict[Split, list[SplitCounts]], by_source: Sequence[Sequence[SplitCounts]]
) -> Iterator[str]:
    for split, each in counted.items():
        for name, count in sum_counts(each).model_dump().items():
            if count != (listed := getattr(manifest.splits[split], name)):
                yield f"manifest.json: splits.{split}.{name} is {listed}, the shards have {count}"
    for source, some in zip(manifest.sources, by_source, strict=True):
        for name, count in sum_counts(some).model_dump(exclude={"blocks"}).items():
            if count != (listed := getattr(source, name)):
                yield f"manifest.json: {name} of source {source.name} is {listed}, the shards have {count}"


class Histogram(NamedTuple):
    """A histogram of lengths in tokens, with bins that double."""

    edges: list[int]
    """[bins + 1] 1, 2, 4, 8, ...: a bin contains its lower edge and excludes its upper one."""
    counts: list[int]
    """[bins] number of lengths in each bin."""
    mean: float
    """Mean length."""
    quantiles: dict[str, int]
    """Name (5%, 50%, 95%) -> length."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return self._asdict()


def histogram(lengths: npt.NDArray[np.int64]) -> Histogram:
    """Return the histogram of lengths.

    Args:
        lengths: [n] in tokens, n > 0, all of them positive.
    """
    bins = int(lengths.max()).bit_length()
    edges = [1 << power for power in range(bins + 1)]
    counts, _ = np.histogram(lengths, edges)
    found = np.quantile(lengths, QUANTILES, method="inverted_cdf")
    quantiles = {f"{share:.0%}": int(value) for share, value in zip(QUANTILES, found, strict=True)}
    return Histogram(edges, counts.tolist(), float(lengths.mean()), quantiles)


def unigram_entropy(store: StorePath, shards: Sequence[Shard], vocab_size: int) -> float:
    """Return the entropy in nats of the frequencies of the validation tokens.

    It is the loss of a model that only knows token frequencies, and so the baseline of the masked-LM loss.

    Args:
        store: folder of the store.
        shards: shards of the store; only those of the validation split are read.
        vocab_size: number of pieces of the vocabulary.
    """
    frequencies = np.zeros(vocab_size, np.int64)
    for block in (block for shard in shards if shard.split == "validation" for block in _blocks(store / shard.file)):
        frequencies += np.bincount(block.tokens, minlength=vocab_size)
    seen = frequencies[frequencies > 0]  # 0 log 0 is nan in numpy
    shares = seen / seen.sum()
    return float(-(shares * np.log(shares)).sum())
