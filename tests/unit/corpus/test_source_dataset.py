"""Datasets by name: folders of Parquet files here, which need no network."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from train_jobs.artifacts.fingerprints import source_fingerprint
from train_jobs.config import DataError
from train_jobs.config.prepare import SourceConfig
from train_jobs.corpus.sources.text_parts import plan_parts, read_part


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = tmp_path / "books"
    folder.mkdir()
    for number in range(3):
        rows = {"id": [1, 2], "text": [f"text {number}", None], "tags": [[1], [2]]}
        pq.write_table(pa.table(rows), folder / f"train-{number:05}-of-00003.parquet")
    pq.write_table(pa.table({"text": ["held out"]}), folder / "validation-00000-of-00001.parquet")
    return folder


def documents(dataset: str, **options: object) -> list[list[str]]:
    sources = [SourceConfig(dataset=dataset, **options)]  # type: ignore[arg-type]
    return [list(read_part(sources, part)) for part in plan_parts(sources)]


def test_each_dataset_file_is_one_part(folder: Path) -> None:
    pytest.importorskip("datasets", reason="datasets is not installed")
    assert documents(str(folder)) == [["text 0"], ["text 1"], ["text 2"]]
    assert documents(f"{folder}@validation") == [["held out"]]
    [first, *_] = plan_parts([SourceConfig(dataset=str(folder), name="books")])
    assert (first.name, first.size, first.format) == ("books, file 1 of 3", 0, "dataset")


def test_missing_split_or_column_is_named(folder: Path) -> None:
    pytest.importorskip("datasets", reason="datasets is not installed")
    with pytest.raises(DataError, match="has no column 'body'") as caught:
        documents(str(folder), column="body")
    assert caught.value.facts["have"] == "id, text, tags"
    with pytest.raises(DataError, match=r"'tags' of .*books is not text"):
        documents(str(folder), column="tags")
    with pytest.raises(DataError, match="cannot read the dataset") as caught:
        documents(f"{folder}@nosuch")
    assert "nosuch" in str(caught.value.facts["why"])


def test_dataset_name_without_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="cannot find the dataset owner/books on the Hugging Face Hub") as caught:
        documents("owner/books:en")
    assert caught.value.facts["why"]


def test_missing_datasets_package_shows_install_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="`datasets` is not installed") as caught:
        documents(str(folder))
    assert caught.value.fix == "pip install datasets"


def test_dataset_hash_depends_on_files_and_split(folder: Path) -> None:
    def digest(split: str = "train") -> str:
        return source_fingerprint(SourceConfig(dataset=f"{folder}@{split}")).sha256

    first = digest()
    assert digest() == first != digest("validation")
    pq.write_table(pa.table({"text": ["other"]}), folder / "train-00000-of-00003.parquet")
    assert digest() != first
