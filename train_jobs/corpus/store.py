"""The token store: a folder of tokenised text that serves every sequence length, read in place.

    manifest.json       counts, hashes; written last
    vocab.txt           WordPiece vocabulary
    shard-00000.arrow   Arrow IPC file; a record batch is a block: whole documents, about a million tokens
    ...                 each shard holds blocks of one split

A row is a document: list<list<token id>>, sentences of tokens, ids in 16 bits where the vocabulary allows. Arrow
keeps nested lists as flat values and offsets, so a mapped block is three numpy arrays and nothing is copied.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from train_jobs.config.errors import DataError
from train_jobs.config.files import file_sha256
from train_jobs.corpus.manifest import SPLITS, Shard, Split, SplitCounts, StoreManifest, read_manifest
from train_jobs.corpus.vocabulary import VOCABULARY_FILE

BLOCK_TOKENS = 1 << 20
BLOCKS_PER_SHARD = 64  # 128 MiB of 16-bit tokens
Sentences = list[list[int]]


@dataclass(frozen=True)
class Block:
    """Whole documents, as views into a mapped file (do not write to them).

    Sentence s is `tokens[sentence_offsets[s]:sentence_offsets[s + 1]]`; document d is the sentences from
    `document_offsets[d]` to `document_offsets[d + 1]`. No sentence and no document is empty.
    """

    tokens: npt.NDArray[np.unsignedinteger]
    """[tokens] ids, uint16 or uint32."""
    sentence_offsets: npt.NDArray[np.int32]
    """[sentences + 1] positions in `tokens`."""
    document_offsets: npt.NDArray[np.int32]
    """[documents + 1] positions in `sentence_offsets`."""


class StoreWriter:
    """Writes the shards of a store.

    Args:
        folder: an existing, empty folder.
        vocab_size: ids are below this.
        block_tokens: a block is closed by the document that brings it to this many tokens.
        blocks_per_shard: a shard is closed after this many blocks.
    """

    def __init__(
        self,
        folder: Path,
        *,
        vocab_size: int,
        block_tokens: int = BLOCK_TOKENS,
        blocks_per_shard: int = BLOCKS_PER_SHARD,
    ) -> None:
        self._folder = folder
        token = pa.uint16() if vocab_size <= 1 << 16 else pa.uint32()
        self._schema = pa.schema([pa.field("document", pa.list_(pa.list_(token)))])
        self._block_tokens, self._blocks_per_shard = block_tokens, blocks_per_shard
        self._pending: dict[Split, list[Sentences]] = {split: [] for split in SPLITS}
        self._pending_tokens: dict[Split, int] = dict.fromkeys(SPLITS, 0)
        self._open: dict[Split, _OpenShard] = {}
        self._started = 0
        self._shards: list[Shard] = []
        self._splits: dict[Split, SplitCounts] = {split: SplitCounts() for split in SPLITS}
        self._frequencies = np.zeros(vocab_size, np.int64)

    def add(self, split: Split, sentences: Sentences) -> None:
        """Appends a document: token ids by sentence; empty sentences, and a document of none, are left out."""
        sentences = [sentence for sentence in sentences if sentence]
        if not sentences:
            return
        self._pending[split].append(sentences)
        self._pending_tokens[split] += sum(map(len, sentences))
        if self._pending_tokens[split] >= self._block_tokens:
            self._write_block(split)

    def close(self) -> None:
        """Writes what is pending; the store still lacks its vocabulary and manifest."""
        for split in SPLITS:
            if self._pending[split]:
                self._write_block(split)
            self._close_shard(split)

    def abort(self) -> None:
        """Closes the files as they are, after an error."""
        for shard in self._open.values():
            with suppress(OSError):  # closing writes what is buffered, and the disk may be full
                shard.stream.close()
        self._open.clear()

    @property
    def shards(self) -> list[Shard]:
        """The shards closed so far, by name."""
        return sorted(self._shards, key=lambda shard: shard.file)

    @property
    def splits(self) -> dict[Split, SplitCounts]:
        """What has been written so far, by split."""
        return dict(self._splits)

    @property
    def validation_unigram_entropy(self) -> float:
        """Entropy in nats of the frequencies of the validation tokens written so far."""
        seen = self._frequencies[self._frequencies > 0]
        shares = seen / seen.sum()
        return float(-(shares * np.log(shares)).sum())

    def _write_block(self, split: Split) -> None:
        documents = self._pending[split]
        batch = pa.record_batch([pa.array(documents, self._schema.field(0).type)], schema=self._schema)
        block = _as_block(batch)
        if split == "validation":
            self._frequencies += np.bincount(block.tokens, minlength=len(self._frequencies))
        shard = self._open.get(split) or self._start_shard(split)
        shard.writer.write_batch(batch)
        shard.blocks += 1
        counts = self._splits[split]
        self._splits[split] = SplitCounts(
            documents=counts.documents + len(documents),
            sentences=counts.sentences + len(block.sentence_offsets) - 1,
            tokens=counts.tokens + len(block.tokens),
            blocks=counts.blocks + 1,
        )
        self._pending[split], self._pending_tokens[split] = [], 0
        if shard.blocks == self._blocks_per_shard:
            self._close_shard(split)

    def _start_shard(self, split: Split) -> _OpenShard:
        path = self._folder / f"shard-{self._started:05d}.arrow"
        self._started += 1
        stream = path.open("wb")  # not Arrow's own: errors keep their errno
        self._open[split] = _OpenShard(path, stream, pa.ipc.new_file(stream, self._schema))
        return self._open[split]

    def _close_shard(self, split: Split) -> None:
        if (shard := self._open.get(split)) is None:
            return
        shard.writer.close()
        shard.stream.flush()
        os.fsync(shard.stream.fileno())
        shard.stream.close()
        del self._open[split]
        size, digest = shard.path.stat().st_size, file_sha256(shard.path)
        self._shards.append(Shard(file=shard.path.name, split=split, blocks=shard.blocks, size=size, sha256=digest))


@dataclass
class _OpenShard:
    path: Path
    stream: BinaryIO
    writer: pa.RecordBatchFileWriter
    blocks: int = 0


class TokenStore:
    """A store opened for reading. Shards are mapped, and checked against their hash, when first read."""

    def __init__(self, folder: Path, manifest: StoreManifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._readers: dict[str, pa.RecordBatchFileReader] = {}
        self._places: dict[Split, list[tuple[Shard, int]]] = {
            split: [(s, index) for s in manifest.shards if s.split == split for index in range(s.blocks)]
            for split in SPLITS
        }

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether the folder holds a whole store that this version can read."""
        return read_manifest(folder) is not None

    @classmethod
    def open(cls, folder: Path) -> TokenStore:
        """Opens a store.

        Raises:
            DataError: there is none in the folder, or it is of another version, or files are missing or cut short.
        """
        if (manifest := read_manifest(folder)) is None:
            raise DataError(f"no token store in {folder}", fix="prepare it again from the text")
        return cls(folder, manifest)

    @property
    def vocabulary(self) -> Path:
        """The vocab.txt of the store."""
        return self.folder / VOCABULARY_FILE

    def blocks(self, split: Split) -> int:
        """Number of blocks of a split."""
        return len(self._places[split])

    def block(self, split: Split, index: int) -> Block:
        """Block `index` of a split, without copying.

        Raises:
            DataError: the shard's content is not what was written.
        """
        shard, position = self._places[split][index]
        if shard.file not in self._readers:
            self._readers[shard.file] = self._map(shard)
        return _as_block(self._readers[shard.file].get_batch(position))

    def _map(self, shard: Shard) -> pa.RecordBatchFileReader:
        path = self.folder / shard.file
        if file_sha256(path) != shard.sha256:  # what this reads is in memory for the reader that follows
            raise DataError(f"the token store is damaged: {path}", fix=f"rm -r {self.folder} and prepare it again")
        return pa.ipc.open_file(pa.memory_map(str(path)))


def _as_block(batch: pa.RecordBatch) -> Block:
    documents = batch.column(0)
    sentences = documents.values
    return Block(
        tokens=sentences.values.to_numpy(zero_copy_only=True),
        sentence_offsets=sentences.offsets.to_numpy(zero_copy_only=True),
        document_offsets=documents.offsets.to_numpy(zero_copy_only=True),
    )
