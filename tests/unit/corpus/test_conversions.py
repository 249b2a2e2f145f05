"""The commands that make readable files of others are run on real files; what they write is read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from train_jobs.artifacts.conversions import ARROW, PDF, WORD, ZIP, file_conversion, folder_conversion

TABLE = pa.table({"text": ["one", "two"], "label": ["a", "b"]})


def run(command: str | None) -> None:
    assert command is not None
    here = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # `python` is the one that runs the tests
    subprocess.run(command, shell=True, check=True, env={**os.environ, "PATH": here})


def test_arrow_file_becomes_parquet(tmp_path: Path) -> None:
    path = tmp_path / "the table's.feather"
    pyarrow.feather.write_feather(TABLE, path)
    run(file_conversion(str(path), path.suffix, ARROW))
    assert pq.read_table(path.with_suffix(".parquet")) == TABLE


@pytest.mark.skipif(shutil.which("unzip") is None, reason="unzip is not installed")
def test_archive_is_unpacked_next_to_it(tmp_path: Path) -> None:
    path = tmp_path / "my notes.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "one")
    run(file_conversion(str(path), path.suffix, ZIP))
    assert (tmp_path / "my notes" / "a.txt").read_text() == "one"


@pytest.mark.parametrize("splits", [False, True])
def test_saved_dataset_becomes_parquet(tmp_path: Path, splits: bool) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    folder, one = tmp_path / "saved", datasets.Dataset.from_dict(TABLE.to_pydict())
    (datasets.DatasetDict({"train": one, "test": one}) if splits else one).save_to_disk(folder)
    run(folder_conversion(folder, ()))
    written = [tmp_path / "saved-parquet" / f"{name}.parquet" for name in ("train", "test")]
    for path in written if splits else [tmp_path / "saved.parquet"]:
        assert pq.read_table(path).to_pydict() == TABLE.to_pydict()


def test_most_frequent_documents_of_a_folder_are_converted(tmp_path: Path) -> None:
    files = [tmp_path / "a.PDF", tmp_path / "b.PDF", tmp_path / "c.docx", tmp_path / "d.bin", tmp_path / "e.bin"]
    for path in files:
        path.write_text(path.name)
    command = folder_conversion(tmp_path, files)
    assert command is not None
    run(command.replace("-exec pdftotext ", "-exec cp "))  # as it is called: from, to
    assert (tmp_path / "b.PDF.txt").read_text() == "b.PDF"
    assert folder_conversion(tmp_path, files[3:]) is None


def test_paths_with_signs_are_quoted() -> None:
    assert file_conversion("a b.pdf", ".pdf", PDF) == "pdftotext 'a b.pdf' 'a b.txt'"
    assert file_conversion("a.docx", ".docx", WORD) == "pandoc a.docx -t plain --wrap=none -o a.txt"
    assert file_conversion("a.bin", ".bin", "a binary file") is None
