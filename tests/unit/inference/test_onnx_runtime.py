"""Prediction by onnxruntime: the results of torch within 1e-4, int8 with its agreement, and refusals."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from train_jobs.artifacts.layers import ConfigLayer, build, merge
from train_jobs.config import SpecError
from train_jobs.config.predict import PredictConfig
from train_jobs.inference import int8_agreement, onnx_model
from train_jobs.inference.loaded_model import load_predictor
from train_jobs.inference.onnx_model import GRAPH_FILE, OnnxModel
from train_jobs.predict import identity
from train_jobs.readers.tables import RowTable
from train_jobs.tools import onnx as export
from train_jobs.tools import serve

if TYPE_CHECKING:
    from conftest import Run  # not at run time, when another folder's conftest may have this name

INSTALLED = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
pytestmark = pytest.mark.skipif(not INSTALLED, reason='needs onnxruntime: pip install -e ".[onnx]"')
Saved = Callable[..., Path]
NAMES = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}


@pytest.fixture(scope="module")
def exported(saved: Saved, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Return a factory of copies of model folders with their graph."""

    def make(kind: str, task: str = "auto", **settings: Any) -> Path:
        folder = tmp_path_factory.mktemp("exported") / kind
        shutil.copytree(saved(kind, **settings), folder)
        arguments = ["--model", str(folder), "--task", task, "--output", str(folder / GRAPH_FILE)]
        assert export.main(arguments) == 0
        return folder

    return make


@pytest.fixture(scope="module")
def classifier(exported: Saved) -> Path:
    return exported("BertForSequenceClassification", **NAMES)


def numbers(value: Any) -> list[float]:
    """Return all numbers of a JSON value, in their order."""
    if isinstance(value, dict):
        return [one for key in sorted(value) for one in numbers(value[key])]
    if isinstance(value, list):
        return [one for item in value for one in numbers(item)]
    return [float(value)] if isinstance(value, int | float) else []


def config(model: Path, **keys: Any) -> PredictConfig:
    return build(PredictConfig, merge([ConfigLayer("test", {"model": str(model), "input": "rows.jsonl", **keys})]))


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("BertForSequenceClassification", "auto"),
        ("BertForTokenClassification", "auto"),
        ("BertForQuestionAnswering", "auto"),
        ("BertModel", "embeddings"),
    ],
)
def test_onnx_predictions_equal_torch(
    exported: Saved, run: Run, texts: list[str], jsonl: Callable[..., Path], kind: str, task: str
) -> None:
    labels = NAMES if kind.endswith(("SequenceClassification", "TokenClassification")) else {}
    model = exported(kind, task, **labels)
    rows = [{"text": text, "question": "w1 w2", "context": text} for text in texts]
    if kind != "BertForQuestionAnswering":
        rows = [{"text": row["text"]} for row in rows]
    source = jsonl(rows)
    settings = {"task": task, "resume": "never"}
    expected = run(model, source, runtime="torch", **settings)
    found = run(model, source, runtime="onnx", **settings)
    assert len(found) == len(texts)
    np.testing.assert_allclose(numbers(found), numbers(expected), atol=1e-4)


def answer_of(record: dict[str, Any]) -> Any:
    """Return the answer of a record of any kind but numbers, without probabilities."""
    if "entities" in record:
        return [(one["type"], one["begin"], one["end"]) for one in record["entities"]]
    return (record["answer"], record["begin"]) if "answer" in record else record["label"]


def int8_line(printed: str) -> str:
    return next(line for line in printed.splitlines() if line.startswith("int8 "))


@pytest.mark.long
@pytest.mark.parametrize("batch_tokens", [64, 2048])
@pytest.mark.parametrize(
    "kind", ["BertForSequenceClassification", "BertForTokenClassification", "BertForQuestionAnswering"]
)
def test_int8_agreement_is_that_of_written_answers(
    exported: Saved,
    run: Run,
    texts: list[str],
    jsonl: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    batch_tokens: int,
) -> None:
    """Windows have 10 rows, and 15 rows are compared."""
    monkeypatch.setattr(int8_agreement, "COMPARED", 15)
    asked = kind == "BertForQuestionAnswering"
    tags = {"id2label": {0: "O", 1: "B-X"}, "label2id": {"O": 0, "B-X": 1}}
    model = exported(kind, **({} if asked else NAMES if "Sequence" in kind else tags))
    source = jsonl([{"question": "w1 w2", "context": text} if asked else {"text": text} for text in texts])
    batching = {"batch_tokens": batch_tokens, "window": 10}
    exact = run(model, source, runtime="onnx", batching=batching)
    capsys.readouterr()
    found = run(model, source, runtime="onnx", int8=True, resume="never", batching=batching)
    assert found != exact, "int8 is another graph"
    same = sum(answer_of(one) == answer_of(other) for one, other in zip(found[:15], exact[:15], strict=True))
    line = int8_line(capsys.readouterr().out)
    assert line == f"int8       {same / 15:.1%} of the answers as in fp32, over 15 rows"


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "task", "column"),
    [("BertForSequenceClassification", "auto", "value"), ("BertModel", "embeddings", "embedding")],
)
def test_int8_agreement_of_numbers_is_their_difference(
    exported: Saved,
    run: Run,
    texts: list[str],
    jsonl: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    kind: str,
    task: str,
    column: str,
) -> None:
    model = exported(kind, task, **({"num_labels": 1} if task == "auto" else {}))
    source = jsonl([{"text": text} for text in texts])
    exact = run(model, source, runtime="onnx", task=task)
    capsys.readouterr()
    found = run(model, source, runtime="onnx", task=task, int8=True, resume="never")
    largest = max(
        np.abs(np.subtract(one[column], other[column])).max() for one, other in zip(found, exact, strict=True)
    )
    line = int8_line(capsys.readouterr().out)
    assert largest > 0
    assert line == f"int8       largest difference from fp32 {largest:.2g}, over {len(texts)} rows"


def test_server_uses_graph_for_single_texts_only(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    computed = OnnxModel._run
    monkeypatch.setattr(
        OnnxModel, "_run", lambda self, session, arrays: calls.append(1) or computed(self, session, arrays)
    )
    task = serve.load(classifier)
    calls.clear()  # the comparison with torch
    one = task.predict(RowTable(Path("r"), {"text": ["w1 w2 w3"]}, [0]), 0).records
    assert len(calls) == 1
    two = task.predict(RowTable(Path("r"), {"text": ["w1 w2 w3", "w4"]}, [0, 1]), 0).records
    assert len(calls) == 1
    np.testing.assert_allclose(numbers(two[0]), numbers(one[0]), atol=1e-2)  # bf16 where the CPU has it


@pytest.mark.long
def test_graph_of_other_weights_is_not_served(
    classifier: Path, exported: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = exported("BertForSequenceClassification", initializer_factor=2.0, **NAMES)
    folder = shutil.copytree(classifier, tmp_path / "mixed")
    shutil.copyfile(other / GRAPH_FILE, folder / GRAPH_FILE)
    task = serve.load(folder)
    assert not isinstance(task.forward.model, OnnxModel)
    assert "not of these weights" in capsys.readouterr().out


def test_graph_of_other_weights_predicts_nothing(
    classifier: Path, saved: Saved, tmp_path: Path, run: Run, jsonl: Callable[..., Path]
) -> None:
    folder, source = shutil.copytree(classifier, tmp_path / "model"), jsonl([{"text": "w1 w2"}])
    other = saved("BertForSequenceClassification", initializer_factor=2.0, **NAMES)
    shutil.copyfile(other / "model.safetensors", folder / "model.safetensors")
    for int8 in (False, True):
        with pytest.raises(SpecError, match=r"model\.onnx is not of these weights") as caught:
            run(folder, source, runtime="onnx", int8=int8)
        graph = folder / GRAPH_FILE
        command = f"train_jobs.tools.onnx --model {folder} --task text-classification --output {graph}"
        assert command in str(caught.value.fix)


def test_other_graph_predicts_again(classifier: Path, tmp_path: Path, jsonl: Callable[..., Path]) -> None:
    folder, source = shutil.copytree(classifier, tmp_path / "model"), jsonl([{"text": "w1 w2"}])
    each = []
    for content in (b"before", b"exported again"):
        (folder / GRAPH_FILE).write_bytes(content)
        settings = {"onnx": config(folder, runtime="onnx"), "torch": config(folder, runtime="torch")}
        each.append(
            {
                name: identity(one.model_copy(update={"input": [source]}), torch.device("cpu"))
                for name, one in settings.items()
            }
        )
    assert each[0]["onnx"] != each[1]["onnx"]
    assert each[0]["torch"] == each[1]["torch"]


def test_model_without_graph_names_the_export(saved: Saved) -> None:
    folder = saved("BertForSequenceClassification", **NAMES)
    with pytest.raises(SpecError, match=r"model\.onnx does not exist") as caught:
        load_predictor(config(folder, runtime="onnx"), torch.device("cpu"))
    assert "train_jobs.tools.onnx --model" in str(caught.value.fix)
    assert not isinstance(serve.load(folder).forward.model, OnnxModel)


def test_fill_mask_and_missing_package_are_refused(
    saved: Saved, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpecError, match="fill-mask"):
        load_predictor(config(saved("BertForMaskedLM"), runtime="onnx"), torch.device("cpu"))
    monkeypatch.setattr(onnx_model, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match="onnxruntime is not installed"):
        load_predictor(config(classifier, runtime="onnx"), torch.device("cpu"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [({"int8": True}, "int8: only for runtime onnx"), ({"runtime": "onnx", "batching": {"precision": "bf16"}}, "bf16")],
)
def test_contradictions_are_refused(classifier: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        config(classifier, **keys)
    assert message in str(caught.value)
