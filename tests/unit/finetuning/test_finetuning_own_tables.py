"""User tables: columns by name, classes from the training data, every bad row with its line."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from train_jobs.artifacts.layers import build, merge, read_text
from train_jobs.config import DataError
from train_jobs.config.finetune import ColumnsConfig
from train_jobs.readers.sentence_data import read_table_task

TEXT = ColumnsConfig()
NUMBER = ColumnsConfig(regression=True)


def put(path: Path, content: str) -> Path:
    path.write_bytes(content.encode())
    return path


def problems(columns: ColumnsConfig, **files: Path) -> list[str]:
    with pytest.raises(DataError) as caught:
        read_table_task(columns, files)
    return caught.value.problems or [str(caught.value)]


def test_classes_from_training_data_in_any_row_order(tmp_path: Path) -> None:
    train = put(tmp_path / "films.csv", "text,label\ngood one,pos\nbad one,neg\nso so,neu\n")
    dev = put(tmp_path / "dev.jsonl", '{"text": "fine", "label": "neu"}\n')
    task, splits = read_table_task(TEXT, {"train": train, "dev": dev})
    assert (task.name, task.labels, task.metrics, task.regression) == (
        *("films", ("neg", "neu", "pos"), ("accuracy",), False),
    )
    assert (splits["train"].labels, splits["dev"].labels) == ([2, 0, 1], [1])
    assert splits["train"].texts == ["good one", "bad one", "so so"]
    assert splits["train"].pairs is None


def test_numeric_classes_are_ordered_numerically(tmp_path: Path) -> None:
    train = put(tmp_path / "t.tsv", "text\tlabel\na\t10\nb\t9\nc\t-1\n")
    assert read_table_task(TEXT, {"train": train})[0].labels == ("-1", "9", "10")


@pytest.mark.parametrize(
    ("positive", "metrics", "number"),
    [
        (None, ("accuracy", "macro_f1"), 1),  # which label matters is not in the data
        ("cancer", ("accuracy", "f1"), 0),
        ("normal", ("accuracy", "f1"), 1),
    ],
)
def test_f1_of_two_classes_is_that_of_the_named_label(
    tmp_path: Path, positive: str | None, metrics: tuple[str, ...], number: int
) -> None:
    train = put(tmp_path / "t.tsv", "text\tlabel\na\tcancer\nb\tnormal\n")
    task, _ = read_table_task(ColumnsConfig(positive_label=positive), {"train": train})
    assert (task.metrics, task.positive) == (metrics, number)
    assert {"balanced_accuracy", "matthews", "auroc", "macro_f1"} <= {*task.metrics, *task.reported}


def test_positive_label_must_be_one_of_two_classes(tmp_path: Path) -> None:
    two = put(tmp_path / "t.tsv", "text\tlabel\na\tcancer\nb\tnormal\n")
    (problem,) = problems(ColumnsConfig(positive_label="cancr"), train=two)
    assert "data.positive_label 'cancr' is not a label (did you mean \"cancer\"?)" in problem
    three = put(tmp_path / "u.tsv", "text\tlabel\na\tcancer\nb\tnormal\nc\tbenign\n")
    (problem,) = problems(ColumnsConfig(positive_label="cancer"), train=three)
    assert "data.positive_label 'cancer' needs two labels, there are 3" in problem
    with pytest.raises(ValueError, match="positive_label names a class"):
        ColumnsConfig(positive_label="1", regression=True)


def test_classes_differing_in_space_or_case_reported(tmp_path: Path) -> None:
    train = put(tmp_path / "t.tsv", "text\tlabel\na\tpos\nb\tpos \nc\tneg\nd\tPos\n")
    task, splits = read_table_task(TEXT, {"train": train})
    assert task.labels == ("Pos", "neg", "pos", "pos ")
    message = "labels 'Pos', 'pos', 'pos ' differ only in white space or case; each is a class"
    assert splits["train"].notes == [f"{train}: {message}"]


def test_pairs_are_read_from_named_columns(tmp_path: Path) -> None:
    columns = ColumnsConfig(text="one", pair="two", label="same")
    train = put(tmp_path / "t.tsv", "two\tsame\tone\nb\tyes\ta\nd\tno\tc\n")
    _, splits = read_table_task(columns, {"train": train})
    assert (splits["train"].texts, splits["train"].pairs) == (["a", "c"], ["b", "d"])


def test_regression_targets_are_read(tmp_path: Path) -> None:
    train = put(tmp_path / "t.tsv", "text\tlabel\na\t1\nb\t-2.5e0\nc\t.5\n")
    task, splits = read_table_task(NUMBER, {"train": train})
    assert (task.regression, task.metrics) == (True, ("pearson", "spearman"))
    assert splits["train"].labels == [1.0, -2.5, 0.5]


@pytest.mark.parametrize("target", ["nan", "NaN", "", "inf", "-Infinity", "1e999", "three", "1_000", "0x1"])
def test_target_that_is_not_finite_is_named(tmp_path: Path, target: str) -> None:
    train = put(tmp_path / "t.tsv", f"text\tlabel\na\t1\nb\t{target}\nc\t2\n")
    shown = f"a text of {len(target)} characters" if target[:1].isdigit() or target == "three" else repr(target)
    assert problems(NUMBER, train=train) == [f"{train}:3: column 'label': {shown} is not a finite number"]


def test_nan_and_null_targets_are_refused(tmp_path: Path) -> None:
    train = put(tmp_path / "t.jsonl", '{"text": "a", "label": NaN}\n{"text": "b", "label": null}\n')
    assert [problem.split(": ", 1)[0] for problem in problems(NUMBER, train=train)] == [f"{train}:1", f"{train}:2"]
    assert [problem.split(": ", 1)[0] for problem in problems(TEXT, train=train)] == [f"{train}:1", f"{train}:2"]
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": ["a", "b", "c"], "label": [1.0, float("nan"), None]}), path)
    assert problems(TEXT, train=path) == [
        f"{path}:row 2: column 'label': invalid label: nan",
        f"{path}:row 3: column 'label': missing label",
    ]
    assert len(problems(NUMBER, train=path)) == 2


def test_integer_target_beyond_float_is_refused(tmp_path: Path) -> None:
    train = put(tmp_path / "t.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": ' + "9" * 400 + "}\n")
    (problem,) = problems(NUMBER, train=train)
    assert problem == f"{train}:2: column 'label': a value of type int is not a finite number"


@pytest.mark.parametrize("row", ['{"text": "b \\ud83d", "label": "x"}', '{"text": "b", "label": "\\uDE00x"}'])
def test_unpaired_surrogate_in_text_is_refused(tmp_path: Path, row: str) -> None:
    whole = '{"text": "a \\ud83d\\ude00", "label": "y"}'
    train = put(tmp_path / "t.jsonl", f"{whole}\n{row}\n")
    half = "d83d" if "d83d" in row else "de00"
    assert problems(TEXT, train=train) == [f"{train}:2: half a character: \\u{half} without its other half"]
    other = put(tmp_path / "u.jsonl", whole + '\n{"text": "b", "label": "x"}\n')
    assert read_table_task(TEXT, {"train": other})[1]["train"].texts[0] == "a \U0001f600"


def test_boolean_target_is_refused(tmp_path: Path) -> None:
    train = put(tmp_path / "t.jsonl", '{"text": "a", "label": true}\n')
    assert problems(NUMBER, train=train) == [f"{train}:1: column 'label': True is not a finite number"]


def test_classes_are_same_in_json_parquet_and_text(tmp_path: Path) -> None:
    train = put(tmp_path / "t.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n')
    dev = tmp_path / "dev.parquet"
    pq.write_table(pa.table({"text": ["a"], "label": [1.0]}), dev)
    task, splits = read_table_task(
        TEXT, {"train": train, "dev": dev, "test": put(tmp_path / "u.csv", "text,label\nx,1\n")}
    )
    assert task.labels == ("0", "1")
    assert splits["dev"].labels == splits["test"].labels == [1]
    train = put(tmp_path / "u.jsonl", '{"text": "a", "label": true}\n{"text": "b", "label": false}\n')
    assert read_table_task(TEXT, {"train": train})[0].labels == ("false", "true")


def test_label_only_in_dev_is_named_with_its_line(tmp_path: Path) -> None:
    train = put(tmp_path / "train.tsv", "text\tlabel\na\tpos\nb\tneg\n")
    dev = put(tmp_path / "dev.tsv", "text\tlabel\na\tpos\nb\tneq\n")
    (problem,) = problems(TEXT, train=train, dev=dev)
    assert problem.startswith(f"{dev}:3: the label, a text of 3 characters, is not in {train}")
    assert problem.endswith('(did you mean "neg"?)')


def test_rows_after_unlabelled_one_keep_line_numbers(tmp_path: Path) -> None:
    train = put(tmp_path / "train.tsv", "text\tlabel\na\tpos\nb\tneg\n")
    dev = put(tmp_path / "dev.tsv", "text\tlabel\na\t\nb\tother\n")
    first, second = problems(TEXT, train=train, dev=dev)
    assert (first, second[: len(f"{dev}:3: the label, a ")]) == (
        *(f"{dev}:2: column 'label': missing label", f"{dev}:3: the label, a "),
    )


def test_empty_texts_and_labels_are_named_together(tmp_path: Path) -> None:
    train = put(tmp_path / "t.tsv", "text\tpair\tlabel\na\tx\tpos\n \ty\tneg\nc\t\t\n")
    assert problems(ColumnsConfig(pair="pair"), train=train) == [f"{train}:4: column 'label': missing label"]
    train = put(tmp_path / "u.tsv", "text\tpair\tlabel\na\tx\tpos\n \ty\tneg\nc\t\tneg\n")
    assert problems(ColumnsConfig(pair="pair"), train=train) == [
        f"{train}:3: column 'text' has an empty text",
        f"{train}:4: column 'pair' has an empty text",
    ]


def test_value_that_is_not_text_is_named(tmp_path: Path) -> None:
    lines = '{"text": 5, "label": "a"}\n{"text": null, "label": "b"}\n'
    train = put(tmp_path / "t.jsonl", lines)
    assert problems(TEXT, train=train) == [
        f"{train}:1: column 'text' is not text: of type int",
        f"{train}:2: column 'text' is not text: missing",
    ]


def test_single_label_and_fractional_classes_are_refused(tmp_path: Path) -> None:
    train = put(tmp_path / "t.tsv", "text\tlabel\na\tx\nb\tx\n")
    assert "only one label" in problems(TEXT, train=train)[0]
    train = put(tmp_path / "u.tsv", "text\tlabel\na\t0.5\nb\t1\n")
    assert "--set data.regression=true" in problems(TEXT, train=train)[0]
    train = put(tmp_path / "v.tsv", "text\tlabel\na\t0.5\nb\tbeta\n")
    assert read_table_task(TEXT, {"train": train})[0].labels == ("0.5", "beta")


def test_labels_are_optional_only_in_test_set(tmp_path: Path) -> None:
    train = put(tmp_path / "t.tsv", "text\tlabel\na\tx\nb\ty\n")
    bare = put(tmp_path / "bare.tsv", "text\nc\n")
    _, splits = read_table_task(TEXT, {"train": train, "test": bare})
    assert (splits["test"].texts, splits["test"].labels) == (["c"], None)
    assert "unknown column 'label'" in problems(TEXT, train=train, dev=bare)[0]


def test_equal_columns_are_refused() -> None:
    with pytest.raises(Exception, match="must be different columns"):
        build(ColumnsConfig, merge([read_text("text: a\nlabel: a\n", "x.yaml")]))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("u.csv", "text,labels\nc,x\n", "labels"),
        ("u.tsv", "text\tLABEL\nc\tx\n", "LABEL"),
        ("u.jsonl", '{"text": "c", "lable": "x"}\n', "lable"),
    ],
)
def test_misspelled_label_column_is_suggested(tmp_path: Path, name: str, content: str, message: str) -> None:
    train = put(tmp_path / "t.csv", "text,label\na,x\nb,y\n")
    path = put(tmp_path / name, content)
    test = read_table_task(TEXT, {"train": train, "test": path})[1]["test"]
    assert test.labels is None
    assert test.notes == [f"{path}: missing column 'label' (did you mean \"{message}\"?): read as a set without labels"]


def test_partially_labelled_test_set_is_refused(tmp_path: Path) -> None:
    train = put(tmp_path / "t.csv", "text,label\na,x\nb,y\n")
    bare = put(tmp_path / "bare.csv", "text,id\nc,1\n")
    assert read_table_task(TEXT, {"train": train, "test": bare})[1]["test"].notes == []
    near = ColumnsConfig(text="labels")
    named = put(tmp_path / "n.csv", "labels,label\na,x\nb,y\n")
    assert (
        read_table_task(near, {"train": named, "test": put(tmp_path / "o.csv", "labels\nc\n")})[1]["test"].notes == []
    )
    some = put(tmp_path / "u.jsonl", '{"text": "c", "label": "x"}\n{"text": "d"}\n')
    assert problems(TEXT, train=train, test=some) == [f"{some}:2: missing column 'label'; have text"]
    wrong = put(tmp_path / "w.csv", "text,label\nc,z\n")
    assert problems(TEXT, train=train, test=wrong)[0].startswith(
        f"{wrong}:2: the label, a text of 1 character, is not in {train}"
    )


def test_missing_parquet_column_lists_columns(tmp_path: Path) -> None:
    train = put(tmp_path / "t.csv", "text,label\na,x\nb,y\n")
    pq.write_table(pa.table({"text": ["c"], "Label": ["x"]}), tmp_path / "u.parquet")
    assert (
        'did you mean "Label"?'
        in read_table_task(TEXT, {"train": train, "test": tmp_path / "u.parquet"})[1]["test"].notes[0]
    )
