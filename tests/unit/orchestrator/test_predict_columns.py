"""Predictions of a tuned model read tables as its training did, unless the spec has other settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.jobs.resolve import resolve_spec
from orchestrator.specs.resolved import Flag, Resolved
from tests.conftest import write_bert
from train_jobs.artifacts.lineage import LINEAGE_FILE, FinetuneFacts, Lineage, Link
from train_jobs.predict import read_config

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
REVIEWS = {"text": "review", "pair": None, "label": "stars", "train": "train.tsv"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_bert(tmp_path / "bert")
    (tmp_path / "new.csv").write_text("review,stars\nw1 w2,good\n")
    return tmp_path


def write_tuned_model(folder: Path, task: str, data: dict[str, Any]) -> Path:
    """Write the task of a tuned model into its folder."""
    facts = FinetuneFacts(
        **dict.fromkeys(("run", "run_hash", "snapshot", "commit", "dirty")),
        config={"task": task, "data": data},
        task=task,
        labels=[],
        seed=1,
        parameters=1,
        commands={},
        packages={},
        absent=[],
        attempts=[],
    )
    lineage = Lineage(links=(Link.make("finetune", "finetune-own-1a2b", facts),))
    (folder / "bert" / LINEAGE_FILE).write_text(lineage.text())
    return folder / "bert"


def resolve_columns(kind: str, **values: Any) -> Resolved:
    given = {"model": "bert", "input": ["new.csv"], **values}
    return resolve_spec(kind, flags={key: Flag(value, f"--{key}") for key, value in given.items()}, environ=NO_GPU)


@pytest.mark.parametrize("kind", ["predict", "evaluate"])
def test_columns_are_those_of_tuned_table(folder: Path, kind: str) -> None:
    write_tuned_model(folder, "own", REVIEWS)
    found = resolve_columns(kind)
    data = found.spec.job_config().data
    assert (data.text, data.pair, data.label) == ("review", None, "stars")
    assert found.changes["data.text"].origin == "from the model finetune-own-1a2b"
    named = resolve_columns(kind, **{"data.text": "comment"})
    assert (named.spec.job_config().data.text, named.spec.job_config().data.label) == ("comment", "stars")
    assert named.changes["data.text"].origin == "--data.text"


def test_job_reads_columns_without_the_plan(folder: Path) -> None:
    model = write_tuned_model(folder, "own", {**REVIEWS, "pair": "answer"})
    flags = {"model": str(model), "input": ["new.csv"]}
    assert read_config(None, [], flags).data.pair == "answer"
    assert read_config(None, ["data.pair=null"], flags).data.pair is None


def test_words_and_tags_use_columns_of_training(folder: Path) -> None:
    write_tuned_model(folder, "NER", {**REVIEWS, "word_column": 2, "tag_column": 4})
    data = resolve_columns("evaluate", input=["new.conll"]).spec.job_config().data
    assert (data.word_column, data.tag_column, data.text) == (2, 4, "text")


def test_columns_have_default_names_without_record(folder: Path) -> None:
    assert resolve_columns("predict").spec.job_config().data.text == "text"
    write_tuned_model(folder, "MRPC", REVIEWS)
    assert resolve_columns("predict").spec.job_config().data.text == "text"
    (folder / "bert" / LINEAGE_FILE).write_text("{torn")
    assert resolve_columns("predict").spec.job_config().data.text == "text"


@pytest.mark.parametrize(
    ("trained", "name", "format_", "quoting"),
    [
        ({"train": "train.tsv", "quoting": True}, "new.tsv", "auto", True),
        ({"train": "train.tsv", "quoting": True}, "new.csv", "auto", None),
        ({"train": "train.tsv", "quoting": False}, "new.csv", "auto", None),
        ({"train": "train.csv", "quoting": True}, "new.tsv", "auto", None),
        ({"train": "train.csv", "quoting": False}, "new.CSV", "auto", False),
        ({"train": "train.tsv", "quoting": True}, "new.txt", "auto", None),
        ({"train": "train.txt", "format": "tsv", "quoting": True}, "new.txt", "tsv", True),
        ({"train": "train.txt", "format": "tsv", "quoting": True}, "new.tsv", "auto", True),
        ({"train": "train.dat", "format": "tsv", "quoting": True}, "new.csv", "auto", None),
        ({"train": "train.dat", "format": "jsonl"}, "new.dat", "jsonl", None),
        ({"train": "train.tsv", "format": "tsv"}, "new.txt", "auto", None),
        ({"dataset": "hub/name", "train": None, "quoting": True}, "new.tsv", "auto", None),
    ],
)
def test_format_and_quoting_are_those_of_tuned_table(
    folder: Path, trained: dict[str, Any], name: str, format_: str, quoting: bool | None
) -> None:
    write_tuned_model(folder, "own", {**REVIEWS, "format": "auto", "quoting": None, **trained})
    (folder / name).write_text("review,stars\n")
    found = resolve_columns("evaluate", input=[name])
    assert (found.spec.job_config().data.format, found.spec.job_config().data.quoting) == (format_, quoting)
    if quoting is not None:
        assert found.changes["data.quoting"].origin == "from the model finetune-own-1a2b"
    if format_ != "auto":
        assert found.changes["data.format"].origin == "from the model finetune-own-1a2b"


def test_given_format_and_quoting_override_those_of_tuning(folder: Path) -> None:
    model = write_tuned_model(folder, "own", {**REVIEWS, "train": "train.txt", "format": "tsv", "quoting": True})
    flags = {"model": str(model), "input": ["new.txt"]}
    assert read_config(None, [], flags).data.quoting is True
    lines = read_config(None, ["data.format=lines"], flags).data
    assert (lines.format, lines.quoting) == ("lines", None)
    plain = read_config(None, ["data.quoting=null"], flags).data
    assert (plain.format, plain.quoting) == ("tsv", None)
