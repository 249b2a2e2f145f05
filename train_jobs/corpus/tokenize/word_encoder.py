"""Text in, token ids out: what `tokenizers` gives, and several times faster, since no word is looked up twice.

BERT's tokens depend on a word alone, the stretch between white space and punctuation, and a few words make up most of
a text. So text is cut into pre-tokens (see `pretokens`), Arrow finds out which are equal, and each different one is
looked up in a bounded cache, or cut into pieces if it was not seen yet (see `wordpiece`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from train_jobs.corpus.arrow import bytes_column
from train_jobs.corpus.tokenize.pretokens import Offsets, folding_table, pretokens_at
from train_jobs.corpus.tokenize.wordpiece import WordPieces

Tokens = npt.NDArray[np.unsignedinteger]

PRETOKENS_AT_ONCE = 1 << 19  # bounds memory: some 100 bytes each
CACHE_BYTES = 128 << 20  # 800,000 words or so; when it is full it is emptied
ENTRY_BYTES = 150  # two small `bytes` and their place in a dict, without what they hold


class WordPieceTokenizer:
    """BERT's tokens of text.

    Args:
        tokenizer: what decides: `vocabulary.load_vocabulary` or `train_vocabulary` give it.
        cache_bytes: about how much memory may be spent on words seen before.
    """

    def __init__(self, tokenizer: Tokenizer, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._type: np.dtype[Any] = np.dtype(np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32)
        self._pieces = WordPieces(tokenizer, self._type)
        self._folding = folding_table(lowercase=tokenizer.normalizer.lowercase)
        self._cache_bytes = cache_bytes
        self._forget()

    def encode(self, text: bytes, starts: Offsets) -> tuple[Tokens, Offsets]:
        """Tokens of text, without [CLS] and [SEP].

        Args:
            text: UTF-8.
            starts: [pre-tokens] where its pre-tokens start, as of `pretokens.pretoken_starts`.

        Returns:
            tokens: [tokens] ids; uint16, or uint32 for more than 65,536 pieces.
            offsets: [pre-tokens + 1] pre-token p has the tokens from offsets[p] to offsets[p + 1], and may have none.
        """
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
        """Tokens, and for each pre-token the end of its own."""
        pretokens = pretokens_at(folded, bounds).dictionary_encode()
        words = pc.ascii_rtrim(pretokens.dictionary.view(pa.large_string()), " ").view(pa.large_binary())
        packed = bytes_column(self._look_up(words.to_pylist())).take(pretokens.indices)
        _, ends, ids = packed.buffers()
        tokens_ends = np.frombuffer(ends, np.int64)[1 : len(packed) + 1] // self._type.itemsize
        return np.frombuffer(ids, self._type)[: tokens_ends[-1]], tokens_ends

    def _look_up(self, words: list[bytes]) -> list[bytes]:
        """Ids of each word, packed."""
        if self._size > self._cache_bytes:
            self._forget()
        cache = self._cache
        values: list[Any] = list(map(cache.get, words))
        for place in [place for place, value in enumerate(values) if value is None]:
            word = words[place]
            if (ids := cache.get(word)) is None:  # or it came twice, with a blank behind it and without
                ids = cache[word] = self._pieces.of(word)
                self._size += ENTRY_BYTES + len(word) + len(ids)
            values[place] = ids
        return values

    def _forget(self) -> None:
        self._cache: dict[bytes, bytes] = {}
        self._size = 0
