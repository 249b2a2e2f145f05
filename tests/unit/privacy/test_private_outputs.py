"""Files and messages of jobs that use private data: its text only where docs/privacy.md lists it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.unit.finetuning.finetune_jobs import run, settings
from tests.unit.privacy.canary import SENTENCE, files_with_canary, found_in, places
from tests.unit.privacy.private_data import write_private_model, write_questions, write_rows, write_words
from train_jobs import predict

VOCABULARY = {"runs/*/outputs/**/vocab.txt", "runs/*/outputs/**/tokenizer.json"}
PREDICTED = {"runs/*/outputs/predictions.*"}


class Kind(NamedTuple):
    """A fine-tuning on private data, and the predictions of its model."""

    task: str
    write: Callable[[Path], dict[str, Path]]
    data: dict[str, Any]
    expected: set[str]
    """Patterns of files with text that the fine-tuning writes besides its vocabulary."""
    row: dict[str, str]
    """A row to predict."""
    predicted: set[str]
    """Patterns of files with text that the prediction writes."""


KINDS = {
    "questions": Kind(
        "SQuAD-2.0",
        write_questions,
        {"max_query_length": 4, "doc_stride": 12},
        {"runs/*/outputs/**/predictions/*/*.json"},
        {"question": f"w1 {SENTENCE}", "context": SENTENCE},
        PREDICTED,
    ),
    "entities": Kind(
        "NER",
        write_words,
        {},
        {"runs/*/outputs/**/predictions/*.txt"},
        {"text": SENTENCE},
        PREDICTED,
    ),
    "rows": Kind("own", write_rows, {"text": "text", "label": "label"}, set(), {"text": SENTENCE}, set()),
}


def text_places(outputs: Path) -> set[str]:
    """Return the patterns of docs/privacy.md that list the files with text among a job's outputs."""
    return places({f"runs/name/outputs/{name}" for name in files_with_canary(outputs)})


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_have_private_text_only_in_listed_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    task, write, data, expected, row, predicted = KINDS[kind]
    model = write_private_model(tmp_path)
    given = data | write(tmp_path / "data")
    before = {path: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    document = settings(model, task, given, train={"epochs": 2})
    assert run(tmp_path, document, "--device", "cpu") == 0
    assert text_places(tmp_path / "out") == VOCABULARY | expected
    (tmp_path / "new.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "predict.yaml").write_text(
        yaml.safe_dump({"model": str(tmp_path / "out" / "model"), "input": str(tmp_path / "new.jsonl")})
    )
    words = ["--config", str(tmp_path / "predict.yaml"), "--output", str(tmp_path / "predicted"), "--device", "cpu"]
    assert predict.main(words) == 0
    assert text_places(tmp_path / "predicted") == predicted
    streams = capfd.readouterr()
    assert found_in(streams.out + streams.err) == []
    assert {path: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before
