from pathlib import Path

import pytest
from pydantic import ValidationError

from train_jobs.config import PredictConfig


def config(**more):
    return PredictConfig(**{"model": "model", "input": "rows.csv", **more})


def refused(**more):
    with pytest.raises(ValidationError) as failure:
        config(**more)
    return failure.value.errors()[0]["msg"]


def test_single_input_file_becomes_list():
    assert config(input="a.csv").input == config(input=["a.csv"]).input == [Path("a.csv")]


@pytest.mark.parametrize(
    ("written", "task"),
    [
        ("auto", "auto"),
        ("Question_Answering", "question-answering"),
        ("sst2", "SST-2"),
        ("squad2", "question-answering"),
        ("ner", "token-classification"),
    ],
)
def test_task_name_ignores_spelling(written, task):
    assert config(task=written).task == task


def test_unknown_task_lists_known_ones():
    assert "text-classification, question-answering" in refused(task="regression")
    assert refused(task="fil-mask").endswith('(did you mean "fill-mask"?)')


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("a.tsv", "tsv"),
        ("A.CSV", "csv"),
        ("a.ndjson", "jsonl"),
        ("a.txt", "lines"),
        ("dev.json", "squad"),
        ("dev.conll", "conll"),
    ],
)
def test_input_format_is_derived_from_file_name(path, form):
    assert config(input=path).form(Path(path)) == form


def test_json_has_objects_in_lines_except_for_questions():
    assert config(input="notes.json").form(Path("notes.json"), "text-classification") == "jsonl"
    assert config(input="dev.json").form(Path("dev.json"), "question-answering") == "squad"


def test_input_format_can_be_set():
    assert config(input="dev.out", data={"format": "csv"}).form(Path("dev.out")) == "csv"
    assert config(input="dev.out", task="MRPC").form(Path("dev.out")) == "tsv"
    assert "unknown format of dev.out: set data.format" in refused(input="dev.out")


def test_input_files_must_have_same_format():
    assert "csv, jsonl" in refused(input=["a.csv", "b.jsonl"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"output": "found.xlsx"}, "must end in .jsonl, .csv, .tsv, .parquet, .npz"),
        ({"output": "found.npz", "task": "fill-mask"}, ".npz is only for embeddings"),
        ({"output": "found.npz", "data": {"keep": ["id"]}}, "data.keep: .npz holds only embeddings"),
        ({"evaluate": True, "task": "embeddings"}, "embeddings have no reference to score against"),
        ({"data": {"text": "a", "pair": "a"}}, "columns must differ"),
        ({"data": {"question": "a", "context": "a"}}, "columns must differ"),
        ({"data": {"keep": ["id", "id"]}}, "keep contains a duplicate"),
        ({"input": []}, "at least 1 item"),
    ],
)
def test_invalid_combination_is_refused(wrong, message):
    assert message in refused(**wrong)
