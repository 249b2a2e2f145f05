"""Scores of predictions against the labels of the input, and predictions of long texts."""

from __future__ import annotations

import itertools
import json
import shutil

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score

from train_jobs import predict
from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.config import DataError, SpecError
from train_jobs.engine.reporting.metrics import MetricsLog
from train_jobs.inference.forward import Forward
from train_jobs.inference.prediction_files import PredictionParts
from train_jobs.tasks.entities.conll import entities

WINDOWS = {"precision": "fp32", "window": 4}


def classifier(saved, **more):
    return saved("BertForSequenceClassification", **more)


def result(tmp_path):
    return json.loads((tmp_path / "out" / "result.json").read_text())


def test_classes_are_scored(saved, run, jsonl, texts, tmp_path):
    names = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    gold = [number % 3 == 0 for number in range(len(texts))]
    source = jsonl([{"text": text, "label": "yes" if one else 0} for text, one in zip(texts, gold, strict=True)])
    model = classifier(saved, **names)
    found = run(model, source, evaluate=True, batching=WINDOWS)
    guessed = [one["label"] == "yes" for one in found]
    unnamed = result(tmp_path)["metrics"]
    assert "f1" not in unnamed
    assert unnamed["macro_f1"] == pytest.approx(f1_score(gold, guessed, average="macro"), abs=1e-9)
    run(model, source, evaluate=True, batching=WINDOWS, data={"positive_label": "no"})
    theirs = f1_score([not one for one in gold], [not one for one in guessed])
    assert result(tmp_path)["metrics"]["f1"] == pytest.approx(theirs, abs=1e-9)
    run(model, source, evaluate=True, batching=WINDOWS, data={"positive_label": "yes"})
    metrics = result(tmp_path)["metrics"]
    assert metrics["accuracy"] == pytest.approx(accuracy_score(gold, guessed), abs=1e-9)
    assert metrics["f1"] == pytest.approx(f1_score(gold, guessed), abs=1e-9)
    likely = [one["probabilities"]["yes"] for one in found]
    assert metrics["loss"] == pytest.approx(log_loss(gold, likely), rel=1e-4)
    assert metrics["auroc"] == pytest.approx(roc_auc_score(gold, likely), abs=1e-6)
    *_, last = read_reports(tmp_path / "out" / "metrics.jsonl")
    assert last[1]["metrics"]["validation_accuracy"] == metrics["accuracy"]
    columns = json.loads((tmp_path / "out" / "scored_rows.json").read_text())["sets"]["input"]["columns"]
    assert columns["confidence"] == pytest.approx([one["probability"] for one in found], abs=1e-6)


def test_numbers_are_scored(saved, run, jsonl, texts, tmp_path):
    gold = [float(len(text)) for text in texts]
    source = jsonl([{"text": text, "label": one} for text, one in zip(texts, gold, strict=True)])
    found = run(classifier(saved, num_labels=1), source, evaluate=True)
    values = [one["value"] for one in found]
    metrics = result(tmp_path)["metrics"]
    assert metrics["pearson"] == pytest.approx(np.corrcoef(values, gold)[0, 1], abs=1e-5)
    assert metrics["loss"] == pytest.approx(np.mean((np.array(values) - gold) ** 2), rel=1e-4)


def test_regression_in_bf16_keeps_fp32_resolution(saved, run, jsonl, texts, tmp_path):
    gold = [float(len(text)) for text in texts]
    source = jsonl([{"text": text, "label": one} for text, one in zip(texts, gold, strict=True)])
    model, metrics = classifier(saved, num_labels=1), []
    for precision in ("fp32", "bf16"):
        found = run(model, source, evaluate=True, batching={"precision": precision})
        metrics.append(result(tmp_path)["metrics"])
    values = torch.tensor([one["value"] for one in found])
    spacing = (values / values.bfloat16() - 1).abs()  # bf16 numbers are 2**-8 apart, and files have seven digits
    assert (spacing > 1e-5).sum() > len(values) / 2
    assert metrics[1] == pytest.approx(metrics[0], rel=0.02, abs=0.02)


def test_glue_task_sets_columns_labels_and_metrics(saved, run, tmp_path):
    (tmp_path / "dev.tsv").write_text("gj04\t1\t\tw1 w2\ngj04\t0\t*\tw3\ngj04\t1\t\tw4\n")
    names = {"id2label": {0: "acceptable", 1: "unacceptable"}, "label2id": {"acceptable": 0, "unacceptable": 1}}
    found = run(classifier(saved, **names), tmp_path / "dev.tsv", task="CoLA", evaluate=True)
    metrics = result(tmp_path)["metrics"]
    assert {"loss", "matthews", "score"} == metrics.keys()
    gold = ["acceptable", "unacceptable", "acceptable"]  # 1, 0, 1; the model has them in another order
    likely = [one["probabilities"][name] for one, name in zip(found, gold, strict=True)]
    assert metrics["loss"] == pytest.approx(-np.mean(np.log(likely)), rel=1e-4)
    run(classifier(saved, **names), written(tmp_path, "index\tsentence\n0\tw1\n"), task="CoLA")


def scored(saved, run, tmp_path, names, rows, **keys):
    """Return metrics and labels that a model with these names predicts; its weights do not depend on them."""
    folder = tmp_path / "-".join(names)
    shutil.copytree(saved("BertForSequenceClassification", num_labels=len(names)), folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    (folder / "config.json").write_text(json.dumps({**config, **labels}))
    (tmp_path / "dev.tsv").write_text(rows)
    found = run(folder, tmp_path / "dev.tsv", evaluate=True, **keys)
    return result(tmp_path)["metrics"], [one["label"] for one in found]


def pairs(texts, labels):
    rows = (f"{label}\t1\t2\t{text}\tw1\n" for text, label in zip(texts, labels, strict=True))
    return "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + "".join(rows)


@pytest.mark.parametrize(
    "names", [["equivalent", "not_equivalent"], ["Not-Equivalent", "EQUIVALENT"], ["LABEL_0", "LABEL_1"], ["1", "0"]]
)
def test_glue_labels_match_in_any_order_and_spelling(saved, run, tmp_path, texts, names):
    positive = next(name for name in names if name.lower() in {"equivalent", "label_1", "1"})
    labels = [number % 3 == 0 for number in range(len(texts))]
    found, guessed = scored(saved, run, tmp_path, names, pairs(texts, map(int, labels)), task="MRPC")
    assert found["f1"] == pytest.approx(f1_score(labels, [one == positive for one in guessed]))
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, [one == positive for one in guessed]))


@pytest.mark.parametrize("names", [["same", "other"], ["equivalent", "other"], ["LABEL_0", "LABEL_1", "LABEL_2"]])
def test_glue_with_unknown_labels_of_model_is_refused(saved, run, tmp_path, names):
    with pytest.raises(SpecError, match="cannot score MRPC: the model has other labels") as failure:
        scored(saved, run, tmp_path, names, pairs(["w1"], [1]), task="MRPC")
    assert failure.value.facts == {"need": "not_equivalent, equivalent", "have": ", ".join(names)}


def test_glue_classes_are_not_scored_with_regression(saved, run, tmp_path):
    (tmp_path / "dev.tsv").write_text(pairs(["w1"], [1]))
    with pytest.raises(SpecError, match="cannot score MRPC: the model has other labels"):
        run(classifier(saved, num_labels=1), tmp_path / "dev.tsv", task="MRPC", evaluate=True)


@pytest.mark.parametrize("names", [["1", "2", "3"], ["1 star", "2 stars", "3 stars"], ["1.0", "2.0", "3.0"]])
def test_classes_with_numbers_are_known_by_name_only(saved, run, tmp_path, names):
    rows = "text\tlabel\n" + "".join(f"w{number}\t{name}\n" for number, name in enumerate(names))
    assert "accuracy" in scored(saved, run, tmp_path, names, rows)[0]
    with pytest.raises(DataError, match="unknown label: a text of 1 character; known are"):
        scored(saved, run, tmp_path, names, "text\tlabel\nw1\t0\nw2\t1\n")


def written(tmp_path, text):
    (tmp_path / "test.tsv").write_text(text)
    return tmp_path / "test.tsv"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "w1", "label": "maybe"}], ":1: unknown label: a text of 5 characters; known are LABEL_0, LABEL_1"),
        ([{"text": "w1", "label": None}], ":1: column 'label': missing label"),
        ([{"text": " ", "label": 0}], ":1: column 'text' has an empty text"),
        ([{"text": "w1", "label": 0}, {"text": None, "label": 0}], ":2: column 'text' is not text: missing"),
    ],
)
def test_rows_that_cannot_be_scored_are_named(saved, run, jsonl, rows, message):
    with pytest.raises(DataError) as failure:
        run(classifier(saved), jsonl(rows), evaluate=True)
    assert message in str(failure.value)


def test_answers_are_scored_like_squad(saved, run, tmp_path):
    squad(tmp_path / "dev.json", version="1.1")
    found = run(saved("BertForQuestionAnswering"), tmp_path / "dev.json", evaluate=True, data={"max_query_length": 4})
    assert [one["id"] for one in found] == ["a", "b", "c"]
    metrics = result(tmp_path)["metrics"]
    assert metrics.keys() == {"exact_match", "f1"}
    assert metrics["exact_match"] == pytest.approx(100 * sum(one["answer"] == "w3" for one in found) / 3)


@pytest.mark.parametrize(("threshold", "none"), [(-1e9, True), (1e9, False)])
def test_threshold_decides_unanswered_questions(saved, run, tmp_path, threshold, none):
    squad(tmp_path / "dev.json", version="v2.0")
    keys = {"evaluate": True, "data": {"max_query_length": 4}, "answers": {"null_threshold": threshold}}
    found = run(saved("BertForQuestionAnswering"), tmp_path / "dev.json", **keys)
    assert [one["answer"] == "" for one in found] == [none] * 3
    assert [one["begin"] is None for one in found] == [none] * 3
    assert {one["text"] for one in found[0]["candidates"]} >= {"", *([] if none else [found[0]["answer"]])}
    assert result(tmp_path)["metrics"]["NoAns_exact"] == 100 * none


@pytest.mark.parametrize(("tuned", "none"), [(-1e9, True), (1e9, False)])
def test_tuned_threshold_is_read_from_model(saved, run, tmp_path, tuned, none):
    model = saved("BertForQuestionAnswering")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "null_threshold": tuned}))
    squad(tmp_path / "dev.json", version="v2.0")
    found = run(model, tmp_path / "dev.json", evaluate=True, data={"max_query_length": 4})
    assert [one["answer"] == "" for one in found] == [none] * 3


def test_questions_that_cannot_be_scored_are_refused(saved, run, tmp_path):
    model, plain = saved("BertForQuestionAnswering"), tmp_path / "plain.json"
    squad(tmp_path / "dev.json", version="1.1")
    document = json.loads((tmp_path / "dev.json").read_text())
    document["data"][0]["paragraphs"][0]["qas"][1]["answers"] = []
    plain.write_text(json.dumps(document))
    keys = {"evaluate": True, "data": {"max_query_length": 4}}
    with pytest.raises(DataError, match=r"cannot score .*plain.json: it has questions without an answer") as caught:
        run(model, plain, **keys)
    assert caught.value.facts == {"where": "question 2"}
    assert '"version": "v2.0"' in caught.value.fix
    plain.write_text(json.dumps({**document, "version": "v2.0"}))
    run(model, plain, **keys)
    assert result(tmp_path)["metrics"]["NoAns_total"] == 1
    files = [str(tmp_path / "dev.json"), str(plain)]
    with pytest.raises(DataError, match=r"plain.json with .*dev.json: both have questions with the same id"):
        run(model, plain, **keys, input=files)
    assert len(run(model, plain, data=keys["data"], input=files)) == 6


def test_long_context_windows_start_stride_apart(saved, run, tmp_path, monkeypatch):
    each, read = Forward.map, []

    def record(self, sequences, compute):
        read.extend(one.ids[3].item() for one in sequences[: len(sequences) // 3])  # the first of three questions
        return each(self, sequences, compute)

    monkeypatch.setattr(Forward, "map", record)
    squad(tmp_path / "dev.json", version="1.1")
    run(saved("BertForQuestionAnswering"), tmp_path / "dev.json", data={"max_query_length": 4, "doc_stride": 4})
    assert read == [5, 9, 13]  # w0, w4, w8, from which the rest of the 36 tokens fits


def squad(path, *, version):
    """Write three questions about a text of 36 tokens in several windows; in 2.0 the last has no answer."""
    context = " ".join(f"w{number}" for number in range(36))
    found = [{"text": "w3", "answer_start": context.index("w3")}]
    questions = [{"id": key, "question": f"w{number}", "answers": found} for number, key in enumerate("abc")]
    if version != "1.1":
        questions[-1] |= {"answers": [], "is_impossible": True}
    document = {"version": version, "data": [{"title": "", "paragraphs": [{"context": context, "qas": questions}]}]}
    path.write_text(json.dumps(document))


def test_entities_are_scored_per_word(saved, run, tmp_path):
    names = dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]))
    folder = saved("BertForTokenClassification", id2label=names, label2id={v: k for k, v in names.items()})
    words = [[f"w{(7 * row + place) % 40}" for place in range(1 + 5 * row)] for row in range(10)]
    source = tmp_path / "dev.conll"
    source.write_text("\n".join("".join(f"{word} O\n" for word in row) for row in words))
    found = run(folder, source)
    assert [one["words"] for one in found] == words
    for one in found:
        for entity in one["entities"]:
            assert entity["text"] == " ".join(one["words"][entity["first"] : entity["last"] + 1])
            assert one["tags"][entity["first"]].endswith(entity["type"])
    tagged = ("".join(f"{word} {tag}\n" for word, tag in zip(one["words"], one["tags"], strict=True)) for one in found)
    source.write_text("\n".join(tagged))
    run(folder, source, evaluate=True)
    assert result(tmp_path)["metrics"]["f1"] == result(tmp_path)["metrics"]["accuracy"] == 1.0
    source.write_text("w1 B-ORG\n")
    with pytest.raises(DataError, match=r"dev.conll:1: unknown tag: a text of 5 characters"):
        run(folder, source, evaluate=True)


def test_long_text_entities_use_window_with_most_context(saved, run, jsonl, tmp_path):
    names = dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]))
    folder = saved("BertForTokenClassification", id2label=names, label2id={v: k for k, v in names.items()})
    words = [f"w{number % 40}" for number in range(100)]
    (found,) = run(folder, jsonl([{"text": " ".join(words)}]))
    parts = [(0, 30), (15, 45), (30, 60), (45, 75), (60, 90), (75, 100)]
    source = tmp_path / "parts.conll"
    source.write_text("\n".join("".join(f"{word} O\n" for word in words[slice(*part)]) for part in parts))
    alone = [one["tags"] for one in run(folder, source)]
    middle = [min(max(number - 8, 0) // 15, 5) for number in range(100)]
    tags = [alone[part][number - parts[part][0]] for number, part in enumerate(middle)]
    assert tags != [
        alone[part][number - parts[part][0]] for number, part in enumerate(min(n // 15, 5) for n in range(100))
    ]
    begins = [0, *itertools.accumulate(len(word) + 1 for word in words)]
    expected = [(one.type, begins[one.first], begins[one.last + 1] - 1) for one in entities(tags)]
    assert [(one["type"], one["begin"], one["end"]) for one in found["entities"]] == expected


def test_language_model_is_scored_on_plain_text(saved, run, tmp_path, texts):
    source = tmp_path / "rows.txt"
    source.write_text("\n".join(texts))
    folder = saved("BertForMaskedLM")
    found = run(folder, source, evaluate=True, batching=WINDOWS)
    metrics = result(tmp_path)["metrics"]
    masked = sum(one["masked"] for one in found)
    assert masked == sum(max(round(0.15 * (len(text.split()) + 2)), 1) for text in texts)
    assert metrics["mlm_loss"] == pytest.approx(sum(one["loss"] for one in found) / masked)
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["mlm_loss"]))
    assert metrics["mlm_accuracy"] == sum(one["right"] for one in found) / masked
    again = run(folder, source, evaluate=True)
    assert [one["loss"] for one in again] == pytest.approx([one["loss"] for one in found], rel=1e-3)
    other = run(folder, source, evaluate=True, masking={"seed": 1})
    assert [one["loss"] for one in other] != pytest.approx([one["loss"] for one in found], rel=1e-3)


def test_masks_are_filled_same_alone_and_batched(saved, run, jsonl):
    texts = ["w1 [MASK] w3", "[MASK] w5 w6", "w7 w8 [MASK]"]  # of equal length, so nothing is packed
    together = run(saved("BertForMaskedLM"), jsonl([{"text": text} for text in texts]))
    alone = [run(saved("BertForMaskedLM"), jsonl([{"text": text}]))[0] for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert [word["token"] for word in one["masks"][0]] == [word["token"] for word in other["masks"][0]]


def test_text_without_mask_is_refused(saved, run, jsonl):
    with pytest.raises(DataError, match=r"rows.jsonl:2: no \[MASK\] in the text"):
        run(saved("BertForMaskedLM"), jsonl([{"text": "w1 [MASK]"}, {"text": "w1"}]))


KILLED = {
    "before the report of a window": (predict, "report", 2),
    "before the scores": (MetricsLog, "report", 4),
    "before the file of predictions": (PredictionParts, "join", 1),
    "before the result": (predict.storage, "write_json", 2),
}


@pytest.mark.parametrize("moment", KILLED)
def test_killed_evaluation_reports_everything_once(saved, run, jsonl, texts, tmp_path, monkeypatch, moment):
    rows = [{"text": text, "label": "no" if number % 3 else "yes"} for number, text in enumerate(texts[:12])]
    names = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    model, source = classifier(saved, **names), jsonl(rows)
    keys = {"evaluate": True, "batching": WINDOWS}
    run(model, source, **keys)
    expected = reported(tmp_path)
    assert [step for step, _ in expected] == [4, 8, 12, 12]
    shutil.rmtree(tmp_path / "out")
    die_at_call(monkeypatch, *KILLED[moment])
    with pytest.raises(KeyboardInterrupt):
        run(model, source, **keys)
    run(model, source, **keys)
    assert reported(tmp_path) == expected


def reported(tmp_path):
    """Return each step of metrics.jsonl with its figures but those that depend on the clock."""
    found = [report for _, report in read_reports(tmp_path / "out" / "metrics.jsonl")]
    return [
        (one["step"], {name: value for name, value in one["metrics"].items() if "second" not in name}) for one in found
    ]


def die_at_call(monkeypatch, owner, name, number):
    """End the job as the n-th call of a function begins."""
    usual, left = getattr(owner, name), number

    def last(*given):
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return usual(*given)

    monkeypatch.setattr(owner, name, last)
