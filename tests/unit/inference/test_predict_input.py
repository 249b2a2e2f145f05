"""Input of every format, row by row; unusable rows are reported with file and line before the job starts."""

from __future__ import annotations

import errno
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from train_jobs.config import DataError, PredictConfig, SpecError
from train_jobs.inference.input_windows import open_readers, read_input
from train_jobs.tasks.entities.conll import read_conll

TEXTS = ["one", 'a "quote", and', "three\u2028lines", "fünf ", "tail"]


def open_input(path, columns=("text",), *, check=lambda table, problems: None, window=2, characters=10**6, **keys):
    data = {"text": columns[0], "keep": columns[1:], **keys.pop("data", {})}
    readers = open_readers(PredictConfig(model="model", input=path, data=data, **keys), "token-classification")
    return read_input(readers, check, rows=window, characters=characters)


def read(found, column="text"):
    """Return all windows, read independently, the last one first."""
    tables = [found.read(window) for window in reversed(found.windows)]
    assert [len(table) for table in tables] == [window.rows for window in reversed(found.windows)]
    return [value for table in reversed(tables) for value in table.columns[column]]


def refused(*arguments, **keys):
    with pytest.raises(DataError) as failure:
        open_input(*arguments, **keys)
    return str(failure.value)


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_lines_are_read(tmp_path):
    assert read(open_input(write(tmp_path / "a.txt", "\n".join(TEXTS)))) == TEXTS


def test_json_lines_are_read(tmp_path):
    rows = "".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(TEXTS))
    found = open_input(write(tmp_path / "a.jsonl", rows), ("text", "id"))
    assert (read(found), read(found, "id"), found.rows) == (TEXTS, [0, 1, 2, 3, 4], 5)


def test_tsv_has_no_quoting_and_ignores_bom_and_crlf(tmp_path):
    rows = "\ufefftext\tid\r\n" + "".join(f"{text}\t{number}\r\n" for number, text in enumerate(TEXTS))
    found = open_input(write(tmp_path / "a.tsv", rows), ("text", "id"))
    assert (read(found), read(found, "id")) == (TEXTS, list("01234"))


def test_csv_quotes_may_contain_line_ends(tmp_path):
    rows = 'id,text\n0,"a\nb, ""c"""\n1,"two\r\nlines"\n2,three\n3,"\n"\n'
    found = open_input(write(tmp_path / "a.csv", rows), ("text",), window=1)
    assert read(found) == ['a\nb, "c"', "two\r\nlines", "three", "\n"]
    assert [found.read(window).lines for window in found.windows] == [[2], [4], [6], [7]]


def test_table_without_header_uses_given_columns(tmp_path):
    path = write(tmp_path / "a.tsv", "x\t1\ny\t2\nz\t3\n")
    found = open_input(path, ("text",), data={"header": ["text", "label"]})
    assert read(found) == ["x", "y", "z"]


def test_parquet_with_several_row_groups_is_read(tmp_path):
    numbers = list(range(2500))
    table = pa.table({"id": numbers, "text": [f"t{number}" for number in numbers]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1100)
    found = open_input(tmp_path / "a.parquet", ("text", "id"), window=700)
    assert read(found, "id") == numbers
    assert found.read(found.windows[2]).where(0).endswith("a.parquet:row 1401")


def test_conll_words_keep_other_white_space(tmp_path):
    path = write(tmp_path / "a.conll", "1\u00a0000  O\n2\u2009000\tB-LOC \n\u00a0 O\n")
    found = open_input(path, evaluate=True)
    assert read(found, "words") == read_conll(path).words == [["1\u00a0000", "2\u2009000", "\u00a0"]]
    assert read(found, "tags") == [["O", "B-LOC", "O"]]


def test_conll_sentences_are_read(tmp_path):
    text = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n\nPeter NNP B-PER\n"
    found = open_input(write(tmp_path / "a.conll", text), evaluate=True, window=1)
    assert read(found, "words") == [["EU", "rejects"], ["Peter"]]
    assert read(found, "tags") == [["B-ORG", "O"], ["B-PER"]]
    assert [window.place.line for window in found.windows] == [3, 7]


def test_word_and_tag_columns_are_configurable(tmp_path):
    path = write(tmp_path / "a.conll", "1 EU B-ORG NNP\n2 rejects O VBZ\n")
    found = open_input(path, evaluate=True, data={"word_column": 2, "tag_column": 3})
    assert (read(found, "words"), read(found, "tags")) == ([["EU", "rejects"]], [["B-ORG", "O"]])
    assert read(open_input(path, data={"word_column": 2}), "words") == [["EU", "rejects"]]
    assert "4 columns, need 5" in refused(path, data={"word_column": 5})


def test_unreadable_file_is_reported(tmp_path, monkeypatch):
    path = write(tmp_path / "a b.txt", "one\n")
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may read anything
        monkeypatch.setattr("train_jobs.readers.row_readers.open_regular", denied)
    message = refused(path)
    assert f"cannot read {path}" in message
    assert f"chmod u+r '{path}'" in message


def denied(path):
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_several_files_form_one_input(tmp_path):
    paths = [write(tmp_path / f"{name}.txt", f"{name}1\n{name}2\n{name}3\n") for name in "ab"]
    found = open_input(paths)
    assert read(found) == ["a1", "a2", "a3", "b1", "b2", "b3"]
    assert [window.first for window in found.windows] == [0, 2, 3, 5]


def test_long_texts_shrink_windows_and_are_reported(tmp_path):
    path = write(tmp_path / "a.txt", "".join("w " * 60_000 + "\n" for _ in range(5)))
    found = open_input(path, window=100, characters=250_000)
    assert [window.rows for window in found.windows] == [2, 2, 1]
    assert found.notes[0] == f"{path}:1: a text of 120,000 characters"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "one\n\nthree\n", ":2: an empty row"),
        ("a.tsv", "text\tid\nx\t1\ny\n", ":3: 0 tabs, need 1"),
        ("a.tsv", "text\tid\nx\t1\t2\n", ":2: 2 tabs, need 1"),
        ("a.tsv", "text\tid\nx\t1\n\n", ":3: an empty row"),
        ("a.csv", 'text,id\n"x",1\ny,1,2\n', ":3: 2 commas, need 1"),
        ("a.csv", 'text,id\nx,1\n"y,1\n', "unbalanced quotation marks"),
        ("a.jsonl", '{"text": "x"}\n{"test": "y"}\n', ":2: missing column 'text'; have test"),
        ("a.jsonl", '{"text": "x"}\nnull\n', ":2: not a JSON object"),
        ("a.tsv", "words\tid\nx\t1\n", "unknown column 'text'"),
        ("a.txt", b"one\ntw\xf6\n", ":2, byte 6 of the file"),
        ("a.txt", "one\n".encode("utf-16"), "is UTF-16, not UTF-8"),
        ("a.txt", "one\rtwo\r", "its lines end with CR alone"),
        ("a.csv", "text,id\rx,1\r", "its lines end with CR alone"),
        ("a.jsonl", '{"text": "x"}\n{"text": "\\ud83d"}\n', ":2: half a character"),
        ("a.txt", "", "has no row"),
        ("a.tsv", "text\n", "has no row"),
        ("a.conll", "EU B-ORG\nrejects\n\nPeter B-PER\n", ":1: line 2: 1 columns, need 2"),
        ("a.parquet", "PAR1", "cannot read"),
    ],
)
def test_invalid_row_is_named(tmp_path, name, content, message):
    assert message in refused(write(tmp_path / name, content))


def test_all_invalid_rows_are_named_together(tmp_path):
    path = write(tmp_path / "a.tsv", "text\tid\n" + "x\n" * 12 + "y\t1\n")
    message = refused(path)
    assert f"{path}:2: 0 tabs" in message
    assert f"{path}:11: 0 tabs" in message
    assert "and 2 more" in message


def test_missing_file_and_file_of_other_format_refused(tmp_path):
    assert "no such file" in refused(tmp_path / "a.txt")
    config = PredictConfig(model="model", input=write(tmp_path / "a.conll", "EU O\n"))
    with pytest.raises(SpecError, match="cannot read the format conll for question-answering"):
        open_readers(config, "question-answering")


def test_lines_have_no_columns(tmp_path):
    with pytest.raises(SpecError, match="it has one text per line"):
        open_input(write(tmp_path / "a.txt", "one\n"), ("text", "id"))
