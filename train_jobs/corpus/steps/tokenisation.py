"""The vocabulary step, and the tokens step, which turns the documents of a part into shards of a token store."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from tokenizers import Tokenizer

from train_jobs.artifacts.store_places import StorePath
from train_jobs.artifacts.text_rule import LetterCounts, TextRule, resolve_rule
from train_jobs.artifacts.vocabulary_file import VOCABULARY_FILE, given_rule
from train_jobs.config.errors import DataError
from train_jobs.config.prepare import TextConfig
from train_jobs.corpus.steps.documents import Advance, Documents, Positions, read_documents, read_duplicates, stretches
from train_jobs.corpus.steps.records import (
    DocumentsRecord,
    DuplicatesRecord,
    PartTask,
    PreparationSetting,
    TokensRecord,
    VocabularyRecord,
    describe_file,
    part_name,
    write_record,
)
from train_jobs.corpus.store.token_store import EncodedDocuments, StoreWriter
from train_jobs.corpus.tokenize.pretokens import pretoken_starts, with_ascii_blanks
from train_jobs.corpus.tokenize.sentences import DOCUMENT_SEPARATOR, sentence_starts
from train_jobs.corpus.tokenize.vocabulary import (
    UNK,
    load_vocabulary,
    save_vocabulary,
    train_vocabulary,
)
from train_jobs.corpus.tokenize.word_encoder import WordPieceTokenizer

VOCABULARY = "vocabulary"
SAMPLE_BYTES = 256_000_000  # maximum bytes of text to train a vocabulary on; longer text is sampled by hash
SAMPLE_RANGE = 1 << 32
MAX_UNKNOWN_SHARE = 0.5


def make_vocabulary(
    setting: PreparationSetting, documents: Sequence[DocumentsRecord], duplicates: DuplicatesRecord, *, key: str
) -> VocabularyRecord:
    """Write vocab.txt into the store: the given vocabulary with the added words, or one trained on the documents.

    Args:
        setting: rules and folders.
        documents: records of all parts.
        duplicates: record of all parts.
        key: key of the record.

    Returns:
        The record of the step.

    Raises:
        DataError: the given file is not a vocabulary.
    """
    started = time.monotonic()
    data = setting.data
    if (given := given_vocabulary(data)) is not None:
        tokenizer, rule = given
    else:
        rule = resolve_rule(data, sum((record.letters for record in documents), LetterCounts()))
        text = _sample(setting.folder, documents, duplicates)
        tokenizer = train_vocabulary(text, size=data.vocab_size, **rule._asdict())
    record = VocabularyRecord(
        key=key,
        files=[describe_file(save_vocabulary(tokenizer, setting.store))],
        seconds=time.monotonic() - started,
        pieces=tokenizer.get_vocab_size(),
        rule=rule,
    )
    write_record(setting.folder, VOCABULARY, record)
    return record


def given_vocabulary(data: TextConfig) -> tuple[Tokenizer, TextRule] | None:
    """Return the tokenizer of the given vocabulary with the added words, and its rule; None: one is trained.

    Raises:
        DataError: the file is not a vocabulary, or some words cannot be tokens.
    """
    if data.vocabulary is None or (rule := given_rule(data)) is None:
        return None
    return load_vocabulary(data.vocabulary, words=data.add_tokens, **rule._asdict()), rule


def _sample(folder: StorePath, documents: Sequence[DocumentsRecord], duplicates: DuplicatesRecord) -> Iterator[str]:
    """Yield the documents without duplicates; a long text is sampled by hash."""
    total = sum(record.text_bytes for record in documents)
    below = min(SAMPLE_RANGE, SAMPLE_RANGE * SAMPLE_BYTES // max(total, 1))
    for part, stretch in enumerate(stretches(duplicates)):
        dropped = read_duplicates(folder, stretch)
        for batch in read_documents(folder, part):
            # By the lower half of the hash: the upper half decides the split, and the sample needs both splits.
            chosen = _kept(batch, dropped) & (batch.hashes % SAMPLE_RANGE < below)
            yield from (batch.texts[index] for index in np.flatnonzero(chosen))


def _kept(batch: Documents, dropped: Positions) -> np.ndarray:
    """Return bool [documents]: True for the documents of a batch whose position is not dropped."""
    return ~np.isin(np.arange(batch.first, batch.first + len(batch.texts)), dropped)


def tokenise(setting: PreparationSetting, task: PartTask, advance: Advance) -> TokensRecord:
    """Write the shards of a part into the store, and the record; return the record.

    Args:
        setting: rules and folders; vocab.txt must be in the store.
        task: the part, its duplicates and the threshold of the split.
        advance: called with the bytes and documents of each batch.

    Raises:
        DataError: more than half of the tokens are unknown.
    """
    started = time.monotonic()
    data, store = setting.data, setting.store
    vocabulary = store / VOCABULARY_FILE
    assert task.rule is not None, "the vocabulary's record has it"
    words, size, unknown_id = _encoder(vocabulary, hashlib.sha256(vocabulary.read_bytes()).hexdigest(), task.rule)
    writer = StoreWriter(
        store, vocab_size=size, part=task.number, source=task.part.source, block_tokens=setting.block_tokens
    )
    dropped = read_duplicates(setting.folder, task.drop)
    unknown = 0
    try:
        for batch in read_documents(setting.folder, task.number):
            chosen = _kept(batch, dropped)
            encoded = _encode(words, [batch.texts[index] for index in np.flatnonzero(chosen)])
            held_out = batch.hashes[chosen] < task.threshold
            writer.add("train", encoded.chosen(~held_out))
            writer.add("validation", encoded.chosen(held_out))
            unknown += int(np.count_nonzero(encoded.tokens == unknown_id))
            advance(sum(map(len, batch.texts)), len(batch.texts))
        writer.close()
    except BaseException:
        writer.abort()  # frees space: the disk may be full
        raise
    _require_known(unknown / max(sum(counts.tokens for counts in writer.splits.values()), 1), data)
    record = TokensRecord(
        key=task.key,
        seconds=time.monotonic() - started,
        shards=writer.shards,
        splits=writer.splits,
        unknown=unknown,
    )
    write_record(setting.folder, part_name(task.step, task.number), record)
    return record


def _encode(words: WordPieceTokenizer, documents: list[str]) -> EncodedDocuments:
    # The documents of a batch are processed as one text: numpy's cost per call is paid once, not per document.
    raw = [document.encode() + DOCUMENT_SEPARATOR for document in documents]
    text = with_ascii_blanks(b"".join(raw))
    starts = pretoken_starts(text)
    sentences = sentence_starts(text, starts)
    tokens, offsets = words.encode(text, starts)
    ends = np.cumsum(np.fromiter(map(len, raw), np.int64, len(raw)))
    return EncodedDocuments(
        tokens,
        np.diff(offsets[sentences], append=len(tokens)),
        np.diff(np.searchsorted(starts[sentences], ends), prepend=0),
    )


@lru_cache(maxsize=1)
def _encoder(vocabulary: StorePath, content: str, rule: TextRule) -> tuple[WordPieceTokenizer, int, int]:
    """Return the tokenizer, its number of pieces and the id of [UNK]."""
    # `content`, the hash of the file, is only a cache key: a later store in the same process may replace the file.
    tokenizer = load_vocabulary(vocabulary, **rule._asdict())
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
            fix="omit data.vocabulary to train one on the text" if data.vocabulary else "increase data.vocab_size",
        )
