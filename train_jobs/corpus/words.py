"""Sentences in, token ids out: what `tokenizers` gives, and several times faster, since no word is looked up twice.

BERT's tokens depend on a word alone, the stretch between white space and punctuation, and a few words make up most of
a text. So text is cut into pre-tokens (see `pretokens`), Arrow finds out which are equal, and each different one is
looked up in a bounded cache, or given to `tokenizers` if it was not seen yet.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from train_jobs.corpus.pretokens import Offsets, folding_table, is_plain, pretoken_starts, pretokens_at

Tokens = npt.NDArray[np.unsignedinteger]

CHARACTERS_AT_ONCE = 1 << 21  # bounds memory: some 20 bytes each
CACHE_BYTES = 128 << 20  # 800,000 words or so; when it is full it is emptied
ENTRY_BYTES = 150  # two small `bytes` and their place in a dict, without what they hold


class WordPieceTokenizer:
    """BERT's tokens of many sentences.

    Args:
        tokenizer: what decides: `vocabulary.load_vocabulary` or `train_vocabulary` give it.
        cache_bytes: about how much memory may be spent on words seen before.
    """

    def __init__(self, tokenizer: Tokenizer, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._tokenizer, self._model = tokenizer, tokenizer.model
        self._type = np.dtype(np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32)
        self._folding = folding_table(lowercase=tokenizer.normalizer.lowercase)
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
        starts = pretoken_starts(raw)
        pretokens = pretokens_at(raw.translate(self._folding), starts).dictionary_encode()
        values = self._look_up(pretokens.dictionary.to_pylist())
        ids = np.frombuffer(b"".join(values), self._type)
        lengths = np.fromiter(map(len, values), np.int64, len(values)) // self._type.itemsize
        firsts = np.cumsum(lengths) - lengths
        which = np.from_dlpack(pretokens.indices)  # to_numpy would load pandas, if there is one: 0.7 s
        counts = lengths[which]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        place = np.repeat(firsts[which] - ends[:-1], counts) + np.arange(ends[-1])
        newlines = np.flatnonzero(np.frombuffer(raw, np.uint8) == ord("\n"))
        return ids[place], ends[np.searchsorted(starts, newlines)]

    def _look_up(self, pretokens: list[bytes]) -> list[bytes]:
        """Ids of each pre-token, packed; those not known yet are tokenised together."""
        if self._size > self._cache_bytes:
            self._forget()
        cache = self._cache
        unknown = [one for one in pretokens if one not in cache]
        bare = [one.rstrip(b" ") for one in unknown]
        new = {word for word in bare if word not in cache}
        rest = [word for word in new if not is_plain(word)]
        for word in new.difference(rest):
            cache[word] = self._packed([token.id for token in self._model.tokenize(word.decode())])
        encodings = self._tokenizer.encode_batch_fast([word.decode() for word in rest], add_special_tokens=False)
        for word, encoding in zip(rest, encodings, strict=True):
            cache[word] = self._packed(encoding.ids)
        for one, word in zip(unknown, bare, strict=True):
            cache[one] = cache[word]
        self._size += sum(ENTRY_BYTES + len(one) + len(cache[one]) for one in new.union(unknown))
        return [cache[one] for one in pretokens]

    def _packed(self, ids: list[int]) -> bytes:
        return array(self._type.char, ids).tobytes()  # several times faster than numpy for a few numbers

    def _forget(self) -> None:
        self._cache: dict[bytes, bytes] = {}
        self._size = 0


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
