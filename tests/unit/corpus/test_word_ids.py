"""Ids of our tokenizer compared with those of `tokenizers`."""

from __future__ import annotations

import bz2
import lzma
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from fuzzed_text import fuzzed_strings
from tokenizers import Tokenizer

from train_jobs.corpus.tokenize import word_encoder
from train_jobs.corpus.tokenize.pretokens import Offsets, pretoken_starts, with_ascii_blanks
from train_jobs.corpus.tokenize.vocabulary import SPECIAL_PIECES, load_vocabulary
from train_jobs.corpus.tokenize.word_encoder import Tokens, WordPieceTokenizer

DATA = Path(__file__).parents[3].parent / "shared" / "data"
real_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real data is missing: ../shared/data")
both_cases = pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
COMMON = [
    "the",
    "of",
    "house",
    "##se",
    "14",
    "cov",
    "don",
    "caf",
    "\u6c34",
    "\u3002",
    "\u201c",
    "\u0627",
    "##\u0628",
    "ab",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a vocabulary of some words and of many characters, each as a first and as a continuation piece."""
    characters = [chr(code) for code in range(33, 127)] + list("\u00e9\u00df\u0130\u03c3\u0436\u0939\uac00\u00bf")
    pieces = [*SPECIAL_PIECES, *COMMON, *characters, *[f"##{character}" for character in characters]]
    path = tmp_path_factory.mktemp("words") / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return path


def google(*, lowercase: bool) -> Tokenizer:
    return load_vocabulary(DATA / "bert" / f"vocab_{'uncased' if lowercase else 'cased'}.txt", lowercase=lowercase)


def encode(ours: WordPieceTokenizer, sentences: Sequence[str]) -> tuple[Tokens, Offsets]:
    """Return the ids of all sentences and the offsets of each sentence."""
    text = with_ascii_blanks("".join([sentence.replace("\n", " ") + "\n" for sentence in sentences]).encode())
    starts = pretoken_starts(text)
    tokens, offsets = ours.encode(text, starts)
    newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    return tokens, offsets[np.append(0, np.searchsorted(starts, newlines))]


def assert_equal(tokenizer: Tokenizer, ours: WordPieceTokenizer, sentences: Sequence[str]) -> None:
    tokens, offsets = encode(ours, sentences)
    expected = [encoding.ids for encoding in tokenizer.encode_batch_fast(sentences, add_special_tokens=False)]
    ends = np.cumsum([0, *map(len, expected)])
    if not np.array_equal(offsets, ends) or tokens.tolist() != [token for ids in expected for token in ids]:
        different = [s for s, ids in zip(sentences, expected, strict=True) if encode(ours, [s])[0].tolist() != ids]
        pytest.fail(f"{len(different)} sentences have other ids: {different[:3]!r}")


def real_texts() -> Iterator[tuple[str, str]]:
    """Yield name and text of all files in ../shared/data."""
    for path in sorted(path for path in DATA.rglob("*") if path.is_file()):
        if path.name.endswith(".tar.xz"):
            with tarfile.open(path) as archive:
                for member in archive:
                    if (stream := archive.extractfile(member)) is not None:
                        yield f"{path.name}/{member.name}", stream.read().decode("utf-8", "replace")
            continue
        raw = path.read_bytes()
        raw = lzma.decompress(raw) if path.suffix == ".xz" else bz2.decompress(raw) if path.suffix == ".bz2" else raw
        yield path.name, raw.decode("utf-8", "replace")


@both_cases
def test_fuzzed_strings_have_same_ids(small: Path, lowercase: bool) -> None:
    tokenizer = load_vocabulary(small, lowercase=lowercase)
    strings = list(fuzzed_strings(6000, seed=1))
    ours = WordPieceTokenizer(tokenizer)
    assert_equal(tokenizer, ours, strings)
    assert_equal(tokenizer, ours, strings[::-1])  # all words are cached now


@both_cases
def test_each_character_has_same_ids_alone_and_in_word(small: Path, lowercase: bool) -> None:
    tokenizer = load_vocabulary(small, lowercase=lowercase)
    characters = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    lines = [" ".join(characters[start : start + 16]) for start in range(0, len(characters), 16)]
    lines += [f"a{'b '.join(characters[start : start + 16])}c" for start in range(0, len(characters), 16)]
    assert_equal(tokenizer, WordPieceTokenizer(tokenizer), lines)


def test_combining_marks_are_reordered(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    pieces = [*SPECIAL_PIECES, "a", "##\U0001d165", "##\U0001d16d"]
    path.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    tokenizer = load_vocabulary(path, lowercase=True)
    sentences = ["a\U0001d16d\U0001d165", "a\U0001d165\U0001d16d"]
    assert_equal(tokenizer, WordPieceTokenizer(tokenizer), sentences)
    assert encode(WordPieceTokenizer(tokenizer), sentences)[0].tolist() == [5, 6, 7, 5, 6, 7]


@real_data
@both_cases
def test_real_text_has_same_ids(lowercase: bool) -> None:
    """The first 20,000 characters of every file outside archives."""
    tokenizer = google(lowercase=lowercase)
    paths = [path for path in sorted(DATA.rglob("*.t*")) if path.suffix in {".tsv", ".txt"}]
    texts = [path.read_text(encoding="utf-8", errors="replace")[:20_000] for path in paths]
    assert len(texts) > 30
    assert_equal(tokenizer, WordPieceTokenizer(tokenizer), [line for text in texts for line in text.split("\n")])


@pytest.mark.slow
@real_data
@both_cases
def test_all_real_text_has_same_ids(lowercase: bool) -> None:
    tokenizer = google(lowercase=lowercase)
    ours = WordPieceTokenizer(tokenizer)
    read = 0
    for _, text in real_texts():
        lines = text.split("\n")
        for start in range(0, len(lines), 50_000):
            assert_equal(tokenizer, ours, lines[start : start + 50_000])
        read += len(text)
    assert read > 100e6


@pytest.mark.slow
@real_data
@both_cases
def test_million_fuzzed_strings_have_same_ids(lowercase: bool) -> None:
    tokenizer = google(lowercase=lowercase)
    ours = WordPieceTokenizer(tokenizer)
    for seed in range(50):
        assert_equal(tokenizer, ours, list(fuzzed_strings(20_000, seed=seed)))


def test_encode_returns_ids_and_sentence_offsets(small: Path) -> None:
    ours = WordPieceTokenizer(load_vocabulary(small, lowercase=True))
    tokens, offsets = encode(ours, ["The house,\n\u201cof\u6c34\u3002", "", "\n", "  AB [MASK] ", "\u200b"])
    spelt = small.read_text(encoding="utf-8").split("\n")
    pieces = [spelt[token] for token in tokens]
    assert pieces == ["the", "house", ",", "\u201c", "of", "\u6c34", "\u3002", "ab", "[", "m", "##a", "##s", "##k", "]"]
    assert offsets.tolist() == [0, 7, 7, 7, 14, 14]
    assert (tokens.dtype, offsets.dtype) == (np.uint16, np.int64)


@pytest.mark.parametrize("sentences", [[], ["\u200b"], ["", " "]])
def test_encode_without_tokens_returns_empty(small: Path, sentences: list[str]) -> None:
    tokens, offsets = encode(WordPieceTokenizer(load_vocabulary(small, lowercase=True)), sentences)
    assert (tokens.tolist(), offsets.tolist()) == ([], [0] * (len(sentences) + 1))


def test_large_vocabulary_uses_32_bit_ids(tmp_path: Path) -> None:
    def ids(size: int) -> np.ndarray:
        pieces = [*SPECIAL_PIECES, *(f"w{number}" for number in range(size - 5))]
        path = tmp_path / "vocab.txt"
        path.write_text("".join(f"{piece}\n" for piece in pieces))
        return encode(WordPieceTokenizer(load_vocabulary(path, lowercase=True)), [f"w0 w{size - 6}"])[0]

    assert (ids(1 << 16).tolist(), ids(1 << 16).dtype) == ([5, 65535], np.uint16)
    assert (ids((1 << 16) + 1).tolist(), ids((1 << 16) + 1).dtype) == ([5, 65536], np.uint32)


def test_batch_size_and_full_cache_do_not_change_ids(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_vocabulary(small, lowercase=True)
    sentences = list(fuzzed_strings(500, seed=2))
    whole = encode(WordPieceTokenizer(tokenizer), sentences)
    monkeypatch.setattr(word_encoder, "PRETOKENS_AT_ONCE", 100)
    parts = encode(WordPieceTokenizer(tokenizer, cache_bytes=5000), sentences)
    np.testing.assert_array_equal(whole[0], parts[0])
    np.testing.assert_array_equal(whole[1], parts[1])


def test_word_cache_is_bounded(small: Path) -> None:
    ours = WordPieceTokenizer(load_vocabulary(small, lowercase=True), cache_bytes=20_000)
    most = 0
    for start in range(0, 3000, 100):
        encode(ours, [f"word{number}" for number in range(start, start + 100)])
        most = max(most, len(ours._cache))
    assert 100 < most < 400
