"""How often each word of a text occurs, in bounded memory: all that learning a vocabulary needs to know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from tokenizers import normalizers, pre_tokenizers

from train_jobs.artifacts.word_rules import LONGEST_WORD
from train_jobs.corpus.tokenize.pretokens import folding_table, pretoken_starts, pretokens_at, with_plain_blanks

CHARACTERS_AT_ONCE = 1 << 21  # bounds memory: some 15 bytes each
MOST_WORDS = 1_000_000  # held at a time, some 200 MB; of more, the rarest are forgotten


class WordCounter:
    """Counts words as BERT's tokenizer delimits them; the same documents in the same order give the same counts.

    Args:
        lowercase: lower-case and strip accents.
        most: words to hold; when there are more, the rarest are forgotten until at most half as many are left.
    """

    def __init__(self, *, lowercase: bool, most: int = MOST_WORDS) -> None:
        self._folding = folding_table(lowercase=lowercase)
        self._normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        self._pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._most = most
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        """How often each word was seen; words of more than 100 characters, which are [UNK] to BERT, are left out."""
        return self._counts

    def add(self, documents: Iterable[str]) -> None:
        """Counts the words of documents."""
        for text in _joined(documents):
            raw = with_plain_blanks(text.encode())
            bounds = np.append(pretoken_starts(raw), len(raw))
            found = pretokens_at(raw.translate(self._folding), bounds).value_counts()
            pretokens, counts = found.field("values").to_pylist(), found.field("counts").to_pylist()
            for pretoken, count in zip(pretokens, counts, strict=True):
                self._count(pretoken.rstrip(b" "), count)
            self._forget_rarest()

    def merge(self, counts: Mapping[str, int]) -> None:
        """Adds what another counter of the same case found."""
        for word, count in counts.items():
            self._counts[word] += count
        self._forget_rarest()

    def _count(self, pretoken: bytes, count: int) -> None:
        if pretoken.isalnum():  # of ASCII: normalisation leaves it as it is
            words = [pretoken.decode()]
        else:
            normal = self._normalizer.normalize_str(pretoken.decode())
            words = [word for word, _ in self._pre_tokenizer.pre_tokenize_str(normal)]
        for word in words:
            if len(word) <= LONGEST_WORD:
                self._counts[word] += count

    def _forget_rarest(self) -> None:
        """Those seen no more often than the one in the middle."""
        if len(self._counts) > self._most:
            rare = sorted(self._counts.values())[len(self._counts) - self._most // 2]
            self._counts = Counter({word: count for word, count in self._counts.items() if count > rare})


def _joined(documents: Iterable[str]) -> Iterator[str]:
    """Documents together until they are long enough."""
    batch: list[str] = []
    length = 0
    for document in documents:
        batch.append(document)
        length += len(document)
        if length >= CHARACTERS_AT_ONCE:
            yield "\n".join(batch)
            batch, length = [], 0
    if batch:
        yield "\n".join(batch)
