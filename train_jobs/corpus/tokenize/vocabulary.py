"""WordPiece: trains a vocabulary, reads and writes vocab.txt, and gives the tokenizer that uses it.

Normalisation and splitting are BERT's (Devlin et al. 2019, A.2; Google's `tokenization.py`): control characters
dropped, CJK characters apart, optional lower case without accents, words split at white space and punctuation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from train_jobs.artifacts.word_rules import LONGEST_WORD, unfit_words
from train_jobs.config.errors import DataError
from train_jobs.config.names import in_shell
from train_jobs.corpus.tokenize.word_counts import WordCounter

PAD, UNK, CLS, SEP, MASK = SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
VOCABULARY_FILE = "vocab.txt"
MAX_ALPHABET = 1000  # rarer characters than these become [UNK]
MOST_OCCURRENCES = 10_000_000  # of words, for the trainer to read: seconds, whatever the size of the text


def train_vocabulary(documents: Iterable[str], *, size: int, lowercase: bool) -> Tokenizer:
    """Learns a WordPiece vocabulary from text of any length; the same documents give the same one, byte for byte.

    Args:
        documents: text.
        size: most pieces, the five special ones included; fewer when the text does not hold as many.
        lowercase: lower-case and strip accents.

    Returns:
        The tokenizer, with [PAD], [UNK], [CLS], [SEP], [MASK] at ids 0 to 4. It adds no special tokens itself.
    """
    counter = WordCounter(lowercase=lowercase)
    counter.add(documents)
    return learn_vocabulary(counter.counts, size=size, lowercase=lowercase)


def learn_vocabulary(counts: Mapping[str, int], *, size: int, lowercase: bool) -> Tokenizer:
    """`train_vocabulary` of text whose words are counted already.

    Args:
        counts: how often each word occurs, see `WordCounter`. Of more than 10 million words in all, the shares decide.
        size, lowercase: as there.
    """
    blank = _tokenizer({UNK: 0}, lowercase=lowercase)
    # The trainer numbers `##x` pieces in the order of its hash map, which differs from run to run, and breaks ties
    # between merges by these numbers. Pieces named as special are numbered first, in our order.
    alphabet = _alphabet(counts, limit=min(MAX_ALPHABET, (size - len(SPECIAL_PIECES)) // 2))
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
    return _tokenizer({piece: ids[piece] for piece in sorted(ids, key=ids.__getitem__)}, lowercase=lowercase)


def load_vocabulary(path: Path, *, lowercase: bool, words: Sequence[str] = ()) -> Tokenizer:
    """Reads a vocab.txt: one piece a line, the line's number from 0 being its id.

    Args:
        path: the file.
        lowercase: lower-case and strip accents.
        words: more pieces, which get the ids behind those of the file.

    Raises:
        DataError: no such file, not UTF-8, a special piece missing, an empty line, or a piece that is there twice; or
            words that the tokenizer would not give as one piece each.
    """
    pieces = _pieces(path)
    _check(pieces, path)
    unfit = list(unfit_words(words, frozenset(pieces), lowercase=lowercase))
    tokenizer = _tokenizer({piece: number for number, piece in enumerate([*pieces, *words])}, lowercase=lowercase)
    if not unfit:  # of characters newer than Python's tables the tokenizer alone knows what it makes
        encoded = zip(words, tokenizer.encode_batch(list(words)), strict=True)
        unfit = [f'"{word}" is split' for word, found in encoded if found.tokens != [word]]
    if unfit:
        raise DataError("not every word of data.add_tokens can be a token", facts={"words": "; ".join(unfit)})
    return tokenizer


def continuing_pieces(path: Path) -> npt.NDArray[np.bool_]:
    """Which ids of a vocab.txt go on a word that another piece began: bool [pieces], True for those with ##.

    Raises:
        DataError: no such file, or not UTF-8.
    """
    return np.array([piece.startswith(CONTINUATION) for piece in _pieces(path)], np.bool_)


def _pieces(path: Path) -> list[str]:
    try:
        text = read_vocabulary(path).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise DataError(f"{path} is not UTF-8", facts={"where": f"byte {problem.start}"}) from None
    # Not splitlines(): a piece may be one of the other characters that Unicode counts as line ends.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read_vocabulary(path: Path) -> bytes:
    """The content of a vocab.txt.

    Raises:
        DataError: no such file, or one that cannot be read.
    """
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise DataError(
            f"no such vocabulary file: {path}",
            facts={"where": "data.vocabulary"},
            fix="give a vocab.txt, or leave data.vocabulary out to train one on the text",
        ) from None
    except PermissionError:
        raise DataError(f"cannot read {path}", fix=f"chmod u+r {in_shell(path)}") from None


def save_vocabulary(tokenizer: Tokenizer, folder: Path) -> Path:
    """Writes vocab.txt into `folder`, one piece a line in the order of ids, and returns its path."""
    path = folder / VOCABULARY_FILE
    ids = tokenizer.get_vocab()
    pieces = sorted(ids, key=ids.__getitem__)
    assert [ids[piece] for piece in pieces] == list(range(len(pieces))), "ids must be 0, 1, 2, ..."
    path.write_bytes("".join(f"{piece}\n" for piece in pieces).encode())
    return path


def _tokenizer(ids: dict[str, int], *, lowercase: bool) -> Tokenizer:
    """The special pieces are not registered as such: text that spells "[MASK]" is text, not a mask."""
    model = models.WordPiece(
        ids,
        unk_token=UNK,
        max_input_chars_per_word=LONGEST_WORD,
        continuing_subword_prefix=CONTINUATION,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)  # strips accents if it lower-cases
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(CONTINUATION)
    return tokenizer


def _alphabet(words: Mapping[str, int], *, limit: int) -> list[str]:
    """The most frequent characters of the words, sorted; ties go to the smaller code point."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    return sorted(sorted(counts, key=lambda character: (-counts[character], character))[:limit])


def _written_out(counts: Mapping[str, int]) -> Iterator[str]:
    """Text with each word as often as was counted, or as often in 10 million: the trainer counts for itself."""
    total = sum(counts.values())
    most = min(total, MOST_OCCURRENCES)
    for word, count in counts.items():
        yield f"{word} " * ((count * most + total // 2) // total)


def _continues_word(character: str, tokenizer: Tokenizer) -> bool:
    """Whether it can stand inside a word: punctuation and CJK characters can't, they are words of their own."""
    text = tokenizer.normalizer.normalize_str("a" + character)
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) == 1


def _check(pieces: list[str], path: Path) -> None:
    lines: dict[str, int] = {}
    for line, piece in enumerate(pieces, start=1):
        if not piece:
            raise DataError(f"{path} has an empty line", facts={"where": f"line {line}"})
        if piece in lines:
            raise DataError(f"{path} holds {piece!r} twice", facts={"where": f"lines {lines[piece]} and {line}"})
        lines[piece] = line
    if missing := [piece for piece in SPECIAL_PIECES if piece not in lines]:
        raise DataError(
            f"{path} is not a BERT vocabulary",
            facts={"need": " ".join(SPECIAL_PIECES), "missing": " ".join(missing)},
            fix=f"add the missing pieces, each on a line of its own, to {path}",
        )
