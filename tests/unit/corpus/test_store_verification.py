"""Verification of token stores: each problem names its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.corpus.small_corpora import encoded_as, prepare, sources
from train_jobs.artifacts.files import checked_json, file_sha256, parse_checked
from train_jobs.artifacts.store_manifest import on_store
from train_jobs.config import DataError, PretrainConfig, TextConfig
from train_jobs.corpus.store.inspection import histogram, verify
from train_jobs.corpus.store.token_store import EncodedDocuments, StoreWriter, TokenStore


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return prepare(TextConfig(text=sources(tmp_path, 2), vocab_size=200, validation_fraction=0.3), tmp_path / "store")


def problems_after_change(store: TokenStore, change: Callable[[dict[str, Any]], None]) -> list[str]:
    """Return the problems of a store whose manifest was changed."""
    path = store.folder / "manifest.json"
    document = parse_checked(path.read_bytes())
    change(document)
    path.write_text(checked_json(document, indent=2))
    return verify(store.folder)


def problems_after_rewrite(store: TokenStore, documents: EncodedDocuments) -> list[str]:
    """Return the problems of a store whose first shard has other contents and a matching hash."""
    shard = store.manifest.shards[0]
    writer = StoreWriter(store.folder, vocab_size=200)
    writer.add("train", documents)
    writer.close()
    path = store.folder / shard.file

    def update_shard(document: dict[str, Any]) -> None:
        document["shards"][0] |= {"size": path.stat().st_size, "sha256": file_sha256(path)}

    return problems_after_change(store, update_shard)


def test_valid_store_has_no_problems(store: TokenStore) -> None:
    assert verify(store.folder) == []


def test_changed_vocabulary_is_reported(store: TokenStore) -> None:
    store.vocabulary.write_text(store.vocabulary.read_text() + "more\n")
    (problem,) = verify(store.folder)
    assert problem.startswith("vocab.txt: its SHA-256 is ")
    (problem,) = problems_after_change(
        store, lambda document: document.update(vocab_sha256=file_sha256(store.vocabulary))
    )
    pieces = store.manifest.vocab_size
    assert problem == f"vocab.txt: {pieces + 1} pieces, the manifest lists {pieces}"


def test_missing_truncated_and_marked_files_are_reported(store: TokenStore) -> None:
    (store.folder / "shard-00000-train.arrow").unlink()
    (store.folder / "shard-00001-train.arrow").write_text("x")
    (store.folder / "damaged.txt").write_text("shard-00000-train.arrow is missing\n")
    assert [problem.partition(" its SHA-256 is ")[0] for problem in verify(store.folder)] == [
        "damaged.txt: a job found that shard-00000-train.arrow is missing",
        "shard-00000-train.arrow: missing",
        "shard-00001-train.arrow:",
    ]


def test_foreign_file_is_reported(store: TokenStore) -> None:
    (store.folder / "notes.txt").write_text("mine")
    assert verify(store.folder) == ["notes.txt: not in the manifest"]


def test_inconsistent_counts_are_reported(store: TokenStore) -> None:
    def change(document: dict[str, Any]) -> None:
        document["splits"]["train"]["tokens"] += 1
        document["sources"][1]["sentences"] -= 1
        document["validation_unigram_entropy"] += 0.1
        document["special_ids"]["mask"] = 3
        document["shards"][1]["blocks"] += 1

    problems = problems_after_change(store, change)
    assert [problem.partition(" is ")[0] for problem in problems if problem.startswith("manifest")] == [
        "manifest.json: special_ids.mask"
    ]
    assert problems[-1] == "shard-00001-train.arrow: 1 blocks, the manifest lists 2"
    problems = problems_after_change(store, lambda document: document["shards"][1].update(blocks=1))
    assert [problem.partition(" is ")[0] for problem in problems] == [
        "manifest.json: special_ids.mask",
        "manifest.json: splits.train.tokens",
        "manifest.json: sentences of source source-1.txt",
        "manifest.json: validation_unigram_entropy",
    ]


def test_wrong_block_sizes_are_reported(store: TokenStore) -> None:
    problems = problems_after_change(store, lambda document: document["shards"][1]["tokens"].__setitem__(0, 7))
    assert problems == ["shard-00001-train.arrow: its blocks have other numbers of tokens than the manifest lists"]


def test_ids_outside_vocabulary_are_reported(store: TokenStore) -> None:
    size = store.manifest.vocab_size
    assert problems_after_rewrite(store, encoded_as([[[1, size], [2]]])) == [
        f"shard-00000-train.arrow: block 0: invalid id {size}: the vocabulary has {size} pieces"
    ]


def test_empty_sentences_and_documents_are_reported(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EncodedDocuments, "without_empty", lambda documents: documents)
    problems = problems_after_rewrite(store, encoded_as([[[1], []], []]))
    assert problems == [
        "shard-00000-train.arrow: block 0: invalid offsets of sentences: they do not increase",
        "shard-00000-train.arrow: block 0: invalid offsets of documents: they do not increase",
    ]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json is damaged"),
        (lambda folder: (folder / "manifest.json").unlink(), "it has no manifest.json"),
        (lambda folder: folder.rename(folder.with_name("elsewhere")), "no such folder"),
    ],
)
def test_folder_that_is_not_store_states_reason(store: TokenStore, damage: Callable[[Path], object], why: str) -> None:
    damage(store.folder)
    with pytest.raises(DataError, match="no token store") as caught:
        verify(store.folder)
    assert caught.value.facts["why"] == why


def test_store_with_other_vocabulary_refused(store: TokenStore, tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_bytes(store.vocabulary.read_bytes())
    config = PretrainConfig.model_validate({"data": {"store": store.folder, "vocabulary": vocabulary}})
    assert on_store(config, store.manifest).data.validation_fraction == 0.3
    vocabulary.write_text(vocabulary.read_text() + "more\n")
    with pytest.raises(DataError, match="has another vocabulary"):
        on_store(config, store.manifest)


def test_length_histogram_has_doubling_bins() -> None:
    found = histogram(np.array([1, 2, 3, 4, 7, 8, 8]))
    assert found.edges == [1, 2, 4, 8, 16]
    assert found.counts == [1, 2, 2, 2]
    assert found.quantiles == {"5%": 1, "50%": 4, "95%": 8}
    assert histogram(np.array([4])).counts == [0, 0, 1]
