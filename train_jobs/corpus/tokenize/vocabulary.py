"""The WordPiece vocabulary: count words, train a vocabulary, read and write vocab.txt, build its tokenizer.

Normalisation and splitting are BERT's (Devlin et al. 2019, A.2; Google's `tokenization.py`). Control characters are
dropped, and each CJK character is a word. Text is optionally lower-cased and stripped of accents. Words are split at
white space and punctuation. In addition, scripts without blanks may be cut into characters, see `text_rule`.

A special piece in a text, such as "[MASK]", is plain text in a corpus: there it must not look like a mask. In the input
of fine-tuning and prediction it is the special piece, as in transformers (`load_input_tokenizer`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from train_jobs.artifacts.store_places import StorePath
from train_jobs.artifacts.text_rule import CHARACTER, CONTINUATION, TextRule, bert_rule
from train_jobs.artifacts.vocabulary_file import (
    SPECIAL_PIECES,
    VOCABULARY_FILE,
    lines_of,
    pieces_of,
    require_words,
    unfit_words,
)
from train_jobs.artifacts.word_rules import LONGEST_WORD
from train_jobs.corpus.tokenize.pretokens import (
    folding_table,
    pretoken_starts,
    pretokens_at,
    with_ascii_blanks,
    with_unspaced_starts,
)

PAD, UNK, CLS, SEP, MASK = SPECIAL_PIECES
MIN_ALPHABET = 1000  # rarer characters than these become [UNK], unless more are needed for ALPHABET_SHARE
ALPHABET_SHARE = 0.9995  # of the characters of the words: Chinese and Korean need some thousands for it, English a few
MOST_OCCURRENCES = 10_000_000  # words that the trainer reads; keeps training to seconds for any size of text


def train_vocabulary(
    documents: Iterable[str],
    *,
    size: int,
    lowercase: bool,
    strip_accents: bool | None = None,
    split_unspaced: bool = False,
) -> Tokenizer:
    """Train a WordPiece vocabulary on text of any length; the same documents give a byte-identical one.

    Args:
        documents: text.
        size: maximum number of pieces, including the five special ones; a small text gives fewer.
        lowercase: lower-case the text.
        strip_accents: drop nonspacing marks. None: as `lowercase`, which is BERT's rule.
        split_unspaced: cut scripts without blanks into characters.

    Returns:
        The tokenizer, with [PAD], [UNK], [CLS], [SEP], [MASK] at ids 0 to 4. It does not add special tokens.
    """
    rule = bert_rule(lowercase=lowercase, strip_accents=strip_accents, split_unspaced=split_unspaced)
    counter = WordCounter(rule)
    counter.add(documents)
    return train_on_counts(counter.counts, rule, size=size)


def train_on_counts(counts: Mapping[str, int], rule: TextRule, *, size: int) -> Tokenizer:
    """Train a vocabulary on word counts.

    Args:
        counts: occurrences of each word, see `WordCounter`. Above 10 million in total they are scaled down.
        rule: how the words were made.
        size: see `train_vocabulary`.

    Returns:
        The tokenizer, as from `train_vocabulary`.
    """
    blank = _tokenizer({UNK: 0}, rule)
    # The trainer numbers `##x` pieces in the order of its hash map, which differs from run to run, and breaks ties
    # between merges by these numbers. Special tokens are numbered first, in the given order.
    alphabet = _alphabet(counts, most=(size - len(SPECIAL_PIECES)) // 2)
    continuing = [CONTINUATION + character for character in alphabet if _continues_word(character, blank)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*SPECIAL_PIECES, *alphabet, *continuing],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    learner = Tokenizer(models.WordPiece({UNK: 0}, unk_token=UNK))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    learner.train_from_iterator(_written_out(counts), trainer)
    ids = learner.get_vocab()
    return _tokenizer({piece: ids[piece] for piece in sorted(ids, key=ids.__getitem__)}, rule)


def load_vocabulary(
    path: StorePath,
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    split_unspaced: bool = False,
    words: Sequence[str] = (),
) -> Tokenizer:
    """Read a vocab.txt: one piece a line; its line number, from 0, is its id.

    Args:
        path: path of the vocab.txt.
        lowercase: lower-case the text.
        strip_accents: drop nonspacing marks. None: as `lowercase`, which is BERT's rule.
        split_unspaced: cut scripts without blanks into characters.
        words: additional pieces; their ids follow those of the file.

    Returns:
        The tokenizer of a corpus. It does not add special tokens, and reads special pieces in a text as plain text.

    Raises:
        DataError: see `pieces_of`; or the tokenizer would split some of the words.
    """
    pieces = pieces_of(path)
    rule = bert_rule(lowercase=lowercase, strip_accents=strip_accents, split_unspaced=split_unspaced)
    require_words(words, pieces, rule)
    tokenizer = _tokenizer({piece: number for number, piece in enumerate([*pieces, *words])}, rule)
    # only the tokenizer knows characters that Python's Unicode tables lack
    encoded = zip(words, tokenizer.encode_batch(list(words)), strict=True)
    if unfit := [f'"{word}" is split' for word, found in encoded if found.tokens != [word]]:
        raise unfit_words(unfit)
    return tokenizer


def load_input_tokenizer(
    path: StorePath, *, lowercase: bool, strip_accents: bool | None = None, split_unspaced: bool = False
) -> Tokenizer:
    """Read a vocab.txt for texts of fine-tuning and prediction: special pieces in a text keep their meaning.

    Args:
        path, lowercase, strip_accents, split_unspaced: see `load_vocabulary`.

    Returns:
        The tokenizer. It has the ids of the exported one, but does not add special tokens.

    Raises:
        DataError: see `pieces_of`.
    """
    tokenizer = load_vocabulary(path, lowercase=lowercase, strip_accents=strip_accents, split_unspaced=split_unspaced)
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False, special=True) for piece in SPECIAL_PIECES])
    return tokenizer


def rule_of(tokenizer: Tokenizer) -> TextRule:
    """Return the rule of a tokenizer that `load_vocabulary` or `train_vocabulary` made."""
    normalizer = tokenizer.normalizer
    splits = not isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
    return bert_rule(lowercase=normalizer.lowercase, strip_accents=normalizer.strip_accents, split_unspaced=splits)


def continuing_pieces(path: StorePath) -> npt.NDArray[np.bool_]:
    """Return bool [pieces]: True for the pieces of a vocab.txt that continue a word, which start with ##.

    Raises:
        DataError: see `lines_of`.
    """
    return np.array([piece.startswith(CONTINUATION) for piece in lines_of(path)], np.bool_)


def save_vocabulary(tokenizer: Tokenizer, folder: StorePath) -> StorePath:
    """Write vocab.txt into `folder`, one piece a line in the order of ids, and return its path."""
    path = folder / VOCABULARY_FILE
    ids = tokenizer.get_vocab()
    pieces = sorted(ids, key=ids.__getitem__)
    assert [ids[piece] for piece in pieces] == list(range(len(pieces))), "ids must be 0, 1, 2, ..."
    path.write_bytes("".join(f"{piece}\n" for piece in pieces).encode())
    return path


def _tokenizer(ids: dict[str, int], rule: TextRule) -> Tokenizer:
    """Return BERT's tokenizer for these pieces."""
    # Special pieces are not registered with it: they are text in a corpus, see the docstring of the module.
    options = {"max_input_chars_per_word": LONGEST_WORD, "continuing_subword_prefix": CONTINUATION}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=UNK, **options))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=rule.lowercase, strip_accents=rule.strip_accents)
    tokenizer.pre_tokenizer = pre_tokenizer(rule)
    tokenizer.decoder = decoders.WordPiece(CONTINUATION)
    return tokenizer


def pre_tokenizer(rule: TextRule) -> pre_tokenizers.PreTokenizer:
    """Return what splits normalised text into words."""
    bert = pre_tokenizers.BertPreTokenizer()
    if not rule.split_unspaced:
        return bert
    return pre_tokenizers.Sequence([bert, pre_tokenizers.Split(Regex(CHARACTER), behavior="isolated")])


def _alphabet(words: Mapping[str, int], *, most: int) -> list[str]:
    """Return the most frequent characters of the words, sorted; ties go to the smaller code point.

    Args:
        words: occurrences of each word.
        most: most characters, however few of the words they cover.
    """
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    covered = list(accumulate(counts[character] for character in ranked))
    needed = bisect_left(covered, ALPHABET_SHARE * sum(counts.values())) + 1
    return sorted(ranked[: min(max(MIN_ALPHABET, needed), most)])


def _written_out(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield each word as often as it was counted, scaled to 10 million in total."""
    # The trainer only accepts text, not counts, and repeats of a word are cheap for it to count.
    total = sum(counts.values())
    most = min(total, MOST_OCCURRENCES)
    for word, count in counts.items():
        yield f"{word} " * ((count * most + total // 2) // total)


def _continues_word(character: str, tokenizer: Tokenizer) -> bool:
    """Return whether the character can follow another in a word; punctuation and CJK characters cannot."""
    text = tokenizer.normalizer.normalize_str("a" + character)
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) == 1


CHARACTERS_AT_ONCE = 1 << 21  # limits memory, about 15 bytes each
MOST_WORDS = 1_000_000  # distinct words in memory, about 200 MB; above it the rarest are dropped


class WordCounter:
    """Counts words as BERT's tokenizer delimits them, in bounded memory.

    The same documents in the same order give the same counts.

    Args:
        rule: how text becomes words.
        most: maximum number of distinct words; above it, the rarest are dropped until at most half as many remain.
    """

    def __init__(self, rule: TextRule, *, most: int = MOST_WORDS) -> None:
        self._splits = rule.split_unspaced
        self._folding = folding_table(lowercase=rule.lowercase)
        self._normalizer = normalizers.BertNormalizer(lowercase=rule.lowercase, strip_accents=rule.strip_accents)
        self._pre_tokenizer = pre_tokenizer(rule)
        self._most = most
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        """Occurrences of each word; words of more than 100 characters are left out, as BERT maps them to [UNK]."""
        return self._counts

    def add(self, documents: Iterable[str]) -> None:
        """Count the words of documents."""
        for text in _joined(documents):
            # Arrow counts equal pre-tokens, so Python handles each distinct one only once per batch.
            raw = with_ascii_blanks(text.encode())
            starts = pretoken_starts(raw)
            bounds = np.append(with_unspaced_starts(raw, starts) if self._splits else starts, len(raw))
            found = pretokens_at(raw.translate(self._folding), bounds).value_counts()
            pretokens, counts = found.field("values").to_pylist(), found.field("counts").to_pylist()
            for pretoken, count in zip(pretokens, counts, strict=True):
                self._count(pretoken.rstrip(b" "), count)
            self._drop_rarest()

    def _count(self, pretoken: bytes, count: int) -> None:
        if pretoken.isalnum():  # ASCII letters and digits only, which normalisation does not change
            words = [pretoken.decode()]
        else:
            normal = self._normalizer.normalize_str(pretoken.decode())
            words = [word for word, _ in self._pre_tokenizer.pre_tokenize_str(normal)]
        for word in words:
            if len(word) <= LONGEST_WORD:
                self._counts[word] += count

    def _drop_rarest(self) -> None:
        """Drop the rarest words if there are more than `most`."""
        if len(self._counts) > self._most:
            # Words of equal count are dropped together: to keep some of them would be an arbitrary choice.
            rare = sorted(self._counts.values())[len(self._counts) - self._most // 2]
            self._counts = Counter({word: count for word, count in self._counts.items() if count > rare})


def _joined(documents: Iterable[str]) -> Iterator[str]:
    """Yield texts of at least `CHARACTERS_AT_ONCE` characters, each several documents joined by newlines."""
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
