"""Tables are refused as training text unless the user names a text column."""

from __future__ import annotations

import gzip
import shlex
from pathlib import Path

import pytest
import yaml

from train_jobs.artifacts.text_files import source_files
from train_jobs.config import DataError
from train_jobs.config.prepare import SourceConfig

ROWS = b"id,text\n1,one\n"


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "X.CSV", "my x.csv.gz"])
def test_table_is_refused_with_command_as_fix(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(ROWS) if name.endswith(".gz") else ROWS)
    for given in (path, f"{tmp_path}/*sv*" if name.islower() else f"{tmp_path}/*.CSV"):
        with pytest.raises(DataError, match="is a table, not text") as caught:
            source_files(SourceConfig(path=[str(given)]))
        first, *_, last = shlex.split(str(caught.value.fix).partition("give that file: ")[2])
        assert first == "--data"
        key, _, value = last.partition("=")
        assert key == "data.text"
        (source,) = yaml.safe_load(value)
        (file,) = source_files(SourceConfig.model_validate(source))
        assert (file.path, file.format) == (path, "text")


def test_folder_without_text_names_skipped_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no text in folder") as caught:
        source_files(SourceConfig(path=[str(tmp_path)]))
    assert "skipped" not in caught.value.facts
    for name in ("a.md", "b.md", "c.md", "d.md", ".hidden"):
        (tmp_path / name).write_bytes(b"text\n")
    with pytest.raises(DataError, match="no text in folder") as caught:
        source_files(SourceConfig(path=[str(tmp_path)]))
    assert caught.value.facts["skipped"] == "a.md, b.md, c.md and 1 more"
    (tmp_path / "e.tsv").write_bytes(ROWS)
    with pytest.raises(DataError, match="no text in folder") as caught:
        source_files(SourceConfig(path=[str(tmp_path)]))
    assert "format: text" in str(caught.value.fix)
