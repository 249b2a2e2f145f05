"""Tables of every format: odd contents are read and reported, invalid rows are named with their line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from train_jobs.config import DataError
from train_jobs.config.finetune import ColumnsConfig
from train_jobs.readers.table_check import check_tables
from train_jobs.readers.tables import RowTable, read_table

ROWS = [("1", 'He said "no', "a\u2028b"), ("0", '"Yes', "c"), ("1", "na\u00efve", "d")]
COLUMNS = ["label", "first", "second"]


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def tsv(rows: list[tuple[str, ...]], newline: str = "\n", *, end: bool = True) -> str:
    lines = ["\t".join(row) for row in [tuple(COLUMNS), *rows]]
    return newline.join(lines) + (newline if end else "")


def rows_of(table: RowTable) -> list[tuple[str, ...]]:
    return list(zip(*table.columns.values(), strict=True))


def refusal(path: Path, columns: list[str] = COLUMNS, **options: object) -> DataError:
    with pytest.raises(DataError) as caught:
        read_table(path, columns, **options)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", [True, False])
def test_tsv_is_read_without_quoting(tmp_path: Path, newline: str, mark: str, end: bool) -> None:
    path = put(tmp_path / "t.tsv", mark + tsv(ROWS, newline, end=end))
    table = read_table(path, COLUMNS)
    assert rows_of(table) == ROWS
    assert table.lines == [2, 3, 4]
    assert table.where(1) == f"{path}:3"
    count = 4 if end else 3
    expected_notes = [f"{path}:1: a byte-order mark, which is not part of the first column"] if mark else []
    expected_notes += [f"{path}:1: {count} lines end with CRLF, read as LF"] if newline == "\r\n" else []
    assert table.notes == expected_notes


def test_unbalanced_quotes_do_not_merge_rows(tmp_path: Path) -> None:
    path = put(tmp_path / "t.tsv", tsv(ROWS))
    with path.open(encoding="utf-8", newline="") as stream:
        assert len(list(csv.reader(stream, delimiter="\t"))) < 1 + len(ROWS), "what this is about"
    assert len(read_table(path, COLUMNS)) == len(ROWS)


def test_only_requested_columns_read_in_order(tmp_path: Path) -> None:
    table = read_table(put(tmp_path / "t.tsv", tsv(ROWS)), ["second", "label"])
    assert table.columns == {"second": ["a\u2028b", "c", "d"], "label": ["1", "0", "1"]}


def test_columns_are_given_if_file_has_no_header(tmp_path: Path) -> None:
    path = put(tmp_path / "t.tsv", "x\t1\ny\t0")
    table = read_table(path, ["label"], header=("text", "label"))
    assert (table.columns, table.lines) == ({"label": ["1", "0"]}, [1, 2])


def test_invalid_rows_are_all_named_with_lines(tmp_path: Path) -> None:
    path = put(tmp_path / "t.tsv", "label\ttext\n1\ta\n0\n\n1\tb\tc\n\t\n0\td\n")
    error = refusal(path, ["label", "text"])
    assert error.problems == [
        f"{path}:3: 0 tabs, need 1",
        f"{path}:4: an empty row",
        f"{path}:5: 2 tabs, need 1",
        f"{path}:6: an empty row",
    ]
    assert f"{path}:4: an empty row" in str(error)


def test_many_invalid_rows_show_first_ten(tmp_path: Path) -> None:
    path = put(tmp_path / "t.tsv", "label\ttext\n" + "1\n" * 25)
    problems = refusal(path, ["label"]).problems
    assert (len(problems), problems[9], problems[10]) == (11, f"{path}:11: 0 tabs, need 1", "and 15 more")


def test_skipped_rows_are_reported(tmp_path: Path) -> None:
    path = put(tmp_path / "t.tsv", "label\ttext\n1\ta\nnot this\n0\tb\n")
    table = read_table(path, ["label", "text"], skip_malformed=True)
    assert rows_of(table) == [("1", "a"), ("0", "b")]
    assert table.lines == [2, 4]
    assert table.notes == [f"{path}:3: skipped: 0 tabs, need 1"]


def test_empty_row_is_never_skipped(tmp_path: Path) -> None:
    assert refusal(put(tmp_path / "t.tsv", "a\tb\n1\t2\n\n"), ["a"], skip_malformed=True).problems


@pytest.mark.parametrize("name", ["t.tsv", "t.csv", "t.parquet"])
def test_missing_column_lists_existing_ones(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "t.parquet":
        pq.write_table(pa.table({"label": [1], "sentence": ["x"]}), path)
    else:
        put(path, "label\tsentence\n1\tx\n".replace("\t", "," if name == "t.csv" else "\t"))
    error = refusal(path, ["label", "sentense"])
    assert "unknown column 'sentense' (did you mean \"sentence\"?)" in error.message
    assert str(path) in error.message
    assert error.facts["have"] == "label, sentence"


def test_duplicate_columns_are_refused(tmp_path: Path) -> None:
    assert "duplicate columns: a" in refusal(put(tmp_path / "t.tsv", "a\ta\n1\t2\n"), ["a"]).message


def test_csv_quotes_may_contain_commas_quotes_and_lines(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", 'text,label\r\n"a, ""b""\nc",1\r\nd,0')
    table = read_table(path, ["text", "label"])
    assert rows_of(table) == [('a, "b"\nc', "1"), ("d", "0")]
    assert table.lines == [2, 4]


def test_unbalanced_csv_quotes_named_at_their_start(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", 'text,label\na,1\n"b,0\nc,1\n')
    assert refusal(path, ["text"]).facts["where"] == f"{path}:3"
    path = put(tmp_path / "u.csv", 'text,label\n"b,0\n"c,1\n')
    assert refusal(path, ["text"]).facts["where"] == f"{path}:2"


def test_quoting_can_be_set_either_way(tmp_path: Path) -> None:
    assert read_table(put(tmp_path / "t.csv", 'a,b\n"x,1\n'), ["a"], quoting=False).columns == {"a": ['"x']}
    assert read_table(put(tmp_path / "t.tsv", 'a\tb\n"x\ty"\t1\n'), ["a"], quoting=True).columns == {"a": ["x\ty"]}


def test_carriage_return_in_field_does_not_end_row(tmp_path: Path) -> None:
    assert read_table(put(tmp_path / "t.tsv", "a\tb\nx\ry\t1\n"), ["a"]).columns == {"a": ["x\ry"]}
    assert refusal(put(tmp_path / "t.csv", "a,b\nx\ry,1\n"), ["a"]).facts["where"] == f"{tmp_path}/t.csv:2"


@pytest.mark.parametrize("name", ["t.tsv", "t.csv", "t.jsonl"])
def test_text_of_million_characters_is_read_and_reported(tmp_path: Path, name: str) -> None:
    text = "ab " * 333_333 + "c"
    content = {"t.jsonl": json.dumps({"a": text, "b": 1}) + "\n", "t.csv": f'a,b\n"{text}",1\n'}
    path = put(tmp_path / name, content.get(name, f"a\tb\n{text}\t1\n"))
    csv.field_size_limit(131_072)
    table = read_table(path, ["a", "b"])
    assert table.columns["a"] == [text]
    line = 1 if name == "t.jsonl" else 2
    assert table.notes == [f"{path}:{line}: a text of 1,000,000 characters, truncated to the maximum length"]
    assert csv.field_size_limit() == 131_072


def test_json_lines_are_read(tmp_path: Path) -> None:
    path = put(tmp_path / "t.jsonl", '{"a": "x", "b": 1}\n{"b": true, "a": null}')
    table = read_table(path, ["a", "b"])
    assert (rows_of(table), table.lines) == ([("x", 1), (None, True)], [1, 2])
    path = put(tmp_path / "u.jsonl", '{"a": 1}\n\n[1]\n{"a":\n{"b": 2}\n')
    problems = refusal(path, ["a"]).problems
    assert [problem.split(": ")[0] for problem in problems] == [f"{path}:{line}" for line in (2, 3, 4, 5)]
    assert [problem.split(": ")[1] for problem in problems] == [
        *("an empty row", "not a JSON object, but of type list", "not JSON", "missing column 'a'; have b"),
    ]


def test_parquet_names_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": ["x", "y"], "b": [1.5, None], "c": [0, 0]}), path)
    table = read_table(path, ["b", "a"])
    assert rows_of(table) == [(1.5, "x"), (None, "y")]
    assert table.where(1) == f"{path}:row 2"
    assert "cannot read" in refusal(put(tmp_path / "u.parquet", b"PAR1 not really"), ["a"]).message


@pytest.mark.parametrize("name", ["t.tsv", "t.parquet"])
def test_missing_file_is_reported(tmp_path: Path, name: str) -> None:
    assert "no such file" in refusal(tmp_path / name).message


@pytest.mark.parametrize("name", ["t.tsv", "t.csv"])
def test_bare_carriage_return_line_ends_are_reported(tmp_path: Path, name: str) -> None:
    error = refusal(put(tmp_path / name, "label,second\r1,a\r"), ["label"])
    assert error.message == f"cannot read {tmp_path / name}: its lines end with CR alone"
    assert error.facts["where"] == f"{tmp_path / name}:1"


def test_carriage_return_in_a_csv_row_is_reported(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", b"label,second\n1,a\rb\n")
    error = refusal(path, ["label"])
    assert error.message == f"cannot read {path}: a carriage return in a field without quotation marks"
    assert (error.facts["where"], str(error.fix)[:7]) == (f"{path}:2", "sed 's/")


def test_invalid_utf8_is_named_with_line(tmp_path: Path) -> None:
    path = put(tmp_path / "t.tsv", b"a\tb\nx\t1\n" + "caf\u00e9\t1\n".encode("latin1"))
    error = refusal(path, ["a"])
    assert error.facts["where"] == f"{path}:3, byte 11 of the file"
    assert error.fix == f"iconv -f latin1 -t utf-8 {path} > t.utf8.tsv"
    path = put(tmp_path / "u.tsv", "a\tb\n".encode("utf-16"))
    assert "UTF-16" in refusal(path, ["a"]).message


@pytest.mark.parametrize("content", ["", "a\tb\n"])
def test_table_without_rows_is_refused(tmp_path: Path, content: str) -> None:
    refusal(put(tmp_path / "t.tsv", content), ["a"])


def test_file_of_unknown_format_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "t.dat", "a\tb\nx\t1\n")
    assert "unknown table format" in refusal(path, ["a"]).message
    assert read_table(path, ["a"], format="tsv").columns == {"a": ["x"]}


WIDE = [f"column{number}" for number in range(100_000)]  # comparing each with all others takes minutes


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_table_of_many_columns_is_read_in_linear_time(tmp_path: Path, suffix: str) -> None:
    path, separator = tmp_path / f"wide.{suffix}", "," if suffix == "csv" else "\t"
    path.write_text(separator.join(["text", *WIDE]) + "\n" + separator.join(["a", *["1"] * len(WIDE)]) + "\n")
    assert read_table(path, ["text", "column99999"]).columns == {"text": ["a"], "column99999": ["1"]}
    with pytest.raises(DataError) as refused:
        read_table(path, ["text", "columm29"])
    assert refused.value.facts["have"].startswith("text, column0, column1, ")
    assert refused.value.facts["have"].endswith(", column8 and 99,991 more")


def test_row_of_many_fields_is_named_by_few(tmp_path: Path) -> None:
    path = tmp_path / "wide.jsonl"
    path.write_text(json.dumps(dict.fromkeys(WIDE, 1)) + "\n")
    with pytest.raises(DataError) as refused:
        read_table(path, ["text"])
    assert "column9 and 99,990 more" in str(refused.value)
    assert len(str(refused.value)) < 500


def test_check_of_many_columns_is_linear(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text(",".join(WIDE) + "\n" + ",".join(["1"] * len(WIDE)) + "\n")
    with pytest.raises(DataError) as refused:
        check_tables(ColumnsConfig(), {"train": path})
    assert len(str(refused.value)) < 1000
