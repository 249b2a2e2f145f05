"""Evaluating a fine-tuned model reproduces the metrics and predictions of its fine-tuning job."""

from __future__ import annotations

import csv
import json
import shutil

import pytest
from drawn_texts import PIECES, sentences

from train_jobs import finetune, predict
from train_jobs.config import FinetuneConfig


def table(path, texts, labels):
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([("text", "label"), *zip(texts, labels, strict=True)])
    return path


@pytest.mark.parametrize("regression", [False, True])
def test_evaluation_matches_fine_tuning(saved, run, tmp_path, regression):
    start = tmp_path / "start"
    shutil.copytree(saved("BertModel"), start)
    (start / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    files = {}
    for seed, split in enumerate(("train", "validation", "test")):
        texts = sentences(40, seed=seed)
        labels = [len(text) / 10 if regression else ("yes" if "w1" in text else "no") for text in texts]
        files[split] = str(table(tmp_path / f"{split}.csv", texts, labels))
    config = FinetuneConfig(
        init_from=start,
        data={**files, "max_length": 32, "regression": regression},
        optimizer={"learning_rate": 1e-3},
        train={"epochs": 2, "global_batch_size": 8, "micro_batch_size": 8, "precision": "fp32"},
        checkpoint={"asynchronous": False, "every_minutes": None, "every": 5},
    )
    finetune.finetune(config, output=tmp_path / "tuned", device="cpu")
    metrics = json.loads((tmp_path / "tuned" / "result.json").read_text())["metrics"]
    model = tmp_path / "tuned" / "model"
    run(model, files["validation"], evaluate=True)
    found = json.loads((tmp_path / "out" / "result.json").read_text())["metrics"]
    assert found == pytest.approx({name: metrics[name] for name in found}, rel=1e-4, abs=1e-6)
    predicted = run(model, files["test"])
    lines = (tmp_path / "tuned" / "predictions" / "predictions.tsv").read_text().splitlines()[1:]
    labels = [line.partition("\t")[2] for line in lines]
    if regression:
        assert [one["value"] for one in predicted] == pytest.approx(list(map(float, labels)), rel=1e-4, abs=1e-5)
    else:
        assert [one["label"] for one in predicted] == labels
        assert set(labels) <= {"yes", "no"}


def test_evaluation_reads_tables_as_fine_tuning(saved, tmp_path):
    """Quoted texts with tabs and line breaks, in a file without the suffix of a table."""
    start, path = tmp_path / "start", tmp_path / "rows.txt"
    shutil.copytree(saved("BertModel"), start)
    (start / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    texts = [f"{text}\tw3\nw4" for text in sentences(40)]
    with path.open("w", newline="") as stream:
        rows = [("text", "label"), *((text, "yes" if "w1" in text else "no") for text in texts)]
        csv.writer(stream, delimiter="\t", lineterminator="\n").writerows(rows)
    config = FinetuneConfig(
        init_from=start,
        data={"train": path, "validation": path, "format": "tsv", "quoting": True, "max_length": 32},
        optimizer={"learning_rate": 1e-3},
        train={"epochs": 2, "global_batch_size": 8, "micro_batch_size": 8, "precision": "fp32"},
    )
    finetune.finetune(config, output=tmp_path / "tuned", device="cpu")
    metrics = json.loads((tmp_path / "tuned" / "result.json").read_text())["metrics"]
    words = ["--model", str(tmp_path / "tuned" / "model"), "--input", str(path), "--output", str(tmp_path / "out")]
    assert predict.main([*words, "--set", "evaluate=true", "--set", "batching.precision=fp32"]) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["rows"] == len(texts)
    assert result["metrics"] == pytest.approx({name: metrics[name] for name in result["metrics"]}, rel=1e-4, abs=1e-6)


def test_files_of_predictions_escape_class_names_alike(saved, tmp_path):
    start, names = tmp_path / "start", ("one\ttab", "two\nlines\\")
    shutil.copytree(saved("BertModel"), start)
    (start / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    texts = sentences(40)
    path = table(tmp_path / "rows.csv", texts, [names["w1" in text] for text in texts])
    config = FinetuneConfig(
        init_from=start,
        data={"train": path, "validation": path, "test": path, "max_length": 32},
        optimizer={"learning_rate": 1e-3},
        train={"epochs": 2, "global_batch_size": 8, "micro_batch_size": 8, "precision": "fp32"},
    )
    finetune.finetune(config, output=tmp_path / "tuned", device="cpu")
    tuned = (tmp_path / "tuned" / "predictions" / "predictions.tsv").read_text().split("\n")
    predict.main(
        [
            *("--model", str(tmp_path / "tuned" / "model"), "--input", str(path), "--output", str(tmp_path / "out")),
            *("--set", "output=predictions.tsv", "--set", "batching.precision=fp32"),
        ]
    )
    predicted = (tmp_path / "out" / "predictions.tsv").read_text().split("\n")
    assert [line.split("\t")[1:] for line in tuned[1:-1]] == [line.split("\t")[:1] for line in predicted[1:-1]]
    assert {line.partition("\t")[2] for line in tuned[1:-1]} <= {"one\\ttab", "two\\nlines\\\\"}
