"""Responses of an endpoint equal the predictions of the job, locally and from the archive for Azure."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import train_jobs
from orchestrator.backends.azure.runs.models import ARCHIVE, SCRIPT, package_archive
from train_jobs.config import OutOfMemoryError
from train_jobs.inference.forward import Forward
from train_jobs.tools import serve


def answer(folder, *inputs, **more):
    serve.load(folder)
    return serve.run(json.dumps({"inputs": inputs, **more}))


def test_endpoint_labels_match_job(saved, run, jsonl, texts):
    folder = saved("BertForSequenceClassification")
    expected = run(folder, jsonl([{"text": text} for text in texts]), batching={})
    found = answer(folder, *texts)["outputs"]
    assert [one["label"] for one in found] == [one["label"] for one in expected]
    assert [one["probability"] for one in found] == pytest.approx([one["probability"] for one in expected], rel=0.02)


def test_endpoint_returns_all_labels_of_a_text(saved, run, jsonl, texts):
    folder = saved("BertForSequenceClassification", num_labels=8, problem_type="multi_label_classification")
    expected = run(folder, jsonl([{"text": text} for text in texts]), batching={})
    assert max(len(one["labels"]) for one in expected) > 5
    for top in (1, 5):
        found = answer(folder, *texts, top=top)["outputs"]
        assert [one["labels"] for one in found] == [one["labels"] for one in expected]
        assert {len(one["probabilities"]) for one in found} == {top}


def test_endpoint_fill_mask_returns_lists(saved):
    ((first, second), nothing) = answer(saved("BertForMaskedLM"), "w1 [MASK] w2 [MASK]", "w1", top=3)["outputs"]
    assert (len(first), len(second), nothing) == (3, 3, [])
    assert first[0].keys() == {"token", "probability"}
    assert first[0]["probability"] >= first[1]["probability"]


def test_endpoint_accepts_pairs_questions_and_texts(saved):
    (pair,) = answer(saved("BertForSequenceClassification"), {"text": "w1", "pair": "w2"})["outputs"]
    (alone,) = answer(saved("BertForSequenceClassification"), {"text": "w1"})["outputs"]
    assert pair != alone
    question = {"question": "w1", "context": "w2 w3"}
    assert answer(saved("BertForQuestionAnswering"), question)["outputs"][0]["answer"] in {"w2", "w3", "w2 w3"}
    assert len(answer(saved("BertModel"), "w1")["outputs"][0]["embedding"]) == 32


@pytest.mark.parametrize(
    "request_",
    [{"inputs": [1]}, {"inputs": "w1"}, {"inputs": []}, {"inputs": ["w1"], "top": 0}, {"inputs": ["w1"] * 65}],
)
def test_invalid_request_returns_error(saved, request_):
    serve.load(saved("BertModel"))
    assert "inputs" in serve.run(json.dumps(request_))["error"] or "top" in serve.run(json.dumps(request_))["error"]


def test_out_of_memory_returns_error(saved, monkeypatch):
    def none_left(self, sequences, compute):
        raise OutOfMemoryError("out of memory with one sequence of 3 tokens")

    monkeypatch.setattr(Forward, "map", none_left)
    assert answer(saved("BertModel"), "w1") == {"error": "error[memory]: out of memory with one sequence of 3 tokens"}


def test_server_that_cannot_start_states_reason(saved, tmp_path, capsys):
    assert serve.main(["--model", str(tmp_path)]) == 2
    assert f"error[spec]: cannot read {tmp_path}/config.json" in capsys.readouterr().err
    folder = str(saved("BertModel"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve.main(["--model", folder, "--port", str(port)]) == 1
    assert f"error[conflict]: cannot listen on port {port}: it is in use" in capsys.readouterr().err
    assert serve.main(["--model", folder, "--port", "70000"]) == 2
    assert "error[spec]: cannot listen on port 70000" in capsys.readouterr().err


def test_input_with_missing_part_returns_error(saved):
    assert "'context': '...'" in answer(saved("BertForQuestionAnswering"), {"question": "w1"})["error"]


def test_archive_with_script_is_self_contained(saved, tmp_path):
    package = Path(str(train_jobs.__file__)).parent
    shutil.copyfile(package / "tools" / SCRIPT, tmp_path / SCRIPT)
    (tmp_path / ARCHIVE).write_bytes(package_archive(package))
    program = (
        "import serve, json, sys; serve.init(); print(serve.run(json.dumps({'inputs': ['w1']}))['outputs'][0]['label'],"
        " sys.modules['train_jobs'].__file__, not {'transformers', 'mlflow'} & sys.modules.keys())"
    )
    folder = saved("BertForSequenceClassification")
    environment = {**os.environ, "AZUREML_MODEL_DIR": str(folder), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    label, module, lean = done.stdout.split()
    assert label.startswith("LABEL_")
    assert module.startswith(str(tmp_path / ARCHIVE))
    assert lean == "True", done.stderr
