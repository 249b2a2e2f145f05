"""WordPiece encoding with the ids of `tokenizers`, several times as fast because each distinct word is encoded once.

BERT's tokens of a word depend on nothing outside it, and few distinct words make up most of a text. So text is split
into pre-tokens (see `pretokens`), and Arrow finds the distinct ones. Each is looked up in a bounded cache, or split
into pieces if it is new. On one core this encodes 21 MB/s, `tokenizers` 2.6 MB/s (docs/corpus.md, Speed).

BERT's normalisation maps each character independently, except for the order of some rare combining marks. So
`tokenizers` is called once per character, and for each word that has such marks.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer, pre_tokenizers

from train_jobs.artifacts.text_rule import CHARACTER, CONTINUATION, NO_CHARACTER
from train_jobs.artifacts.word_rules import LONGEST_WORD
from train_jobs.corpus.arrow import bytes_column
from train_jobs.corpus.tokenize.pretokens import Offsets, folding_table, pretokens_at, with_unspaced_starts
from train_jobs.corpus.tokenize.vocabulary import UNK, rule_of

Tokens = npt.NDArray[np.unsignedinteger]

PRETOKENS_AT_ONCE = 1 << 19  # limits memory, about 100 bytes each
CACHE_BYTES = 128 << 20  # about 800,000 words; a full cache is emptied
_CHARACTERS = re.compile(f"{CHARACTER}|{NO_CHARACTER}")
ENTRY_BYTES = 150  # two small `bytes` and their dict entry, without the content


class WordPieceTokenizer:
    """Encodes text as BERT's tokens.

    Args:
        tokenizer: from `vocabulary.load_vocabulary` or `train_vocabulary`.
        cache_bytes: approximate limit of the cache of words, in bytes.
    """

    def __init__(self, tokenizer: Tokenizer, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._type: np.dtype[Any] = np.dtype(np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32)
        self._pieces = WordPieces(tokenizer, self._type)
        self._folding = folding_table(lowercase=tokenizer.normalizer.lowercase)
        self._splits = rule_of(tokenizer).split_unspaced
        self._cache_bytes = cache_bytes
        self._clear_cache()

    def encode(self, text: bytes, starts: Offsets) -> tuple[Tokens, Offsets]:
        """Return the tokens of text, without [CLS] and [SEP].

        Args:
            text: UTF-8.
            starts: [pre-tokens] byte offsets of its pre-tokens, see `pretokens.pretoken_starts`.

        Returns:
            tokens: [tokens] ids; uint16, or uint32 for more than 65,536 pieces.
            offsets: [pre-tokens + 1] pre-token p has the tokens from offsets[p] to below offsets[p + 1], possibly none.
        """
        if not self._splits:
            return self._encode(text, starts)
        finer = with_unspaced_starts(text, starts)
        tokens, offsets = self._encode(text, finer)
        return tokens, offsets[np.append(np.searchsorted(finer, starts), len(finer))]

    def _encode(self, text: bytes, starts: Offsets) -> tuple[Tokens, Offsets]:
        folded = text.translate(self._folding)
        bounds = np.append(starts, len(text))
        tokens, offsets, count = [np.empty(0, self._type)], [np.zeros(1, np.int64)], 0
        for first in range(0, len(starts), PRETOKENS_AT_ONCE):
            found, ends = self._encode_batch(folded, bounds[first : first + PRETOKENS_AT_ONCE + 1])
            tokens.append(found)
            offsets.append(ends + count)
            count += len(found)
        return np.concatenate(tokens), np.concatenate(offsets)

    def _encode_batch(self, folded: bytes, bounds: Offsets) -> tuple[Tokens, Offsets]:
        """Return the tokens of pre-tokens, and the end of each pre-token's tokens."""
        # Ids travel as byte strings: Arrow's `take` then repeats and joins them for all pre-tokens in one call.
        pretokens = pretokens_at(folded, bounds).dictionary_encode()
        words = pc.ascii_rtrim(pretokens.dictionary.view(pa.large_string()), " ").view(pa.large_binary())
        packed = bytes_column(self._look_up(words.to_pylist())).take(pretokens.indices)
        _, ends, ids = packed.buffers()
        tokens_ends = np.frombuffer(ends, np.int64)[1 : len(packed) + 1] // self._type.itemsize
        return np.frombuffer(ids, self._type)[: tokens_ends[-1]], tokens_ends

    def _look_up(self, words: list[bytes]) -> list[bytes]:
        """Return the packed ids of each word."""
        if self._size > self._cache_bytes:
            self._clear_cache()
        cache = self._cache
        values: list[Any] = list(map(cache.get, words))
        for place in [place for place, value in enumerate(values) if value is None]:
            word = words[place]
            if (ids := cache.get(word)) is None:  # `words` may repeat one: pre-tokens differed in trailing blanks
                ids = cache[word] = self._pieces.of(word)
                self._size += ENTRY_BYTES + len(word) + len(ids)
            values[place] = ids
        return values

    def _clear_cache(self) -> None:
        self._cache: dict[bytes, bytes] = {}
        self._size = 0


class WordPieces:
    """Splits single words into pieces; ids are packed as the bytes of an array.

    Args:
        tokenizer: from `vocabulary.load_vocabulary`.
        dtype: dtype of an id.
    """

    def __init__(self, tokenizer: Tokenizer, dtype: np.dtype[np.unsignedinteger]) -> None:
        self._tokenizer, self._type = tokenizer, dtype.char
        self._splits = rule_of(tokenizer).split_unspaced
        self._characters = _Characters(tokenizer)
        self._beginning: dict[bytes, bytes] = {}
        self._continuing: dict[bytes, bytes] = {}
        for piece, number in tokenizer.get_vocab().items():
            if piece.startswith(CONTINUATION):
                self._continuing[piece.removeprefix(CONTINUATION).encode()] = self._pack([number])
            else:
                self._beginning[piece.encode()] = self._pack([number])
        self._unknown = self._beginning[UNK.encode()]

    def of(self, text: bytes) -> bytes:
        """Return the packed ids of a pre-token.

        Args:
            text: UTF-8, usually one word; its ASCII letters must be in lower case if the tokenizer lower-cases.
        """
        if text.isalnum():  # ASCII letters and digits only, which normalisation does not change
            return self._of_word(text)
        characters = text.decode()
        plain: list[Any] = list(map(self._characters.__getitem__, characters))
        if None in plain:
            return self._pack(self._tokenizer.encode(characters, add_special_tokens=False).ids)
        words = [word for word in "".join(plain).split(" ") if word]
        if self._splits:
            words = [character for word in words for character in _CHARACTERS.findall(word)]
        return b"".join([self._of_word(word.encode()) for word in words])

    def _of_word(self, word: bytes) -> bytes:
        """Split a word greedily, the longest piece first (Google's `WordpieceTokenizer`)."""
        pieces, size, start, found = self._beginning, len(word), 0, b""
        if size > LONGEST_WORD and len(word.decode()) > LONGEST_WORD:
            return self._unknown
        while start < size:
            end = size
            while (piece := pieces.get(word[start:end])) is None:
                end -= 1
                if end == start:
                    return self._unknown
            found += piece
            start, pieces = end, self._continuing
        return found

    def _pack(self, ids: list[int]) -> bytes:
        return array(self._type, ids).tobytes()  # several times faster than numpy for a few numbers


class _Characters(dict[str, str | None]):
    """Map from a character to its normal form, with blanks where words end; None if it depends on its neighbours."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._normalizer, self._strips = tokenizer.normalizer, rule_of(tokenizer).strip_accents
        self._pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # without the cut into characters with their marks

    def __missing__(self, character: str) -> str | None:
        normal = self._normalizer.normalize_str(character)
        # Between two letters, splits of the pre-tokenizer before and after the character become visible.
        words = [word for word, _ in self._pre_tokenizer.pre_tokenize_str(f"a{normal}a")]
        plain = None if self._may_be_reordered(character, normal) else " ".join(words)[1:-1]
        return self.setdefault(character, plain)

    def _may_be_reordered(self, character: str, normal: str) -> bool:
        """Return whether the character may be reordered: stripping decomposes, and combining marks are sorted."""
        unknown = unicodedata.category(character) == "Cn"  # not in Python's tables, which may be older
        return self._strips and (unknown or any(map(unicodedata.combining, normal)))
