"""Sentences in, token ids out: what `tokenizers` gives, and several times faster, since no word is looked up twice.

BERT's tokens depend on a word alone, the stretch between white space and punctuation, and a few words make up most of
a text. So text is cut into such pieces by numpy, over its bytes; Arrow numbers the distinct ones; and each of those is
looked up in a bounded cache, or given to `tokenizers` if it was not seen yet. Text is cut only where no rule of BERT's
normalisation looks across: at white space and around punctuation of ASCII, around the common punctuation beyond it,
and around Chinese characters. Everything else, control characters and rarer white space included, stays inside a piece
and is left to `tokenizers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

Tokens = npt.NDArray[np.unsignedinteger]
Offsets = npt.NDArray[np.int64]
Classes = npt.NDArray[np.uint8]

CHARACTERS_AT_ONCE = 1 << 21  # bounds memory: some 20 bytes each
CACHE_BYTES = 128 << 20  # 800,000 words or so; when it is full it is emptied
ENTRY_BYTES = 150  # two small `bytes` and their place in a dict, without what they hold

WORD, ALONE, SPACE, TAIL = range(4)  # of a byte: part of a word; starts a piece of its own; white space; rest of one
_SPACES = b" \t\n\r"
_ALONE_BEYOND_ASCII = (  # of three bytes in UTF-8, with no decomposition: all that English and Chinese text uses
    (0x2010, 0x2027),  # dashes, quotation marks, daggers, bullets, ellipsis
    (0x2030, 0x205E),  # per mille, primes, angle quotation marks; without the two that are not punctuation
    (0x3001, 0x3003),  # ideographic comma and full stop
    (0x3008, 0x3011),  # brackets
    (0x3400, 0x4DBF),  # Chinese characters
    (0x4E00, 0x9FFF),
)
_NOT_ALONE = (0x2044, 0x2052)  # fraction slash, commercial minus: mathematics
_FIRST_LEAD, _LAST_LEAD = 0xE2, 0xE9  # first bytes of these characters


def _class_table() -> bytes:
    table = bytearray(256)
    for code in range(128):
        if code in _SPACES:
            table[code] = SPACE
        elif chr(code).isprintable() and not chr(code).isalnum():
            table[code] = ALONE
    return bytes(table)


def _folding_table(*, lowercase: bool) -> bytes:
    """White space becomes a blank, and A-Z a-z, so that there are fewer different words."""
    table = bytearray(range(256))
    for code in _SPACES:
        table[code] = ord(" ")
    if lowercase:
        table[ord("A") : ord("Z") + 1] = bytes(range(ord("a"), ord("z") + 1))
    return bytes(table)


def _alone_table() -> npt.NDArray[np.bool_]:
    table = np.zeros(1 << 16, np.bool_)
    for first, last in _ALONE_BEYOND_ASCII:
        table[first : last + 1] = True
    table[list(_NOT_ALONE)] = False
    return table


_CLASSES = _class_table()
_ALONE = _alone_table()


class WordPieceTokenizer:
    """BERT's tokens of many sentences.

    Args:
        tokenizer: what decides: `vocabulary.load_vocabulary` or `train_vocabulary` give it.
        cache_bytes: about how much memory may be spent on words seen before.
    """

    def __init__(self, tokenizer: Tokenizer, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._tokenizer, self._model = tokenizer, tokenizer.model
        self._type = np.dtype(np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32)
        self._folding = _folding_table(lowercase=tokenizer.normalizer.lowercase)
        self._cache_bytes = cache_bytes
        self._forget()

    def encode(self, sentences: Sequence[str]) -> tuple[Tokens, Offsets]:
        """Tokens of sentences, without [CLS] and [SEP].

        Args:
            sentences: any text without lone surrogates, which no UTF-8 file holds.

        Returns:
            tokens: [tokens] ids of all sentences, one after the other; uint16, or uint32 for more than 65,536 pieces.
            offsets: [sentences + 1] sentence s has the tokens from offsets[s] to offsets[s + 1], and may have none.
        """
        parts, ends, count = [np.empty(0, self._type)], [np.zeros(1, np.int64)], 0
        for batch in _batches(sentences, CHARACTERS_AT_ONCE):
            tokens, batch_ends = self._encode_batch(batch)
            parts.append(tokens)
            ends.append(batch_ends + count)
            count += len(tokens)
        return np.concatenate(parts), np.concatenate(ends)

    def _encode_batch(self, sentences: Sequence[str]) -> tuple[Tokens, Offsets]:
        """Tokens, and for each sentence the end of its own."""
        raw = _one_line_each(sentences).encode()
        starts = _piece_starts(raw)
        pieces = _pieces(raw.translate(self._folding), starts).dictionary_encode()
        values = self._look_up(pieces.dictionary.to_pylist())
        ids = np.frombuffer(b"".join(values), self._type)
        lengths = np.fromiter(map(len, values), np.int64, len(values)) // self._type.itemsize
        firsts = np.cumsum(lengths) - lengths
        which = pieces.indices.to_numpy()
        counts = lengths[which]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        place = np.repeat(firsts[which] - ends[:-1], counts) + np.arange(ends[-1])
        newlines = np.flatnonzero(np.frombuffer(raw, np.uint8) == ord("\n"))
        return ids[place], ends[np.searchsorted(starts, newlines)]

    def _look_up(self, pieces: list[bytes]) -> list[bytes]:
        """Ids of each piece, packed; those not known yet are tokenised together."""
        if self._size > self._cache_bytes:
            self._forget()
        cache = self._cache
        unknown = [piece for piece in pieces if piece not in cache]
        bare = [piece.rstrip(b" ") for piece in unknown]
        new = {word for word in bare if word not in cache}
        rest = [word for word in new if not _is_plain(word)]
        for word in new.difference(rest):
            cache[word] = self._packed([token.id for token in self._model.tokenize(word.decode())])
        encodings = self._tokenizer.encode_batch_fast([word.decode() for word in rest], add_special_tokens=False)
        for word, encoding in zip(rest, encodings, strict=True):
            cache[word] = self._packed(encoding.ids)
        for piece, word in zip(unknown, bare, strict=True):
            cache[piece] = cache[word]
        self._size += sum(ENTRY_BYTES + len(piece) + len(cache[piece]) for piece in new.union(unknown))
        return [cache[piece] for piece in pieces]

    def _packed(self, ids: list[int]) -> bytes:
        return np.array(ids, self._type).tobytes()

    def _forget(self) -> None:
        self._cache: dict[bytes, bytes] = {}
        self._size = 0


def _is_plain(word: bytes) -> bool:
    """Whether BERT's normalisation leaves it alone and in one piece: then only the model need be asked."""
    return word.isalnum() or (len(word) == 1 and _CLASSES[word[0]] == ALONE)


def _batches(sentences: Sequence[str], characters: int) -> Iterator[Sequence[str]]:
    """Runs of sentences that are just longer than this together, but for the last."""
    first = length = 0
    for number, sentence in enumerate(sentences, start=1):
        length += len(sentence)
        if length >= characters:
            yield sentences[first:number]
            first, length = number, 0
    if first < len(sentences):
        yield sentences[first:]


def _one_line_each(sentences: Sequence[str]) -> str:
    lines = "\n".join([*sentences, ""])
    if lines.count("\n") == len(sentences):
        return lines
    return "".join([sentence.replace("\n", " ") + "\n" for sentence in sentences])


def _piece_starts(raw: bytes) -> Offsets:
    """Where pieces start in UTF-8 text: words and signs, each with the white space behind it."""
    classes = np.frombuffer(raw.translate(_CLASSES), np.uint8)
    if not raw.isascii():
        classes = _with_signs_beyond_ascii(classes, np.frombuffer(raw, np.uint8))
    word = classes == WORD
    starts = classes == ALONE
    starts[1:] |= word[1:] & ~word[:-1]
    starts[0] = True
    return np.flatnonzero(starts)


def _with_signs_beyond_ascii(classes: Classes, raw: Classes) -> Classes:
    lead = np.flatnonzero((raw >= _FIRST_LEAD) & (raw <= _LAST_LEAD))
    codes = (raw[lead] & np.uint16(0x0F)) << 12 | (raw[lead + 1] & np.uint16(0x3F)) << 6 | raw[lead + 2] & 0x3F
    alone = lead[_ALONE[codes]]
    classes = classes.copy()
    classes[alone] = ALONE
    classes[alone + 1] = classes[alone + 2] = TAIL
    return classes


def _pieces(text: bytes, starts: Offsets) -> pa.LargeBinaryArray:
    offsets = np.append(starts, len(text))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )
