"""Raw text to token store, and its errors."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.unit.corpus.small_corpora import read_documents
from train_jobs.artifacts.fingerprints import fingerprint
from train_jobs.config import DataConfig, DataError, StorageError
from train_jobs.corpus.preparation import prepare_store, store_key
from train_jobs.corpus.steps.document_rules import DocumentSurvey, document_hash, split_threshold
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.corpus.tokenize.vocabulary import SPECIAL_PIECES, load_vocabulary

MANY_WORDS = " ".join(f"word{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(200))
PREPARE_WITH_LIMITED_FILES = """
import resource, sys
from pathlib import Path
from train_jobs.config import DataConfig, StorageError
from train_jobs.corpus.preparation import prepare_store
limit = int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    prepare_store(DataConfig(text=[Path(sys.argv[1])], vocab_size=300), Path(sys.argv[2]), progress=lambda _: None)
except StorageError as problem:
    print(problem)
"""


def prepare(text: Path, folder: Path, **options: object) -> TokenStore:
    data = DataConfig(text=[text], **{"vocab_size": 200, **options})  # type: ignore[arg-type]
    return prepare_store(data, folder, progress=lambda _: None)


def write(path: Path, *documents: str) -> Path:
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return path


def tokens(store: TokenStore, split: str) -> list[int]:
    blocks = range(store.blocks(split))  # type: ignore[arg-type]
    return [token for i in blocks for token in store.block(split, i).tokens.tolist()]  # type: ignore[arg-type]


def encoded(tokenizer: Tokenizer, documents: list[str]) -> list[int]:
    return [token for document in documents for token in tokenizer.encode(document).ids]


def test_store_contains_text_split_by_hash(tmp_path: Path, corpus_file: Callable[..., Path]) -> None:
    corpus = corpus_file(documents=200)
    lines: list[str] = []
    store = prepare_store(
        DataConfig(text=[corpus], vocab_size=200, validation_fraction=0.2), tmp_path / "store", progress=lines.append
    )
    documents = read_documents(corpus)
    held_out = [document for document in documents if document_hash(document) < 0.2 * 2**64]
    assert 20 < len(held_out) < 60
    tokenizer = load_vocabulary(store.vocabulary, lowercase=True)
    assert tokens(store, "validation") == encoded(tokenizer, held_out)
    assert tokens(store, "train") == encoded(tokenizer, [d for d in documents if d not in held_out])
    assert store.manifest.vocab_size == tokenizer.get_vocab_size()
    assert store.manifest.splits["validation"].documents == len(held_out)
    assert any("pieces" in line for line in lines)


def test_same_text_same_bytes_matching_store_unchanged(tmp_path: Path, corpus_file: Callable[..., Path]) -> None:
    corpus = corpus_file()
    first, second = prepare(corpus, tmp_path / "a" / "one"), prepare(corpus, tmp_path / "two")
    for path in first.folder.iterdir():
        assert path.read_bytes() == (second.folder / path.name).read_bytes()
    before = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    again = prepare(corpus, first.folder, sequence_length=512, short_sequence_probability=0.5)
    assert {path: path.stat().st_mtime_ns for path in again.folder.iterdir()} == before


@pytest.mark.parametrize(
    "change", [{"vocab_size": 300}, {"lowercase": False}, {"validation_fraction": 0.3}, {"text": "other"}]
)
def test_store_of_other_text_or_settings_is_rebuilt(
    tmp_path: Path, corpus_file: Callable[..., Path], change: dict[str, object]
) -> None:
    corpus = corpus_file()
    store = prepare(corpus, tmp_path / "store")
    if change.pop("text", None):
        corpus.write_text(corpus.read_text() + "\n\nMore text.\n")
    rebuilt = prepare(corpus, tmp_path / "store", **change)
    assert rebuilt.manifest.key != store.manifest.key
    assert TokenStore.open(tmp_path / "store").manifest == rebuilt.manifest


def test_keys_depend_on_content_not_paths_or_training(tmp_path: Path, corpus_file: Callable[..., Path]) -> None:
    def key(text: str = "a", **options: object) -> str:
        data = DataConfig(text=[tmp_path / text], **options)  # type: ignore[arg-type]
        return store_key(data, fingerprint(data.text))

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        corpus_file(name=f"{name}/corpus.txt")
    vocabularies = [write(tmp_path / f"vocab{n}.txt", "\n".join([*SPECIAL_PIECES, "a"[:n]])) for n in (0, 1)]
    assert key("a") == key("b") == key(sequence_length=512, short_sequence_probability=0.3)
    assert len(key()) == 16
    different = [
        key(),
        key(vocab_size=100),
        key(lowercase=False),
        key(validation_fraction=0.2),
        *[key(vocabulary=path) for path in vocabularies],
    ]
    assert len(set(different)) == len(different)
    assert key(vocabulary=vocabularies[0], vocab_size=100) == key(vocabulary=vocabularies[0])


def test_given_vocabulary_is_used_unchanged(tmp_path: Path, corpus_file: Callable[..., Path]) -> None:
    made = prepare(corpus_file(), tmp_path / "made")
    vocabulary = write(tmp_path / "vocab.txt", made.vocabulary.read_text() + "unheardof\n")
    store = prepare(corpus_file(), tmp_path / "store", vocabulary=vocabulary)
    assert store.vocabulary.read_bytes() == vocabulary.read_bytes()
    assert tokens(store, "train") == tokens(made, "train")


@pytest.mark.parametrize("fraction", [0.0001, 0.9999])
def test_few_documents_still_give_both_splits(tmp_path: Path, fraction: float) -> None:
    store = prepare(
        write(tmp_path / "a.txt", MANY_WORDS, "And a second one."), tmp_path / "store", validation_fraction=fraction
    )
    assert {counts.documents for counts in store.manifest.splits.values()} == {1}


def test_equal_documents_are_in_same_split() -> None:
    documents = [f"{MANY_WORDS} {n % 20}" for n in range(100)]
    survey = DocumentSurvey()
    survey.add(documents, [document_hash(document) for document in documents])
    threshold = split_threshold(survey, validation_fraction=0.3)
    held_out = [document_hash(document) < threshold for document in documents]
    assert set(held_out) == {True, False}
    assert held_out[:20] == held_out[80:]


@pytest.mark.parametrize(
    ("documents", "message", "have"),
    [
        ([], "the text is empty", None),
        ([" \n\t\n"], "no document", None),
        ([MANY_WORDS], "a single document", "1 document"),
        ([MANY_WORDS] * 3, "a single document", "3 identical documents"),
        (["word"] * 9 + ["word word"], "too small", "1"),
        (["Hello world.", "Not much more."], "too small", "6"),
    ],
)
def test_too_little_text_is_refused(tmp_path: Path, documents: list[str], message: str, have: str | None) -> None:
    with pytest.raises(DataError, match=message) as caught:
        prepare(write(tmp_path / "a.txt", *documents), tmp_path / "store")
    assert caught.value.fix
    assert have is None or str(caught.value.facts["have"]) == have
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_vocabulary_of_other_language_is_refused(tmp_path: Path) -> None:
    vocabulary = write(tmp_path / "vocab.txt", "\n".join([*SPECIAL_PIECES, "\u0430", "\u0431", "."]))
    with pytest.raises(DataError, match="does not fit the text") as caught:
        prepare(write(tmp_path / "a.txt", MANY_WORDS, "Two."), tmp_path / "store", vocabulary=vocabulary)
    assert caught.value.facts["have"] == "100%"
    assert caught.value.fix == "omit data.vocabulary to train one on the text"


def test_vocabulary_too_small_for_script_is_refused(tmp_path: Path) -> None:
    text = [" ".join(chr(0x4E00 + n) for n in range(start, start + 300)) for start in (0, 300)]
    with pytest.raises(DataError, match="does not fit the text") as caught:
        prepare(write(tmp_path / "a.txt", *text), tmp_path / "store", vocab_size=64)
    assert caught.value.fix == "increase data.vocab_size"


def test_split_without_tokens_is_refused(tmp_path: Path) -> None:
    nothing = "\u0301"  # a document of one accent, which lower-casing strips
    text = write(tmp_path / "a.txt", MANY_WORDS, nothing)
    fraction = (min(document_hash(MANY_WORDS), document_hash(nothing)) + 2) / 2**64
    with pytest.raises(DataError, match="split contains no token"):
        prepare(text, tmp_path / "store", validation_fraction=fraction)


def test_missing_vocabulary_is_refused(tmp_path: Path, corpus_file: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="no such vocabulary file"):
        prepare(corpus_file(), tmp_path / "store", vocabulary=tmp_path / "vocab.txt")


@pytest.mark.parametrize(
    ("pieces", "words", "message"),
    [([*SPECIAL_PIECES, "", "a"], [], "an empty line"), ([*SPECIAL_PIECES, "a"], ["a"], "some words cannot be tokens")],
)
def test_wrong_vocabulary_is_refused_before_reading(
    tmp_path: Path, pieces: list[str], words: list[str], message: str
) -> None:
    (tmp_path / "a.txt").write_bytes(b"no text: \xff\n")
    vocabulary = write(tmp_path / "vocab.txt", "\n".join(pieces))
    with pytest.raises(DataError, match=message):
        prepare(tmp_path / "a.txt", tmp_path / "store", vocabulary=vocabulary, add_tokens=words)
    assert not (tmp_path / "store").exists()


def test_foreign_folder_is_never_replaced(tmp_path: Path, corpus_file: Callable[..., Path]) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    write(folder / "chapter.tex", "years of work")
    for place in (folder, folder / "chapter.tex"):
        with pytest.raises(StorageError, match="it contains other files"):
            prepare(corpus_file(), place)
    assert (folder / "chapter.tex").read_text() == "years of work"


def test_partial_store_and_leftovers_are_replaced(tmp_path: Path, corpus_file: Callable[..., Path]) -> None:
    store = prepare(corpus_file(), tmp_path / "stores" / "one")
    (store.folder / "manifest.json").unlink()
    write(store.folder / "shard-00007-train.arrow", "half")
    write(store.folder / ".manifest.json.7.tmp", "half")
    (store.folder / "parts").mkdir()
    write(store.folder / "parts" / "documents-00007.json", "half")
    prepare(corpus_file(), store.folder)
    assert TokenStore.exists(store.folder)
    assert sorted(path.name for path in store.folder.parent.iterdir()) == ["one"]
    listed = {"manifest.json", "vocab.txt", *(shard.file for shard in store.manifest.shards)}
    assert {path.name for path in store.folder.iterdir()} == listed


def test_concurrent_builders_build_store_once(tmp_path: Path, corpus_file: Callable[..., Path]) -> None:
    data, lines = DataConfig(text=[corpus_file()], vocab_size=200), []
    stores: list[TokenStore] = []

    def build() -> None:
        stores.append(prepare_store(data, tmp_path / "store", progress=lines.append))

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({store.manifest.key for store in stores}) == 1
    assert len(stores) == 4
    assert sum("vocabulary trained" in line for line in lines) == 1


@pytest.mark.parametrize("limit", [1, 1000, 4000])
def test_full_disk_leaves_resumable_parts(tmp_path: Path, corpus_file: Callable[..., Path], limit: int) -> None:
    folder, corpus = tmp_path / "stores" / "one", corpus_file(documents=100)
    command = [sys.executable, "-c", PREPARE_WITH_LIMITED_FILES, corpus, folder, str(limit)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.startswith("error[storage]: cannot write the token store: a file would grow past the size limit")
    assert str(folder) in output
    assert not TokenStore.exists(folder)
    prepare(corpus, folder)
    assert not (folder / "parts").exists()


def test_unusable_text_leaves_no_store(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        prepare(write(tmp_path / "text.txt", "One document."), tmp_path / "stores" / "one")
    assert [path.name for path in (tmp_path / "stores").iterdir()] == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder_is_named(tmp_path: Path, corpus_file: Callable[..., Path]) -> None:
    corpus, parent = corpus_file(), tmp_path / "stores"
    parent.mkdir(mode=0o555)
    with pytest.raises(StorageError, match="cannot write the token store: permission denied") as caught:
        prepare(corpus, parent / "one")
    assert caught.value.facts["where"] == parent / "one"


def test_path_through_file_is_named(tmp_path: Path, corpus_file: Callable[..., Path]) -> None:
    folder = write(tmp_path / "file", "text") / "stores" / "one"
    with pytest.raises(StorageError, match="a part of the path is a file") as caught:
        prepare(corpus_file(), folder)
    assert caught.value.facts["where"] == folder
