"""WordPiece: training, files, and agreement with Hugging Face."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import BertTokenizerFast

from tests.unit.corpus.small_corpora import read_documents
from train_jobs.config import DataError
from train_jobs.corpus.tokenize.vocabulary import SPECIAL_PIECES, load_vocabulary, save_vocabulary, train_vocabulary

GOOGLE = Path(__file__).parents[3].parent / "shared" / "data" / "bert"
TRICKY = [
    "Caf\u00e9 na\u00efve \u00c5ngstr\u00f6m e\u0301 \u0130stanbul",
    "\u6c34\u706bwater\u3001\u3042\u3044",
    "smile \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 end",
    "tab\tnew\nline\u00a0nbsp\u200bzero\x00null\ufffd\x07bell",
    "don't stop--believin' ... $3.50 (ok) #tag @me a_b",
    "unaffable " + "x" * 101 + " " + "y" * 100,
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u041f\u0440\u0438\u0432\u0435\u0442",
    "",
]
TRAIN = """
import sys
from pathlib import Path
from train_jobs.corpus.tokenize.vocabulary import save_vocabulary, train_vocabulary
tokenizer = train_vocabulary(Path(sys.argv[1]).read_text().split("\\n\\n"), size=int(sys.argv[2]), lowercase=True)
save_vocabulary(tokenizer, Path(sys.argv[3]))
"""


def write_vocabulary(path: Path, pieces: list[str], newline: str = "\n") -> Path:
    path.write_bytes("".join(piece + newline for piece in pieces).encode())
    return path


@pytest.mark.parametrize("size", [64, 400])
def test_training_is_deterministic_across_processes(
    tmp_path: Path, corpus_file: Callable[..., Path], size: int
) -> None:
    corpus, digests = corpus_file(documents=60), set()
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": str(number)}
        subprocess.run([sys.executable, "-c", TRAIN, corpus, str(size), folder], env=environment, check=True)
        digests.add(hashlib.sha256((folder / "vocab.txt").read_bytes()).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize("size", [64, 90, 300])
def test_vocabulary_has_special_pieces_first_and_size(corpus_file: Callable[..., Path], size: int) -> None:
    tokenizer = train_vocabulary(read_documents(corpus_file()), size=size, lowercase=True)
    assert [tokenizer.id_to_token(number) for number in range(5)] == list(SPECIAL_PIECES)
    assert tokenizer.get_vocab_size() <= size
    assert tokenizer.get_vocab_size() > size * 0.9


def test_vocabulary_with_many_characters_keeps_size() -> None:
    text = [" ".join(chr(0x4E00 + n) for n in range(500)), "water " * 50]
    tokenizer = train_vocabulary(text, size=64, lowercase=True)
    assert tokenizer.get_vocab_size() <= 64
    assert tokenizer.encode("water").tokens != ["[UNK]"]  # the frequent characters are kept


def test_vocabulary_omits_impossible_pieces() -> None:
    vocabulary = train_vocabulary(["water, fire. \u6c34"] * 3, size=100, lowercase=True).get_vocab()
    assert {",", "\u6c34", "##a"} <= set(vocabulary)
    assert not {"##,", "##.", "##\u6c34"} & set(vocabulary)


@pytest.mark.parametrize("lowercase", [True, False])
def test_vocabulary_round_trip_gives_equal_ids(
    tmp_path: Path, corpus_file: Callable[..., Path], lowercase: bool
) -> None:
    corpus = read_documents(corpus_file())
    trained = train_vocabulary(corpus, size=200, lowercase=lowercase)
    loaded = load_vocabulary(save_vocabulary(trained, tmp_path), lowercase=lowercase)
    for text in [*corpus, *TRICKY]:
        assert loaded.encode(text).ids == trained.encode(text).ids


@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_match_hugging_face(tmp_path: Path, lowercase: bool) -> None:
    tokenizer = train_vocabulary([*TRICKY, *TRICKY], size=300, lowercase=lowercase)
    path = save_vocabulary(tokenizer, tmp_path)
    assert_same_ids(path, lowercase=lowercase)


@pytest.mark.skipif(not GOOGLE.exists(), reason="Google's vocabularies are not here")
@pytest.mark.parametrize(("name", "lowercase"), [("vocab_uncased.txt", True), ("vocab_cased.txt", False)])
def test_ids_of_google_vocabularies_match_hugging_face(name: str, lowercase: bool) -> None:
    assert_same_ids(GOOGLE / name, lowercase=lowercase)


def assert_same_ids(path: Path, *, lowercase: bool) -> None:
    ours = load_vocabulary(path, lowercase=lowercase)
    theirs = BertTokenizerFast(vocab=str(path), do_lower_case=lowercase)
    for text in TRICKY:
        assert ours.encode(text).ids == theirs.encode(text, add_special_tokens=False), text


def test_text_of_special_piece_is_tokenized_as_text(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "vocab.txt", [*SPECIAL_PIECES, "[", "]", "mask"])
    assert load_vocabulary(path, lowercase=True).encode("[MASK]").tokens == ["[", "mask", "]"]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_numbers_are_ids_for_any_line_ending(tmp_path: Path, newline: str) -> None:
    pieces = [*SPECIAL_PIECES, "\u2028", "a\x85b"]
    loaded = load_vocabulary(write_vocabulary(tmp_path / "vocab.txt", pieces, newline), lowercase=True)
    assert [loaded.id_to_token(number) for number in range(loaded.get_vocab_size())] == pieces


@pytest.mark.parametrize(
    ("pieces", "message", "fact"),
    [
        (["[PAD]", "[UNK]", "[CLS]", "water"], "not a BERT vocabulary", "[SEP] [MASK]"),
        ([*SPECIAL_PIECES, "water", "fire", "water"], "a piece occurs twice", "lines 6 and 8"),
        ([*SPECIAL_PIECES, "", "water"], "an empty line", "line 6"),
        ([*SPECIAL_PIECES[1:], "[PAD]"], r"\[PAD\] is not its first piece", "line 5"),
    ],
)
def test_invalid_vocabulary_is_refused(tmp_path: Path, pieces: list[str], message: str, fact: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load_vocabulary(write_vocabulary(tmp_path / "vocab.txt", pieces), lowercase=True)
    assert fact in caught.value.facts.values()


def test_byte_order_mark_is_not_in_first_piece(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "vocab.txt", ["\ufeff[PAD]", *SPECIAL_PIECES[1:]])
    assert load_vocabulary(path, lowercase=True).token_to_id("[PAD]") == 0


def test_missing_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such vocabulary file"):
        load_vocabulary(tmp_path / "vocab.txt", lowercase=True)
