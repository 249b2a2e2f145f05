"""Special pieces in the texts of a fine-tuning are read as prediction and transformers read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from finetune_jobs import result_of, run, settings

from train_jobs import predict
from train_jobs.artifacts.layers import ConfigLayer, build, merge
from train_jobs.config.predict import PredictConfig
from train_jobs.engine.runtime.stop import Preempted
from train_jobs.tasks import replicates
from train_jobs.tasks.finetuning import TokenizedTask

MARKS = ("[MASK]", "[SEP]", "[UNK]", "[CLS]", "[PAD]")


def write_reviews(path: Path, *, numbers: bool = False) -> Path:
    """Write texts whose label depends on their special piece alone."""
    labels = ("0.0", "1.0") if numbers else ("no", "yes")
    rows = [
        f"w{20 + number % 7} {MARKS[number % 2]} w1\tw3 {MARKS[number % 5]}\t{labels[number % 2]}\n"
        for number in range(40)
    ]
    path.write_text("text\tother\tlabel\n" + "".join(rows))
    return path


def write_questions(path: Path) -> Path:
    """Write questions and contexts with special pieces."""
    contexts = [f"w5 {mark} w1 w2 w6{mark}w7" for mark in MARKS]
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": str(number),
                    "question": f"w8 {MARKS[number]}?",
                    "answers": [{"text": "w1 w2", "answer_start": context.index("w1")}],
                }
            ],
        }
        for number, context in enumerate(contexts)
    ]
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "x", "paragraphs": paragraphs}]}))
    return path


def write_entities(path: Path) -> Path:
    """Write sentences in which special pieces are words and parts of words."""
    path.write_text("".join(f"w1 X B-PER\n{mark} X O\nw2{mark} X O\n\n" for mark in MARKS))
    return path


def encoded_rows(monkeypatch: pytest.MonkeyPatch, folder: Path, document: dict[str, Any]) -> list[list[int]]:
    """Return the ids of the training rows that a job reads, without training."""
    seen: list[TokenizedTask] = []
    read = replicates.read_task

    def stop(*given: Any) -> TokenizedTask:
        seen.append(read(*given))
        raise Preempted

    monkeypatch.setattr(replicates, "read_task", stop)
    run(folder, document)
    rows = seen[0].rows
    return [ids.tolist() for ids in rows.ids]


CASES = ("own", "pair", "regression", "MRPC", "SQuAD-1.1", "NER")


def write_job(kind: str, bert: Path, folder: Path) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """Return the config of a job, and its texts."""
    if kind == "NER":
        path = write_entities(folder / "train.txt")
        return settings(bert, kind, {"train": path, "validation": path}), [
            (["w1", mark, f"w2{mark}"],) for mark in MARKS
        ]
    if kind == "SQuAD-1.1":
        path = write_questions(folder / "train.json")
        paragraphs = json.loads(path.read_text())["data"][0]["paragraphs"]
        texts = [(one["qas"][0]["question"], one["context"]) for one in paragraphs]
        return settings(bert, kind, {"train": path, "validation": path, "max_query_length": 8}), texts
    path = write_reviews(folder / "train.tsv", numbers=kind == "regression")
    rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    data: dict[str, Any] = {"train": path, "validation": path}
    if kind == "MRPC":
        head = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        path.write_text(head + "".join(f"{int(row[2] == 'yes')}\t1\t2\t{row[0]}\t{row[1]}\n" for row in rows))
    elif kind == "pair":
        data["pair"] = "other"
    elif kind == "regression":
        data["regression"] = True
    paired = kind in {"MRPC", "pair"}
    return settings(bert, kind if kind == "MRPC" else "own", data), [tuple(row[: 1 + paired]) for row in rows]


@pytest.mark.parametrize("kind", CASES)
def test_ids_equal_those_of_exported_tokenizer(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    document, texts = write_job(kind, bert, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    wanted = [tokenizer(*text, is_split_into_words=kind == "NER")["input_ids"] for text in texts]
    assert encoded_rows(monkeypatch, tmp_path, document) == wanted
    assert tokenizer.mask_token_id in {number for ids in wanted for number in ids}


@pytest.mark.parametrize("kind", ["own", "regression"])
def test_evaluation_of_dev_rows_repeats_their_score(bert: Path, tmp_path: Path, kind: str) -> None:
    document, _ = write_job(kind, bert, tmp_path)
    assert run(tmp_path, document) == 0
    tuned = result_of(tmp_path)["metrics"]
    tree = {
        "model": str(tmp_path / "out" / "model"),
        "input": str(tmp_path / "train.tsv"),
        "evaluate": True,
        "batching": {"precision": "fp32"},
    }
    predict.predict(build(PredictConfig, merge([ConfigLayer("test", tree)])), output=tmp_path / "scored", device="cpu")
    found = json.loads((tmp_path / "scored" / "result.json").read_text())["metrics"]
    assert found == pytest.approx({name: tuned[name] for name in found}, rel=1e-4, abs=1e-6)
    assert found["score"] > 0.9  # only the special piece of a text decides its label
