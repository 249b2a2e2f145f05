"""WordPiece of single words: what `tokenizers` gives for them, several times faster where few are asked for at once.

BERT's normalisation turns each character into others by itself, but for the order of some rare combining marks. So
`tokenizers` is asked once for each character, and for those words that have such marks.
"""

from __future__ import annotations

import unicodedata
from array import array
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from train_jobs.artifacts.word_rules import LONGEST_WORD
from train_jobs.corpus.tokenize.vocabulary import CONTINUATION, UNK


class WordPieces:
    """Ids of words, packed: as the bytes that an array of them has.

    Args:
        tokenizer: as of `vocabulary.load_vocabulary`.
        dtype: of an id.
    """

    def __init__(self, tokenizer: Tokenizer, dtype: np.dtype[np.unsignedinteger]) -> None:
        self._tokenizer, self._type = tokenizer, dtype.char
        self._characters = _Characters(tokenizer)
        self._beginning: dict[bytes, bytes] = {}
        self._continuing: dict[bytes, bytes] = {}
        for piece, number in tokenizer.get_vocab().items():
            if piece.startswith(CONTINUATION):
                self._continuing[piece.removeprefix(CONTINUATION).encode()] = self._packed([number])
            else:
                self._beginning[piece.encode()] = self._packed([number])
        self._unknown = self._beginning[UNK.encode()]

    def of(self, text: bytes) -> bytes:
        """Of text that holds a word, most often, or several, or none; ASCII is in lower case if the tokenizer's is."""
        if text.isalnum():  # of ASCII: nothing is done to it
            return self._of_word(text)
        characters = text.decode()
        plain: list[Any] = list(map(self._characters.__getitem__, characters))
        if None in plain:
            return self._packed(self._tokenizer.encode(characters, add_special_tokens=False).ids)
        return b"".join([self._of_word(word.encode()) for word in "".join(plain).split(" ") if word])

    def _of_word(self, word: bytes) -> bytes:
        """The longest piece first, and so on."""
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

    def _packed(self, ids: list[int]) -> bytes:
        return array(self._type, ids).tobytes()  # several times faster than numpy for a few numbers


class _Characters(dict[str, str | None]):
    """What BERT makes of each character, with blanks where words end; None: it depends on those beside it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._normalizer, self._pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer

    def __missing__(self, character: str) -> str | None:
        normal = self._normalizer.normalize_str(character)
        words = [word for word, _ in self._pre_tokenizer.pre_tokenize_str(f"a{normal}a")]
        plain = None if self._moves(character, normal) else " ".join(words)[1:-1]
        return self.setdefault(character, plain)

    def _moves(self, character: str, normal: str) -> bool:
        """Whether it may change places: lower-casing decomposes, and what is left of that has an order of its own."""
        unknown = unicodedata.category(character) == "Cn"  # to Python's tables, which may be older
        return self._normalizer.lowercase and (unknown or any(map(unicodedata.combining, normal)))
