"""A column of a table is text to train on: one document a row. Other tables are refused with the columns they have."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path

import pytest

from train_jobs.artifacts.text_files import source_files
from train_jobs.artifacts.text_sample import sample_source
from train_jobs.config import DataError
from train_jobs.config.prepare import SourceConfig
from train_jobs.corpus.sources.text_parts import plan_parts, read_part
from train_jobs.readers.text_check import check_text

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


def test_table_with_the_column_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("id,text,text\n1,draft,final\n")
    with pytest.raises(DataError, match="the column 'text' 2 times"):
        documents(SourceConfig(path=[str(tmp_path / "x.csv")]))


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


@pytest.mark.parametrize(
    ("name", "content", "message", "fix"),
    [
        (
            "x.csv",
            "text;label\na note;1\n",
            "separated by semicolons",
            "pd.read_csv('x.csv', sep=';').to_csv('x.fixed.csv'",
        ),
        (
            "x.csv.gz",
            "id|text\n1|a note\n",
            "separated by vertical bars",
            "sep='|').to_csv('x.fixed.csv', index=False)",
        ),
        ("x.csv", "id\ttext\n1\ta note\n", "separated by tabs", "cp x.csv x.tsv; then --data x.tsv"),
        ("x.tsv.gz", "id,text\n1,a note\n", "separated by commas", "cp x.tsv.gz x.csv.gz; then --data x.csv.gz"),
        (
            "x.tsv",
            '"id"\t"text"\n"1"\t"a note"\n',
            "the fields are quoted",
            "pd.read_table('x.tsv').to_csv('x.fixed.csv'",
        ),
        ("x.csv", "id,text\r1,a note\r", "its lines end with CR alone", "tr '\\r' '\\n' < x.csv > x.lf.csv"),
        (
            "x.tsv.gz",
            "text\tid\ra note\t1\r",
            "its lines end with CR alone",
            "gzip -dc x.tsv.gz | tr '\\r' '\\n' > x.lf.tsv",
        ),
        ("x.csv", 'id,"text\n1,a note\n', "unbalanced quotation marks", "double a quotation mark"),
    ],
)
def test_table_of_another_form_has_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, message: str, fix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    with pytest.raises(DataError, match=f"{name}:1: .*{message}") as caught:
        source_files(SourceConfig(path=[name]))
    assert fix in str(caught.value.fix)


def test_prose_in_the_first_line_is_no_other_form(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("A first note, which is long; it has signs\nA second note\n")
    with pytest.raises(DataError, match="no column 'text'; have 1 columns"):
        source_files(SourceConfig(path=[str(tmp_path / "x.tsv")]))


def test_carriage_return_in_a_csv_is_named_and_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_bytes(b'text,id\r\none,1\r\na\r\rnote,2\r\n"quoted\r\nlines",3\r\n')
    source = SourceConfig(path=["x.csv"])
    with pytest.raises(DataError, match=r"x\.csv:3: a carriage return in a field without quotation marks") as caught:
        check_text([source])
    with pytest.raises(DataError, match="a carriage return in a field without quotation marks") as in_job:
        documents(source)
    assert (in_job.value.facts["where"], in_job.value.fix) == ("line 3", caught.value.fix)
    subprocess.run(["bash", "-c", str(caught.value.fix)], check=True)
    assert documents(SourceConfig(path=["x.lf.csv"])) == ["one", "a note", "quoted\r\nlines"]


def test_carriage_return_in_a_tsv_is_text(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_bytes(b"text\tid\r\na\rnote\t1\r\n\r\nb\t2\r\n")
    source = SourceConfig(path=[str(tmp_path / "x.tsv")])
    assert check_text([source]).text() == "all of 1 file"
    assert documents(source) == ["a\rnote", "b"]


@pytest.mark.parametrize(("name", "separator"), [("x.csv", ","), ("x.tsv", "\t")])
def test_utf16_table_is_read(tmp_path: Path, name: str, separator: str) -> None:
    path = tmp_path / name
    path.write_bytes(f"id{separator}note\n1{separator}Größe\n".encode("utf-16"))
    source = SourceConfig(path=[str(path)], column="note")
    assert (check_text([source]).text(), documents(source)) == ("all of 1 file", ["Größe"])
    with pytest.raises(DataError, match="no column 'text'; have id, note") as caught:
        source_files(SourceConfig(path=[str(path)]))
    assert caught.value.fix == f"--data {path} --column note"


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
