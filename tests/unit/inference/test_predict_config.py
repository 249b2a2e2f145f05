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


def test_one_file_is_a_list_of_one():
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
def test_tasks_are_known_however_they_are_spelled(written, task):
    assert config(task=written).task == task


def test_a_wrong_task_names_those_there_are():
    assert "text-classification, question-answering" in refused(task="regression")
    assert refused(task="fil-mask").endswith('(did you mean "fill-mask"?)')


@pytest.mark.parametrize(
    ("path", "form"),
    [("a.tsv", "tsv"), ("a.ndjson", "jsonl"), ("a.txt", "lines"), ("dev.json", "squad"), ("dev.conll", "conll")],
)
def test_the_name_of_a_file_tells_its_form(path, form):
    assert config(input=path).form(Path(path)) == form


def test_the_form_can_be_told():
    assert config(input="dev.out", data={"format": "csv"}).form(Path("dev.out")) == "csv"
    assert config(input="dev.out", task="MRPC").form(Path("dev.out")) == "tsv"
    assert "unknown format of dev.out: set data.format" in refused(input="dev.out")


def test_several_files_are_of_one_form():
    assert "csv, jsonl" in refused(input=["a.csv", "b.jsonl"])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"output": "found.xlsx"}, "must end in .jsonl, .tsv, .parquet, .npz"),
        ({"output": "found.npz", "task": "fill-mask"}, ".npz is only for embeddings"),
        ({"evaluate": True, "task": "embeddings"}, "embeddings have no reference to score against"),
        ({"data": {"text": "a", "pair": "a"}}, "columns must differ"),
        ({"data": {"question": "a", "context": "a"}}, "columns must differ"),
        ({"data": {"keep": ["id", "id"]}}, "keep contains a duplicate"),
        ({"input": []}, "at least 1 item"),
    ],
)
def test_what_cannot_be_is_refused(wrong, told):
    assert told in refused(**wrong)
