"""Which documents are held out: chosen by a hash of their text, so that neither order nor seed moves them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from train_jobs.artifacts.store_manifest import Split
from train_jobs.config.errors import DataError

HASH_SEED = b"validation split 1\n"
HASH_SIZE = 1 << 64
HASH_BYTES = 8
DIGEST_BYTES = 16  # what tells documents apart: of a billion, two differ and agree in it with a chance of 1e-21
MIN_DOCUMENTS = 2  # different ones: one to train on, one to validate on
MIN_WORDS = 100  # different ones: with fewer, what is left of language to model?
ENOUGH_CHARACTERS = 100_000  # of a document, to look for words in


@dataclass(frozen=True)
class SplitRule:
    """A document is held out if the hash of its text is below `threshold`; equal documents stay together."""

    threshold: int

    def split(self, document: str) -> Split:
        """The split of a document."""
        return "validation" if document_hash(document) < self.threshold else "train"


@dataclass
class Survey:
    """What has to be known of all documents before they can be split."""

    documents: int = 0
    """How many there are."""
    lowest: int = HASH_SIZE
    """The smallest `document_hash`."""
    highest: int = -1
    """The largest."""
    words: set[str] = field(default_factory=set)
    """Different words, all of them or at least `MIN_WORDS`."""

    def add(self, document: str, hashed: int) -> None:
        """One more, with its `document_hash`."""
        self.documents += 1
        self.lowest, self.highest = min(self.lowest, hashed), max(self.highest, hashed)
        if len(self.words) < MIN_WORDS:
            self.words |= _words(document[:ENOUGH_CHARACTERS])

    def merge(self, other: Survey) -> None:
        """Those of another survey too."""
        self.documents += other.documents
        self.lowest, self.highest = min(self.lowest, other.lowest), max(self.highest, other.highest)
        self.words |= other.words


def document_digest(document: str) -> bytes:
    """16 bytes that depend on the text alone; the first 8 of them are `document_hash`."""
    return hashlib.sha256(HASH_SEED + document.encode()).digest()[:DIGEST_BYTES]


def document_hash(document: str) -> int:
    """A number in [0, 2**64) that looks random and depends on the text alone."""
    return int.from_bytes(document_digest(document)[:HASH_BYTES], "big")


def split_rule(survey: Survey, *, validation_fraction: float) -> SplitRule:
    """How to split the documents of a survey.

    About `validation_fraction` of the documents are held out. Where that would be none or all of them, the one with
    the smallest hash, or all but the one with the largest, are.

    Raises:
        DataError: no document, only one (however often), or fewer than 100 different words.
    """
    _require_enough(survey.documents, different=survey.lowest != survey.highest, words=len(survey.words))
    threshold = round(validation_fraction * HASH_SIZE)
    return SplitRule(min(max(threshold, survey.lowest + 1), survey.highest))


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
