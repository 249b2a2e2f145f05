"""The exported graph matches the transformers model of the same folder for any batch shape and padding."""

from __future__ import annotations

import importlib.util
import json
import shutil

import numpy as np
import pytest
import torch
import transformers

from train_jobs.tools import onnx as export

INSTALLED = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
needs_onnx = pytest.mark.skipif(
    not INSTALLED, reason='needs onnx, onnxscript and onnxruntime: pip install -e ".[onnx]"'
)
SHAPES = ((1, 1), (1, 32), (5, 9))
NAMES = {0: "bad", 1: "good", 2: "so-so"}


def batch(shape):
    """Return a batch whose rows become one token shorter each."""
    rows, size = shape
    real = np.arange(size) < np.maximum(size - np.arange(rows), 1)[:, None]
    ids = np.where(real, np.random.default_rng(0).integers(5, 40, shape), 0)
    return {"input_ids": ids, "attention_mask": real.astype(np.int64), "token_type_ids": np.zeros(shape, np.int64)}


def assert_matches_transformers(kind, folder, path):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    theirs = getattr(transformers, kind).from_pretrained(folder).eval()
    for shape in SHAPES:
        arrays = batch(shape)
        found = dict(zip(names, session.run(None, arrays), strict=True))
        with torch.no_grad():
            expected = theirs(**{name: torch.from_numpy(array) for name, array in arrays.items()})
        real = arrays["attention_mask"] > 0
        if "sentence_embedding" in found:
            hidden = expected.last_hidden_state.numpy() * real[..., None]
            pooled = hidden.sum(1) / real.sum(1, keepdims=True)
            np.testing.assert_allclose(found.pop("sentence_embedding"), pooled, atol=1e-4)
        assert found
        for name, array in found.items():
            wanted = expected[name].numpy()
            of_tokens = wanted.shape[:2] == real.shape
            picked = (array[real], wanted[real]) if of_tokens else (array, wanted)
            np.testing.assert_allclose(*picked, atol=1e-4, err_msg=name)


@pytest.mark.long
@needs_onnx
def test_classifier_graph_matches_transformers(saved, tmp_path, capsys):
    folder = saved("BertForSequenceClassification", id2label=NAMES, label2id={v: k for k, v in NAMES.items()})
    path = tmp_path / "onnx" / "model.onnx"
    assert export.main(["--model", str(folder), "--output", str(path)]) == 0
    assert "text-classification, opset 18, within" in capsys.readouterr().out
    assert_matches_transformers("BertForSequenceClassification", folder, path)
    assert json.loads((path.parent / "config.json").read_text())["id2label"]["2"] == "so-so"
    assert transformers.AutoTokenizer.from_pretrained(path.parent)("w1").input_ids == [2, 6, 3]
    assert {one.name for one in path.parent.iterdir()} == {
        "model.onnx",
        *("config.json", "tokenizer.json", "tokenizer_config.json"),
    }


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["BertForTokenClassification", "BertForQuestionAnswering", "BertForMaskedLM", "BertModel"]
)
def test_other_heads_match_transformers(saved, tmp_path, kind):
    folder = saved(kind)
    assert export.main(["--model", str(folder), "--output", str(tmp_path / "model.onnx")]) == 0
    assert_matches_transformers(kind, folder, tmp_path / "model.onnx")


def test_missing_onnx_packages_are_named(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert export.main(["--model", str(saved("BertModel")), "--output", str(tmp_path / "model.onnx")]) == 2
    errors = capsys.readouterr().err
    assert "onnx and onnxscript not installed" in errors
    assert 'fix  pip install "bert-orchestrator[onnx]"' in errors


@needs_onnx
@pytest.mark.slow
def test_graph_with_wrong_results_is_deleted(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(export, "TOLERANCE", 0.0)
    arguments = ["--model", str(saved("BertForSequenceClassification")), "--output", str(tmp_path / "model.onnx")]
    assert export.main(arguments) == 1
    assert "onnxruntime and torch return different results" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [("other/model.onnx", "it contains another model"), ("other/model.safetensors", "a graph ends in .onnx")],
)
def test_export_does_not_touch_another_model(saved, tmp_path, capsys, name, message):
    shutil.copytree(saved("BertForMaskedLM"), tmp_path / "other")
    before = {path.name: path.read_bytes() for path in (tmp_path / "other").iterdir()}
    assert export.main(["--model", str(saved("BertModel")), "--output", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "other").iterdir()} == before
