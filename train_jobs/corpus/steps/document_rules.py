"""Rules for single documents: cleaning, the hash that identifies a document, and the split.

Cleaning only drops characters that BERT's own normalisation drops, so a model loses nothing. Characters are composed
(NFC) for cased vocabularies, which contain a letter and its accent as one character.

The hash of a document's text decides its split, so neither the order of documents nor the seed changes the split. White
space is left out of it: two copies of a licence, wrapped at different widths, are the same document.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from train_jobs.artifacts.text_documents import MIN_WORDS, too_few_documents, too_few_words
from train_jobs.artifacts.text_rule import LetterCounts, count_letters
from train_jobs.config.errors import DataError
from train_jobs.config.prepare import CleanConfig

# Part of the key of a store: increase the version when the cleaned text or its hash changes. Python's Unicode tables
# change it too.
CLEANER = f"rules 2, Unicode {unicodedata.unidata_version}"

_LINE_ENDS = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # includes the form feed at the end of a page
_DROPPED = re.compile(
    "["
    "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f"  # controls (Cc)
    "\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\U000110bd\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f"  # format characters (Cf)
    "\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"  # private use (Co)
    "\ufffd"  # written by a decoder where decoding failed
    "\ud800-\udfff"  # lone surrogates: JSON can contain them, and no tokenizer accepts them
    "]+"
)
_BLANKS = b"\t\n "
_PLAIN = bytes([*b"\t\n", *range(0x20, 0x7F)])

HASH_SEED = b"validation split 1\n"  # changing it would change the split of every text
HASH_SIZE = 1 << 64
HASH_BYTES = 8
DIGEST_BYTES = 16  # identifies a document: the chance of a collision among a billion is about 1e-21
SAMPLED_CHARACTERS = 1_000_000  # of a part, whose letters are counted: 50 ms
LEAST_SAMPLED = 256  # characters of a document
HASH_RANGE = 1 << 32  # the lower half of a hash: the upper half decides the split
ENOUGH_CHARACTERS = 100_000  # characters of a document that are searched for distinct words


@dataclass
class DocumentSurvey:
    """Counts over all documents, which the threshold of the split depends on."""

    documents: int = 0
    """Number of documents."""
    lowest: int = HASH_SIZE
    """Smallest `document_hash`."""
    highest: int = -1
    """Largest `document_hash`."""
    words: set[str] = field(default_factory=set)
    """Distinct words; counting stops once there are `MIN_WORDS`."""
    letters: LetterCounts = field(default_factory=LetterCounts)
    """Characters of a sample of about `SAMPLED_CHARACTERS`."""
    text_bytes: int = 0
    """Approximate bytes of the text; decide which share of it is sampled."""

    def add(self, documents: Sequence[str], hashes: Sequence[int]) -> None:
        """Add documents.

        Args:
            documents: cleaned texts, at least one.
            hashes: `document_hash` of each.
        """
        self.documents += len(documents)
        self.lowest, self.highest = min(self.lowest, *hashes), max(self.highest, *hashes)
        self.letters += count_letters("".join(self._sampled(documents, hashes)))
        for document in documents:
            if len(self.words) >= MIN_WORDS:
                break
            self.words |= _words(document[:ENOUGH_CHARACTERS])

    def _sampled(self, documents: Sequence[str], hashes: Sequence[int]) -> Iterator[str]:
        """Yield the beginnings of documents: of long ones all of them, of short ones some, chosen by their hash."""
        share = min(1.0, SAMPLED_CHARACTERS / max(self.text_bytes, 1))
        for document, digest in zip(documents, hashes, strict=True):
            wanted = len(document) * share
            if wanted >= LEAST_SAMPLED:
                yield document[: int(wanted)]
            elif digest % HASH_RANGE < HASH_RANGE * wanted / LEAST_SAMPLED:
                yield document[:LEAST_SAMPLED]

    def merge(self, other: DocumentSurvey) -> None:
        """Add the documents of another survey."""
        self.documents += other.documents
        self.lowest, self.highest = min(self.lowest, other.lowest), max(self.highest, other.highest)
        self.words |= other.words
        self.letters += other.letters


def document_digest(document: str) -> bytes:
    """Return 16 bytes of a SHA-256 of the text without white space; the first 8 are `document_hash`."""
    return hashlib.sha256(HASH_SEED + document.encode().translate(None, _BLANKS)).digest()[:DIGEST_BYTES]


def document_hash(document: str) -> int:
    """Return a uniformly distributed number in [0, 2**64), see `document_digest`."""
    return int.from_bytes(document_digest(document)[:HASH_BYTES], "big")


def split_threshold(survey: DocumentSurvey, *, validation_fraction: float) -> int:
    """Return the threshold of the split: a document is held out if its `document_hash` is below it.

    Equal documents have equal hashes, so they are in the same split. If the fraction would hold out no document, the
    one with the smallest hash is held out; if it would hold out all, the one with the largest hash is kept.

    Args:
        survey: counts over all documents.
        validation_fraction: expected share of documents to hold out.

    Raises:
        DataError: no document, only one distinct document, or fewer than 100 distinct words.
    """
    if survey.documents == 0:
        raise DataError("the text contains no document", fix="give a path that contains text: --data PATH")
    if survey.lowest == survey.highest:
        have = "1 document" if survey.documents == 1 else f"{survey.documents} identical documents"
        raise too_few_documents(have)
    if len(survey.words) < MIN_WORDS:
        raise too_few_words(len(survey.words))
    return min(max(round(validation_fraction * HASH_SIZE), survey.lowest + 1), survey.highest)


def _words(document: str) -> set[str]:
    normalised = BertNormalizer(lowercase=True).normalize_str(document)
    return {word for word, _ in BertPreTokenizer().pre_tokenize_str(normalised)}


def clean(text: str, rules: CleanConfig) -> list[str]:
    """Clean a document.

    Line ends become newlines, control and format characters are dropped, accents and letters are composed (NFC), and
    white space at both ends is stripped. Cleaning is idempotent.

    Args:
        text: the document.
        rules: minimum and maximum length.

    Returns:
        One text; none if it is too short, several if it is too long.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not _is_clean(text):
        text = unicodedata.normalize("NFC", _DROPPED.sub("", _LINE_ENDS.sub("\n", text)))
    text = text.strip()
    if not text or len(text) < rules.min_characters:
        return []
    if rules.max_characters is None or len(text) <= rules.max_characters:
        return [text]
    return list(_cut(text, rules.max_characters))


def _is_clean(text: str) -> bool:
    """Return whether all distinct characters of the text are inert; False does not mean that cleaning changes it."""
    # Most text is plain ASCII, which `translate` removes quickly, so few characters are examined one by one.
    # "surrogatepass": JSON may have brought lone surrogates, which strict UTF-8 refuses.
    others = text.encode("utf-8", "surrogatepass").translate(None, _PLAIN)
    return not others or all(map(_is_inert, set(others.decode("utf-8", "surrogatepass"))))


@lru_cache(maxsize=1 << 14)
def _is_inert(character: str) -> bool:
    """Return whether cleaning keeps the character regardless of its neighbours."""
    # NFC may compose marks, and the letters of Korean syllables (U+1100 to U+11FF), with the character before them.
    marks = unicodedata.category(character).startswith("M") or "\u1100" <= character <= "\u11ff"
    return not (
        marks
        or _DROPPED.match(character)
        or _LINE_ENDS.match(character)
        or unicodedata.normalize("NFC", character) != character
    )


def _cut(text: str, most: int) -> Iterator[str]:
    """Yield parts of at most `most` characters, divided at a line end, else between words, else anywhere."""
    start = 0
    while start < len(text):
        end = start + most
        if end < len(text):
            breaks = text.rfind("\n", start, end + 1), text.rfind(" ", start, end + 1)
            end = next((place for place in breaks if place > start), end)
        if part := text[start:end].strip():
            yield part
        start = end
