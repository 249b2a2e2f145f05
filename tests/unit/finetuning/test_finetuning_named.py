"""Tables by dataset name: folders of Parquet files here, which need no network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from finetune_jobs import result_of, run

from train_jobs.config import DataError
from train_jobs.config.finetune import ColumnsConfig
from train_jobs.readers.sentence_data import read_dataset_task

PAIRS = ColumnsConfig(text="sentence1", pair="sentence2")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a dataset in the format of `nyu-mll/glue`, whose labels are classes and -1 in the test set."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    features = datasets.Features(
        {
            **dict.fromkeys(("sentence1", "sentence2"), datasets.Value("string")),
            "label": datasets.ClassLabel(names=["other", "same"]),
        }
    )
    folder = tmp_path / "pairs"
    folder.mkdir()
    for split, labels in {"train": [1, 0, 1, 0], "validation": [0, 1], "test": [-1, -1]}.items():
        rows = {"sentence1": ["w1 w2"] * len(labels), "sentence2": ["w3"] * len(labels), "label": labels}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder


def message(folder: Path, columns: ColumnsConfig = PAIRS) -> DataError:
    with pytest.raises(DataError) as caught:
        read_dataset_task(columns, str(folder))
    return caught.value


def test_class_names_are_read_and_minus_one_is_unlabelled(folder: Path) -> None:
    task, splits = read_dataset_task(PAIRS, str(folder))
    assert task.labels == ("other", "same")
    assert (splits["train"].labels, splits["dev"].labels, splits["test"].labels) == ([1, 0, 1, 0], [0, 1], None)
    assert splits["train"].texts[0] == "w1 w2"
    assert splits["train"].pairs == ["w3"] * 4
    assert splits["test"].notes == []


def test_job_accepts_dataset_instead_of_files(bert: Path, folder: Path, tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "task": "own",
        "init_from": str(bert),
        "data": {"dataset": str(folder), "text": "sentence1", "pair": "sentence2", "max_length": 32},
        "train": {"epochs": 1},
    }
    assert run(tmp_path, document) == 0
    assert result_of(tmp_path)["steps"] == 1
    lines = (tmp_path / "out" / "predictions" / "predictions.tsv").read_text().splitlines()
    assert len(lines) == 3


def test_unusable_rows_are_named(folder: Path) -> None:
    rows = {"sentence1": ["a", " "], "sentence2": ["b", "c"], "label": ["x", None]}
    pq.write_table(pa.table(rows), folder / "validation-00000-of-00001.parquet")
    for split in ("train", "test"):
        rows = {"sentence1": ["a", "b"], "sentence2": ["b", "c"], "label": ["x", "y"]}
        pq.write_table(pa.table(rows), folder / f"{split}-00000-of-00001.parquet")
    assert message(folder).problems == [
        f"{folder}@validation:row 2: column 'sentence1' has an empty text",
        f"{folder}@validation:row 2: column 'label': missing label",
    ]


def test_missing_split_or_column_is_named(folder: Path, tmp_path: Path) -> None:
    assert "unknown column 'sentence'" in message(folder, ColumnsConfig(text="sentence")).message
    (folder / "validation-00000-of-00001.parquet").unlink()
    error = message(folder)
    assert (error.message, error.facts["have"]) == (
        f"cannot use the dataset {folder}: missing split validation",
        "train, test",
    )
    assert "cannot read the dataset" in message(tmp_path / "none").message


def test_missing_datasets_package_shows_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="`datasets` is not installed") as caught:
        read_dataset_task(PAIRS, "nyu-mll/glue:mrpc")
    assert caught.value.fix == "pip install datasets"
