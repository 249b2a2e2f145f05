"""Which documents are held out: chosen by a hash of their text, so that neither order nor seed moves them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from train_jobs.config.errors import DataError
from train_jobs.corpus.manifest import Split

HASH_SEED = b"validation split 1\n"
HASH_SIZE = 1 << 64
MIN_DOCUMENTS = 2  # different ones: one to train on, one to validate on
MIN_WORDS = 100  # different ones: with fewer, what is left of language to model?


@dataclass(frozen=True)
class SplitRule:
    """A document is held out if the hash of its text is below `threshold`; equal documents stay together."""

    threshold: int

    def split(self, document: str) -> Split:
        """The split of a document."""
        return "validation" if document_hash(document) < self.threshold else "train"


def document_hash(document: str) -> int:
    """A number in [0, 2**64) that looks random and depends on the text alone."""
    return int.from_bytes(hashlib.sha256(HASH_SEED + document.encode()).digest()[:8], "big")


def split_rule(documents: Iterable[str], *, validation_fraction: float) -> SplitRule:
    """Reads a corpus once and decides how to split it.

    About `validation_fraction` of the documents are held out. Where that would be none or all of them, the one with
    the smallest hash, or all but the one with the largest, are.

    Raises:
        DataError: no document, only one (however often), or fewer than 100 different words.
    """
    count, lowest, highest = 0, HASH_SIZE, -1
    words: set[str] = set()
    for document in documents:
        count += 1
        found = document_hash(document)
        lowest, highest = min(lowest, found), max(highest, found)
        if len(words) < MIN_WORDS:
            words |= _words(document)
    _require_enough(count, different=lowest != highest, words=len(words))
    threshold = round(validation_fraction * HASH_SIZE)
    return SplitRule(min(max(threshold, lowest + 1), highest))


def _words(document: str) -> set[str]:
    normalised = BertNormalizer(lowercase=True).normalize_str(document)
    return {word for word, _ in BertPreTokenizer().pre_tokenize_str(normalised)}


def _require_enough(documents: int, *, different: bool, words: int) -> None:
    if documents == 0:
        raise DataError("the text holds no document", fix="--data PATH with text in it")
    if not different:
        have = "1 document" if documents == 1 else f"{documents} documents, all the same"
        raise DataError(
            "the text is a single document: nothing is left to validate on",
            facts={"need": f"{MIN_DOCUMENTS} different documents", "have": have},
            fix="separate documents by blank lines, or give more files: --data FILE FILE ...",
        )
    if words < MIN_WORDS:
        raise DataError(
            "the text is too small to train on",
            facts={"need": f"{MIN_WORDS} different words", "have": words},
            fix="--data PATH with more text; without --data, the embedded corpus is used",
        )
