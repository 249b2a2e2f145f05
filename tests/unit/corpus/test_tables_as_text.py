"""A column of a table is text to train on: one document a row. Other tables are refused with the columns they have."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from train_jobs.artifacts.text_files import source_files
from train_jobs.artifacts.text_sample import sample_source
from train_jobs.config import DataError
from train_jobs.config.prepare import SourceConfig
from train_jobs.corpus.sources.text_parts import plan_parts, read_part

NOTES = ["one note", 'a "quoted" note, with a comma', "a note\nof two lines", "Größe"]


def documents(source: SourceConfig) -> list[str]:
    return [text for part in plan_parts([source]) for text in read_part([source], part)]


def csv_text() -> str:
    quoted = ['"' + note.replace('"', '""') + '"' for note in NOTES]
    return "id,note\n" + "".join(f"{number},{note}\n" for number, note in enumerate(quoted))


@pytest.mark.parametrize("name", ["x.csv", "X.CSV", "my x.csv.gz"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_rows_of_a_csv_are_documents(tmp_path: Path, name: str, ends: str) -> None:
    path, content = tmp_path / name, csv_text().replace("\n", ends).encode("utf-8-sig")
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    source = SourceConfig(path=[str(path)], column="note")
    assert [text.replace("\r\n", "\n") for text in documents(source)] == NOTES
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"note": note}) + "\n" for note in NOTES))
    assert documents(SourceConfig(path=[str(tmp_path / "x.jsonl")], column="note")) == NOTES
    assert sample_source(source).text.split() == " ".join(NOTES).split()


def test_rows_of_a_tsv_are_documents_without_quoting(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text('text\tid\n"a note\t1\n\t2\nanother "\t3\n')
    assert documents(SourceConfig(path=[str(tmp_path / "x.tsv")])) == ['"a note', 'another "']


def test_folder_gives_its_tables_on_request(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\none\n")
    (tmp_path / "b.txt").write_text("two\n")
    assert documents(SourceConfig(path=[str(tmp_path)])) == ["two"]
    assert documents(SourceConfig(path=[str(tmp_path)], format="csv")) == ["one"]


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_table_without_the_column_names_its_columns(tmp_path: Path, name: str) -> None:
    path, content = tmp_path / name, b"id,note\n1,a long note\n"
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError, match=r"no column 'text'; have id, note") as caught:
        source_files(SourceConfig(path=[str(path)]))
    assert caught.value.fix == f"--data {path} --column note"


@pytest.mark.parametrize(
    ("rows", "message", "line"),
    [
        ('text,id\n"one\ntwo', "unbalanced quotation marks", "before line 3"),
        ("text,id\none,1\ntwo\n", "a row has 1 fields, and the header 2", "line 3"),
    ],
)
def test_broken_table_is_refused_with_its_line(tmp_path: Path, rows: str, message: str, line: str) -> None:
    (tmp_path / "x.csv").write_text(rows)
    with pytest.raises(DataError, match=message) as caught:
        documents(SourceConfig(path=[str(tmp_path / "x.csv")]))
    assert caught.value.facts["where"] == line


def test_folder_without_text_names_skipped_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no text in folder") as caught:
        source_files(SourceConfig(path=[str(tmp_path)]))
    assert "skipped" not in caught.value.facts
    for name in ("a.md", "b.md", "c.md", "d.md", ".hidden"):
        (tmp_path / name).write_bytes(b"text\n")
    with pytest.raises(DataError, match="no text in folder") as caught:
        source_files(SourceConfig(path=[str(tmp_path)]))
    assert caught.value.facts["skipped"] == "a.md, b.md, c.md and 1 more"
    assert caught.value.fix == f"--data '{tmp_path}/**/*.md'"
    (tmp_path / "e.tsv").write_bytes(b"id\ttext\n1\tone\n")
    with pytest.raises(DataError, match="no text in folder") as caught:
        source_files(SourceConfig(path=[str(tmp_path)]))
    assert caught.value.fix == f"--data {tmp_path / 'e.tsv'} --column NAME"
