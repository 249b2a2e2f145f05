"""The last step: the documents of a part become the shards of a store; and before it, the vocabulary."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from train_jobs.config.errors import DataError
from train_jobs.config.prepare import TextConfig
from train_jobs.corpus.steps.duplicates import Stretch, dropped_of, stretches
from train_jobs.corpus.steps.extraction import Advance, Documents, read_back
from train_jobs.corpus.steps.records import (
    DocumentsRecord,
    DuplicatesRecord,
    TokensRecord,
    VocabularyRecord,
    describe_file,
    write_record,
)
from train_jobs.corpus.store.token_store import BLOCK_TOKENS, Encoded, StoreWriter
from train_jobs.corpus.tokenize.pretokens import pretoken_starts, with_plain_blanks
from train_jobs.corpus.tokenize.sentences import BETWEEN, sentence_starts
from train_jobs.corpus.tokenize.vocabulary import (
    UNK,
    VOCABULARY_FILE,
    load_vocabulary,
    save_vocabulary,
    train_vocabulary,
)
from train_jobs.corpus.tokenize.word_encoder import WordPieceTokenizer

VOCABULARY = "vocabulary"
SAMPLE_BYTES = 256_000_000  # of text that a vocabulary is trained on; of more, a part chosen by hash
SAMPLE_RANGE = 1 << 32
MAX_UNKNOWN_SHARE = 0.5


def tokens_name(part: int) -> str:
    """Name of a part's record."""
    return f"tokens-{part:05d}"


def make_vocabulary(
    data: TextConfig,
    folder: Path,
    store: Path,
    documents: Sequence[DocumentsRecord],
    duplicates: DuplicatesRecord,
    key: str,
) -> VocabularyRecord:
    """Puts the vocabulary into the store: the given one with the words added to it, or one trained on the documents.

    Args:
        folder: holds the documents.
        store: gets vocab.txt.

    Raises:
        DataError: the given one is none.
    """
    started = time.monotonic()
    if data.vocabulary is not None:
        tokenizer = load_vocabulary(data.vocabulary, lowercase=data.lowercase, words=data.add_tokens)
    else:
        text = KeptText(folder, documents, duplicates)
        tokenizer = train_vocabulary(text, size=data.vocab_size, lowercase=data.lowercase)
    record = VocabularyRecord(
        key=key,
        files=[describe_file(save_vocabulary(tokenizer, store))],
        seconds=time.monotonic() - started,
        pieces=tokenizer.get_vocab_size(),
    )
    write_record(folder, VOCABULARY, record)
    return record


class KeptText:
    """The documents that are no duplicates, as often as they are asked for; of very many, a share chosen by hash."""

    def __init__(self, folder: Path, documents: Sequence[DocumentsRecord], duplicates: DuplicatesRecord) -> None:
        self._folder, self._parts, self._stretches = folder, len(documents), stretches(duplicates)
        total = sum(record.text_bytes for record in documents)
        self._below = min(SAMPLE_RANGE, SAMPLE_RANGE * SAMPLE_BYTES // max(total, 1))

    def __iter__(self) -> Iterator[str]:
        for part in range(self._parts):
            dropped = dropped_of(self._folder, self._stretches[part])
            for batch in read_back(self._folder, part):
                # the lower half: the upper one decides the split, and the sample shall hold both
                chosen = kept(batch, dropped) & (batch.hashes % SAMPLE_RANGE < self._below)
                yield from (batch.texts[index] for index in np.flatnonzero(chosen))


def kept(batch: Documents, dropped: np.ndarray) -> np.ndarray:
    """bool [documents] which of a batch are not among the dropped places of its part."""
    places = np.arange(batch.first, batch.first + len(batch.texts))
    return ~np.isin(places, dropped)


def tokenise(
    data: TextConfig,
    number: int,
    source: int,
    *,
    folder: Path,
    store: Path,
    drop: Stretch,
    threshold: int,
    key: str,
    advance: Advance,
    block_tokens: int = BLOCK_TOKENS,
) -> TokensRecord:
    """Writes the shards of a part into the store.

    Args:
        number: of the part.
        source: number of its source.
        folder: holds the documents, and gets the record.
        store: holds vocab.txt, and gets the shards.
        drop: where its duplicates stand, as of `duplicates.stretches`.
        threshold: as of `splits.SplitRule`.
        key: of the record.
        advance: told of progress, in bytes of text.

    Raises:
        DataError: more than half of the tokens are unknown.
    """
    started = time.monotonic()
    vocabulary = store / VOCABULARY_FILE
    words, size, unknown_id = _encoder(vocabulary, hashlib.sha256(vocabulary.read_bytes()).hexdigest(), data.lowercase)
    writer = StoreWriter(store, vocab_size=size, part=number, source=source, block_tokens=block_tokens)
    dropped = dropped_of(folder, drop)
    unknown = 0
    try:
        for batch in read_back(folder, number):
            chosen = kept(batch, dropped)
            encoded = _encode(words, [batch.texts[index] for index in np.flatnonzero(chosen)])
            held_out = batch.hashes[chosen] < threshold
            writer.add("train", encoded.chosen(~held_out))
            writer.add("validation", encoded.chosen(held_out))
            unknown += int(np.count_nonzero(encoded.tokens == unknown_id))
            advance(sum(map(len, batch.texts)), len(batch.texts))
        writer.close()
    except BaseException:
        writer.abort()
        for torn in store.glob(f"shard-{number:05d}-*.arrow"):
            torn.unlink()  # its space may be what is lacking
        raise
    tokens = sum(counts.tokens for counts in writer.splits.values())
    _require_known(unknown / max(tokens, 1), data)
    record = TokensRecord(
        key=key,
        seconds=time.monotonic() - started,
        shards=writer.shards,
        splits=writer.splits,
        unknown=unknown,
    )
    write_record(folder, tokens_name(number), record)
    return record


def _encode(words: WordPieceTokenizer, documents: list[str]) -> Encoded:
    raw = [document.encode() + BETWEEN for document in documents]
    text = with_plain_blanks(b"".join(raw))
    starts = pretoken_starts(text)
    sentences = sentence_starts(text, starts)
    tokens, offsets = words.encode(text, starts)
    ends = np.cumsum(np.fromiter(map(len, raw), np.int64, len(raw)))
    return Encoded(
        tokens,
        np.diff(offsets[sentences], append=len(tokens)),
        np.diff(np.searchsorted(starts[sentences], ends), prepend=0),
    )


@lru_cache(maxsize=1)
def _encoder(vocabulary: Path, content: str, lowercase: bool) -> tuple[WordPieceTokenizer, int, int]:
    """The tokenizer, its number of pieces and the id of [UNK]; `content` is the file's hash."""
    tokenizer: Tokenizer = load_vocabulary(vocabulary, lowercase=lowercase)
    return WordPieceTokenizer(tokenizer), tokenizer.get_vocab_size(), tokenizer.get_vocab()[UNK]


def _require_known(unknown_share: float, data: TextConfig) -> None:
    if unknown_share > MAX_UNKNOWN_SHARE:
        raise DataError(
            "the vocabulary does not fit the text",
            facts={
                "need": f"at most {MAX_UNKNOWN_SHARE:.0%} of the tokens {UNK}",
                "have": f"{unknown_share:.0%}",
                "where": data.vocabulary or f"trained with data.vocab_size {data.vocab_size}",
            },
            fix="leave data.vocabulary out to train one on the text" if data.vocabulary else "raise data.vocab_size",
        )
