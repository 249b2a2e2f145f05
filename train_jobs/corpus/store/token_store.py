"""The token store: a folder of tokenised text that serves every sequence length; memory-mapped when read.

    manifest.json             counts, hashes; written last
    vocab.txt                 WordPiece vocabulary
    shard-00000-train.arrow   Arrow IPC file; a record batch is a block: complete documents, about a million tokens
    ...                       each shard contains blocks of one part of the text and of one split
    parts/                    files of the steps, while the store is being made; see `pipeline`

A row is a document: list<list<token id>>, sentences of tokens, ids in 16 bits where the vocabulary allows. Arrow
keeps nested lists as flat values and offsets, so a mapped block is three numpy arrays and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from train_jobs.artifacts.files import NewFile, file_sha256
from train_jobs.artifacts.store_manifest import (
    OTHER_CONTENT,
    SPLITS,
    Damage,
    Shard,
    Split,
    SplitCounts,
    StoreManifest,
    damaged_store,
    mark_damaged,
    read_manifest,
    require_manifest,
    stored_manifest,
    sum_counts,
)
from train_jobs.artifacts.store_places import NewObject, StorePath, new_file
from train_jobs.artifacts.vocabulary_file import VOCABULARY_FILE
from train_jobs.config.errors import UserError
from train_jobs.config.pretrain import ObjectiveConfig
from train_jobs.corpus.arrow import mapped_file, number_column, numbers

BLOCK_TOKENS = 1 << 20
BLOCKS_PER_SHARD = 64  # 128 MiB of 16-bit tokens
_DOCUMENTS = [pa.list_(pa.list_(kind)) for kind in (pa.uint16(), pa.uint32())]


@dataclass(frozen=True)
class EncodedDocuments:
    """Documents as token ids, before they are written to a store."""

    tokens: npt.NDArray[np.integer]
    """[tokens] ids."""
    sentences: npt.NDArray[np.int64]
    """[sentences] number of tokens of each."""
    documents: npt.NDArray[np.int64]
    """[documents] number of sentences of each."""

    @classmethod
    def joined(cls, parts: Sequence[EncodedDocuments]) -> EncodedDocuments:
        """Concatenate documents."""
        return cls(
            np.concatenate([part.tokens for part in parts]),
            np.concatenate([part.sentences for part in parts]),
            np.concatenate([part.documents for part in parts]),
        )

    @property
    def tokens_per_document(self) -> npt.NDArray[np.int64]:
        """[documents] number of tokens of each, int64."""
        return np.diff(_offsets(self.sentences)[_offsets(self.documents)])

    def without_empty(self) -> EncodedDocuments:
        """Return the documents without empty sentences and empty documents."""
        # A sentence is empty if BERT's normalisation removes all of its characters.
        if self.sentences.all() and self.documents.all():
            return self
        filled = _offsets((self.sentences > 0).astype(np.int64))
        documents = np.diff(filled[_offsets(self.documents)])
        return EncodedDocuments(self.tokens, self.sentences[self.sentences > 0], documents[documents > 0])

    def chosen(self, keep: npt.NDArray[np.bool_]) -> EncodedDocuments:
        """Return the documents that a mask selects.

        Args:
            keep: bool [documents].
        """
        sentences = np.repeat(keep, self.documents)
        return EncodedDocuments(
            self.tokens[np.repeat(sentences, self.sentences)], self.sentences[sentences], self.documents[keep]
        )

    def cut(self, documents: int) -> tuple[EncodedDocuments, EncodedDocuments]:
        """Return the first `documents` documents, and the others."""
        sentences = int(self.documents[:documents].sum())
        tokens = int(self.sentences[:sentences].sum())
        return (
            EncodedDocuments(self.tokens[:tokens], self.sentences[:sentences], self.documents[:documents]),
            EncodedDocuments(self.tokens[tokens:], self.sentences[sentences:], self.documents[documents:]),
        )

    def to_arrow(self, dtype: type[np.unsignedinteger]) -> pa.ListArray:
        """Return the documents as a column of a shard: list<list<dtype>>."""
        # A block has about a million tokens, so Arrow's 32-bit offsets are enough.
        inner = pa.ListArray.from_arrays(
            number_column(_offsets(self.sentences).astype(np.int32)),
            number_column(self.tokens.astype(dtype, copy=False)),
        )
        return pa.ListArray.from_arrays(number_column(_offsets(self.documents).astype(np.int32)), inner)


def _offsets(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the offsets [n + 1] of items with lengths [n]: the start of each, and the end of the last."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


@dataclass(frozen=True)
class Block:
    """Complete documents, as views into a mapped file (do not write to them).

    Sentence s is `tokens[sentence_offsets[s]:sentence_offsets[s + 1]]`; document d is the sentences from
    `document_offsets[d]` to `document_offsets[d + 1]`. No sentence and no document is empty.
    """

    tokens: npt.NDArray[np.unsignedinteger]
    """[tokens] ids, uint16 or uint32."""
    sentence_offsets: npt.NDArray[np.int32]
    """[sentences + 1] positions in `tokens`."""
    document_offsets: npt.NDArray[np.int32]
    """[documents + 1] positions in `sentence_offsets`."""

    def separated(self, separator: int) -> Block:
        """Return a copy with a token after each document, as part of its last sentence.

        Args:
            separator: id of the token.
        """
        sentences = np.arange(len(self.sentence_offsets))
        ended = np.searchsorted(self.document_offsets[1:], sentences, side="right")
        tokens = np.insert(self.tokens, self.sentence_offsets[self.document_offsets[1:]], separator)
        return Block(tokens, (self.sentence_offsets + ended).astype(np.int32), self.document_offsets)


class StoreWriter:
    """Writes the shards of one part of a store.

    Args:
        folder: an existing folder.
        vocab_size: exclusive upper limit of the ids; above 65,536 they are stored in 32 bits.
        part: number of the part, used in the names of its shards.
        source: number of the source of the part.
        block_tokens: tokens at which a block is closed, after a complete document.
        blocks_per_shard: blocks at which a shard is closed.
    """

    def __init__(
        self,
        folder: StorePath,
        *,
        vocab_size: int,
        part: int = 0,
        source: int = 0,
        block_tokens: int = BLOCK_TOKENS,
        blocks_per_shard: int = BLOCKS_PER_SHARD,
    ) -> None:
        self._folder, self._part, self._source = folder, part, source
        self._dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
        self._schema = pa.schema([pa.field("document", pa.list_(pa.list_(pa.from_numpy_dtype(self._dtype))))])
        self._block_tokens, self._blocks_per_shard = block_tokens, blocks_per_shard
        self._pending: dict[Split, list[EncodedDocuments]] = {split: [] for split in SPLITS}
        self._pending_tokens: dict[Split, int] = dict.fromkeys(SPLITS, 0)
        self._open: dict[Split, _OpenShard] = {}
        self._shards: list[Shard] = []
        self._splits: dict[Split, SplitCounts] = {split: SplitCounts() for split in SPLITS}

    def add(self, split: Split, documents: EncodedDocuments) -> None:
        """Append documents to a split; empty sentences and empty documents are dropped."""
        # The limit of a block is independent of the batches that arrive, so the bytes of a shard are as well.
        documents = documents.without_empty()
        while len(documents.sentences):
            ends = np.cumsum(documents.tokens_per_document)
            fits = int(np.searchsorted(ends, self._block_tokens - self._pending_tokens[split])) + 1
            taken, documents = documents.cut(fits)
            self._pending[split].append(taken)
            self._pending_tokens[split] += len(taken.tokens)
            if self._pending_tokens[split] >= self._block_tokens:
                self._write_block(split)

    def close(self) -> None:
        """Write pending documents and close the shards."""
        for split in SPLITS:
            if self._pending[split]:
                self._write_block(split)
            self._close_shard(split)

    def abort(self) -> None:
        """Close the files without writing pending documents, after an error."""
        for shard in self._open.values():
            shard.file.discard()
        self._open.clear()

    @property
    def shards(self) -> list[Shard]:
        """The closed shards: training shards, then validation shards."""
        return sorted(self._shards, key=lambda shard: SPLITS.index(shard.split))

    @property
    def splits(self) -> dict[Split, SplitCounts]:
        """Counts of the written documents, by split."""
        return dict(self._splits)

    def _write_block(self, split: Split) -> None:
        documents = EncodedDocuments.joined(self._pending[split])
        shard = self._open.get(split) or self._start_shard(split)
        shard.writer.write_batch(pa.record_batch([documents.to_arrow(self._dtype)], schema=self._schema))
        shard.tokens.append(len(documents.tokens))
        added = SplitCounts(
            documents=len(documents.documents),
            sentences=len(documents.sentences),
            tokens=len(documents.tokens),
            blocks=1,
        )
        self._splits[split] = sum_counts([self._splits[split], added])
        self._pending[split], self._pending_tokens[split] = [], 0
        if len(shard.tokens) == self._blocks_per_shard:
            self._close_shard(split)

    def _start_shard(self, split: Split) -> _OpenShard:
        number = sum(shard.split == split for shard in self._shards)
        path = self._folder / f"shard-{self._part:05d}-{split}{f'-{number}' if number else ''}.arrow"
        file = new_file(path)  # not Arrow's own stream, whose errors lose the errno that names a full disk
        self._open[split] = _OpenShard(file, pa.ipc.new_file(file.stream, self._schema))
        return self._open[split]

    def _close_shard(self, split: Split) -> None:
        if (shard := self._open.get(split)) is None:
            return
        shard.writer.close()
        # The manifest lists this hash: the bytes must be on the disk before anything refers to them.
        shard.file.commit()
        del self._open[split]
        path = shard.file.path
        self._shards.append(
            Shard(
                file=path.name,
                split=split,
                source=self._source,
                blocks=len(shard.tokens),
                tokens=shard.tokens,
                size=path.stat().st_size,
                sha256=file_sha256(path),
            )
        )


@dataclass
class _OpenShard:
    file: NewFile | NewObject
    writer: pa.RecordBatchFileWriter
    tokens: list[int] = field(default_factory=list)
    """Tokens of each block written so far."""


class TokenStore:
    """A store opened for reading; a shard is mapped, and its hash checked, when it is first read.

    Args:
        folder: folder of the store.
        manifest: its manifest.
        is_remade: whether the next start of the job makes a damaged store again.
    """

    def __init__(self, folder: StorePath, manifest: StoreManifest, *, is_remade: bool = False) -> None:
        self.folder = folder
        self.manifest = manifest
        self._is_remade = is_remade
        self._readers: dict[str, pa.RecordBatchFileReader] = {}
        self._places: dict[Split, list[tuple[Shard, int]]] = {
            split: [(s, index) for s in manifest.shards if s.split == split for index in range(s.blocks)]
            for split in SPLITS
        }

    @staticmethod
    def exists(folder: StorePath) -> bool:
        """Return whether the folder contains a complete store of this version."""
        return read_manifest(folder) is not None

    @classmethod
    def find(cls, folder: StorePath, key: str) -> TokenStore | None:
        """Return the store in a folder if it is complete and has this key (see `records.store_key`), else None."""
        manifest = read_manifest(folder)
        return cls(folder, manifest) if manifest is not None and manifest.key == key else None

    @classmethod
    def open(cls, folder: StorePath) -> TokenStore:
        """Open a store.

        Raises:
            DataError: the folder has no store of this version, or files are missing or truncated.
        """
        return cls(folder, require_manifest(folder))

    def with_names(self, names: Sequence[str]) -> TokenStore:
        """Return the store with other names of its sources, in order; nothing is written."""
        sources = [
            source.model_copy(update={"name": name}) for source, name in zip(self.manifest.sources, names, strict=True)
        ]
        return TokenStore(self.folder, self.manifest.model_copy(update={"sources": sources}), is_remade=self._is_remade)

    def made_from_text(self) -> TokenStore:
        """Return the store of a job that makes a damaged one again at its next start."""
        return TokenStore(self.folder, self.manifest, is_remade=True)

    @property
    def vocabulary(self) -> StorePath:
        """Path of the store's vocab.txt."""
        return self.folder / VOCABULARY_FILE

    def separator(self, objective: ObjectiveConfig) -> int | None:
        """Return the id to insert after each document; None: the sequences of the objective span no documents."""
        return self.manifest.special_ids.sep if objective.spans_documents else None

    def blocks(self, split: Split) -> int:
        """Return the number of blocks of a split."""
        return len(self._places[split])

    def blocks_by_source(self, split: Split) -> dict[int, list[int]]:
        """Return number of a source -> numbers of its blocks in a split."""
        found: dict[int, list[int]] = {}
        for number, (shard, _) in enumerate(self._places[split]):
            found.setdefault(shard.source, []).append(number)
        return found

    def block_tokens(self, split: Split) -> list[int]:
        """Return the number of tokens of each block of a split, without reading the blocks."""
        return [shard.tokens[position] for shard, position in self._places[split]]

    def block(self, split: Split, index: int) -> Block:
        """Return block `index` of a split, without copying; a damaged store is marked, see `store_manifest.damage`.

        Args:
            split: "train" or "validation".
            index: number of the block in the split, from 0.

        Raises:
            DataError: the shard's content does not match its hash, or it has no such block.
            StorageError: the same, if the next start of the job makes the store again.
        """
        shard, position = self._places[split][index]
        try:
            if shard.file not in self._readers:
                self._readers[shard.file] = self._map(shard)
            return _checked(as_block(self._readers[shard.file].get_batch(position)))
        except (pa.ArrowException, OSError, IndexError, ValueError) as problem:  # ValueError: no such batch
            if isinstance(problem, OSError) and problem.errno is not None:
                raise  # of the disk; Arrow's own OSError about a damaged file has no errno
            why = str(problem).partition("\n")[0]
            raise self._damaged(shard, f"cannot be read: block {position}: {why}") from None

    def find_damage(self) -> Damage | None:
        """Read all shards; mark the store and return the damage if the content of one does not match its hash."""
        damaged = (shard for shard in self.manifest.shards if not self._matches(shard))
        return next((self._mark(shard, OTHER_CONTENT) for shard in damaged), None)

    def _matches(self, shard: Shard) -> bool:
        return file_sha256(self.folder / shard.file) == shard.sha256

    def _map(self, shard: Shard) -> pa.RecordBatchFileReader:
        # Hashing also reads the file into the page cache, so the random reads of training do not wait for the disk.
        if not self._matches(shard):
            raise self._damaged(shard, OTHER_CONTENT)
        return pa.ipc.open_file(mapped_file(self.folder / shard.file))

    def _damaged(self, shard: Shard, why: str) -> UserError:
        return damaged_store(self.folder, self._mark(shard, why), is_remade=self._is_remade)

    def _mark(self, shard: Shard, why: str) -> Damage:
        """Mark the store, so that the next start makes it again, and return the damage."""
        found, present = Damage(shard.file, why), stored_manifest(self.folder)
        if present is not None and present.shards == self.manifest.shards:  # else it was made again meanwhile
            mark_damaged(self.folder, found)
        return found


def _checked(block: Block) -> Block:
    """Return a block; raise ArrowInvalid if its offsets lead out of it, which Arrow does not check in empty lists."""
    for offsets, total in (
        (block.sentence_offsets, len(block.tokens)),
        (block.document_offsets, len(block.sentence_offsets) - 1),
    ):
        if not len(offsets) or (offsets[0], offsets[-1]) != (0, total):
            raise pa.ArrowInvalid(f"offsets do not run from 0 to {total}")
    return block


def as_block(batch: pa.RecordBatch) -> Block:
    """Return a record batch of a shard as a block, without copying.

    Raises:
        ArrowException: the batch is not of documents, or its offsets lead out of its buffers.
        UnicodeDecodeError: the name of a column is not UTF-8.
    """
    # Neither Arrow nor numpy checks offsets when it follows them.
    batch.validate(full=True)
    if batch.num_columns != 1 or batch.schema.types[0] not in _DOCUMENTS:
        raise pa.ArrowInvalid(f"not documents, but {batch.schema.types}")
    documents = batch.column(0)
    if documents.null_count or documents.values.null_count or documents.values.values.null_count:
        raise pa.ArrowInvalid("missing values")
    sentences = documents.values
    return Block(
        tokens=numbers(sentences.values),
        sentence_offsets=numbers(sentences.offsets),
        document_offsets=numbers(documents.offsets),
    )
