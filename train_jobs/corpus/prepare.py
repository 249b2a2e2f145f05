"""Raw text to token store: split, vocabulary, tokens; once for a text, whatever is trained on it later."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from train_jobs.config.errors import DataError, StorageError
from train_jobs.config.files import file_sha256, write_text
from train_jobs.config.pretrain import DataConfig
from train_jobs.config.sources import EXTRACTOR, DataFingerprint, fingerprint
from train_jobs.corpus.documents import Corpus
from train_jobs.corpus.folders import exclusive, replacing
from train_jobs.corpus.manifest import (
    MANIFEST_FILE,
    STORE_VERSION,
    SpecialIds,
    StoreManifest,
    read_manifest,
    store_content,
)
from train_jobs.corpus.sentences import SPLITTER, split_sentences
from train_jobs.corpus.splits import SplitRule, split_rule
from train_jobs.corpus.store import BLOCK_TOKENS, StoreWriter, TokenStore
from train_jobs.corpus.vocabulary import (
    CLS,
    MASK,
    PAD,
    SEP,
    UNK,
    VOCABULARY_FILE,
    load_vocabulary,
    read_vocabulary,
    save_vocabulary,
    train_vocabulary,
)
from train_jobs.engine.storage import storage_errors

Report = Callable[[str], None]
SENTENCES_AT_ONCE = 8192  # handed to the tokenizer together: bounds memory
MAX_UNKNOWN_SHARE = 0.5
SECONDS_BETWEEN_REPORTS = 10.0
OWN_FILES = ("shard-*.arrow", VOCABULARY_FILE, MANIFEST_FILE)


def store_key(data: DataConfig, found: DataFingerprint) -> str:
    """16 hex digits over what determines a token store: equal keys, equal stores.

    That is the text, the vocabulary (its content and the words added to it, or the size to train), lower case and the
    share held out, not the length of sequences or anything else of training.

    Raises:
        DataError: the vocabulary file cannot be read.
    """
    vocabulary = hashlib.sha256(read_vocabulary(data.vocabulary)).hexdigest() if data.vocabulary else data.vocab_size
    decides = {
        "text": found.sha256,
        "vocabulary": vocabulary,
        "lowercase": data.lowercase,
        "validation_fraction": data.validation_fraction,
        "extractor": EXTRACTOR,
        "sentences": SPLITTER,
        "store": STORE_VERSION,
    }
    if data.add_tokens:
        decides["add_tokens"] = data.add_tokens
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]


def equal_store(data: DataConfig, found: DataFingerprint, cache: Path) -> TokenStore | None:
    """A store of this text by this very vocabulary that the cache holds under another key, or None.

    A vocabulary that one run trained on the text is given to the next one as a file, to a second phase above all: the
    text need not be tokenised again.

    Args:
        data: what a store is needed for.
        found: fingerprint of `data.text`.
        cache: folder of token stores.
    """
    if data.vocabulary is None or data.add_tokens:
        return None
    wanted = store_content(
        text=found.sha256,
        vocabulary=hashlib.sha256(read_vocabulary(data.vocabulary)).hexdigest(),
        lowercase=data.lowercase,
        validation_fraction=data.validation_fraction,
    )
    for path in sorted(cache.glob(f"*/{MANIFEST_FILE}")):
        manifest = read_manifest(path.parent)
        if manifest is not None and manifest.content == wanted:
            return TokenStore(path.parent, manifest)
    return None


def prepare_store(
    data: DataConfig, folder: Path, *, progress: Report, found: DataFingerprint | None = None
) -> TokenStore:
    """Opens the token store in `folder`, or makes it there if it is missing or of other text or settings.

    It appears whole: built beside its place, then renamed. Of several processes one builds and the others wait.

    Args:
        data: what to read and how.
        folder: where the store is or shall be, on a local disk.
        progress: called with a line of text at each stage.
        found: fingerprint of `data.text`, where it is known already; else the text is read for it once more.

    Raises:
        DataError: text or vocabulary that cannot be used; the message says why.
        StorageError: the folder cannot be written, or holds something else.
    """
    found = found or fingerprint(data.text)
    key = store_key(data, found)
    if (store := _fitting(folder, key)) is not None:
        return store

    def waiting() -> None:
        progress(f"another process prepares {folder}: waiting")

    with storage_errors(folder, "making the token store"), exclusive(folder, waiting):
        if (store := _fitting(folder, key)) is not None:  # made while we waited
            return store
        _require_replaceable(folder)
        with replacing(folder) as building:
            _build(data, found, key=key, folder=building, progress=progress)
    return TokenStore.open(folder)


def _fitting(folder: Path, key: str) -> TokenStore | None:
    manifest = read_manifest(folder)
    return TokenStore(folder, manifest) if manifest is not None and manifest.key == key else None


def _require_replaceable(folder: Path) -> None:
    """What lies there may be replaced if it is nothing but an older or half-copied store."""
    found = [folder] if folder.is_file() else sorted(folder.glob("*"))
    strangers = [path.name for path in found if not any(path.match(own) for own in OWN_FILES)]
    if strangers:
        raise StorageError(
            f"{folder} is no token store and not empty",
            facts={"holds": ", ".join(strangers[:5])},
            fix="choose another folder with --cache PATH",
        )


def _build(data: DataConfig, found: DataFingerprint, *, key: str, folder: Path, progress: Report) -> None:
    progress(f"reading {found.name}: {found.files} files, {found.total_bytes / 1e6:.1f} MB")
    corpus = Corpus(data.text)
    try:
        rule = split_rule(corpus, validation_fraction=data.validation_fraction)
    except DataError as problem:
        problem.facts = {"text": found.name, **problem.facts}
        raise
    tokenizer = _vocabulary(data, corpus, progress)
    vocabulary = save_vocabulary(tokenizer, folder)
    writer = StoreWriter(folder, vocab_size=tokenizer.get_vocab_size(), block_tokens=BLOCK_TOKENS)
    try:
        for unknown_share in _tokenise(corpus, rule, tokenizer, writer, progress):
            _require_known(unknown_share, data)
        writer.close()
    finally:
        writer.abort()
    for split, counts in writer.splits.items():
        if counts.documents == 0:
            raise DataError(f"the {split} split holds no token", fix="--data PATH with more text")
    manifest = StoreManifest(
        key=key,
        data=found,
        vocab_size=tokenizer.get_vocab_size(),
        vocab_sha256=file_sha256(vocabulary),
        special_ids=_special_ids(tokenizer),
        lowercase=data.lowercase,
        validation_fraction=data.validation_fraction,
        validation_unigram_entropy=writer.validation_unigram_entropy,
        splits=writer.splits,
        shards=writer.shards,
    )
    write_text(folder / MANIFEST_FILE, manifest.model_dump_json(indent=2))
    progress(", ".join(f"{split}: {c.documents} documents, {c.tokens} tokens" for split, c in writer.splits.items()))


def _vocabulary(data: DataConfig, corpus: Corpus, progress: Report) -> Tokenizer:
    if data.vocabulary is not None:
        return load_vocabulary(data.vocabulary, lowercase=data.lowercase, words=data.add_tokens)
    tokenizer = train_vocabulary(corpus, size=data.vocab_size, lowercase=data.lowercase)
    progress(f"vocabulary trained: {tokenizer.get_vocab_size()} pieces")
    return tokenizer


def _tokenise(
    corpus: Corpus, rule: SplitRule, tokenizer: Tokenizer, writer: StoreWriter, progress: Report
) -> Iterator[float]:
    """Writes all documents; yields now and then the share of [UNK] so far, for there to be no need to go on."""
    unknown = _special_ids(tokenizer).unk
    seen = unknowns = 0
    reported = time.monotonic()
    for documents in _by_sentences(corpus, SENTENCES_AT_ONCE):
        encoded = _encode(tokenizer, [sentence for _, sentences in documents for sentence in sentences])
        for document, sentences in documents:
            ids = list(islice(encoded, len(sentences)))
            writer.add(rule.split(document), ids)
            seen += sum(map(len, ids))
            unknowns += sum(sentence.count(unknown) for sentence in ids)
        yield unknowns / max(seen, 1)
        if time.monotonic() - reported > SECONDS_BETWEEN_REPORTS:
            reported = time.monotonic()
            progress(f"tokenised {seen / 1e6:.0f} million tokens")


def _by_sentences(corpus: Corpus, at_least: int) -> Iterator[list[tuple[str, list[str]]]]:
    """Groups of (document, its sentences) with at least so many sentences together, but for the last."""
    group: list[tuple[str, list[str]]] = []
    count = 0
    for document in corpus:
        sentences = split_sentences(document)
        group.append((document, sentences))
        count += len(sentences)
        if count >= at_least:
            yield group
            group, count = [], 0
    if group:
        yield group


def _encode(tokenizer: Tokenizer, sentences: list[str]) -> Iterator[list[int]]:
    for start in range(0, len(sentences), SENTENCES_AT_ONCE):
        batch = sentences[start : start + SENTENCES_AT_ONCE]
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            yield encoding.ids


def _require_known(unknown_share: float, data: DataConfig) -> None:
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


def _special_ids(tokenizer: Tokenizer) -> SpecialIds:
    pad, unk, cls, sep, mask = (tokenizer.token_to_id(piece) for piece in (PAD, UNK, CLS, SEP, MASK))
    return SpecialIds(pad=pad, unk=unk, cls=cls, sep=sep, mask=mask)
