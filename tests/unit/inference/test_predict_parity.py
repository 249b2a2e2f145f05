"""Predictions equal those of transformers models and pipelines, in fp32 to 1e-5."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import transformers

from train_jobs.inference.input_windows import ANSWERS

CLOSE = {"rel": 1e-4, "abs": 1e-5}
NAMES = {0: "bad", 1: "so-so", 2: "good"}


def pipeline(task, folder, **more):
    return transformers.pipeline(task, model=str(folder), device="cpu", **more)


def outputs(kind, folder, first, second=None):
    """Return the outputs of a transformers model, one row at a time and thus without padding."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, kind).from_pretrained(folder).eval()
    found = []
    with torch.no_grad():
        for row, text in enumerate(first):
            pair = () if second is None else (second[row],)
            encoded = tokenizer(text, *pair, truncation=True, max_length=32, return_tensors="pt")
            found.append(model(**encoded))
    return found


def test_classes_and_probabilities_equal_pipeline(saved, run, jsonl, texts):
    folder = saved("BertForSequenceClassification", id2label=NAMES, label2id={v: k for k, v in NAMES.items()})
    found = run(folder, jsonl([{"text": text} for text in texts]))
    for mine, theirs in zip(found, pipeline("text-classification", folder, top_k=None)(texts), strict=True):
        assert [*mine["probabilities"]] == [one["label"] for one in theirs]
        assert [*mine["probabilities"].values()] == pytest.approx([one["score"] for one in theirs], **CLOSE)
        assert (mine["label"], mine["probability"]) == next(iter(mine["probabilities"].items()))
    assert len({one["probability"] for one in found}) > 20


def test_top_k_lists_most_likely_labels(saved, run, jsonl, texts):
    folder = saved("BertForSequenceClassification", id2label=NAMES, label2id={v: k for k, v in NAMES.items()})
    found = run(folder, jsonl([{"text": text} for text in texts]), top_k=2)
    theirs = pipeline("text-classification", folder, top_k=2)(texts)
    assert [[*one["probabilities"]] for one in found] == [[label["label"] for label in one] for one in theirs]


def test_folder_without_label_names_has_two(saved, run, jsonl, texts):
    folder = saved("BertForSequenceClassification")
    assert {one["label"] for one in run(folder, jsonl([{"text": text} for text in texts]))} <= {"LABEL_0", "LABEL_1"}


def test_pairs_are_two_segments_cut_like_longest_first(saved, run, jsonl, texts):
    folder = saved("BertForSequenceClassification")
    rows = [{"a": one, "b": " ".join(texts[:number])} for number, one in enumerate(texts, start=1)]
    found = run(folder, jsonl(rows), data={"text": "a", "pair": "b"})
    theirs = outputs("BertForSequenceClassification", folder, *([row[key] for row in rows] for key in "ab"))
    for mine, one in zip(found, theirs, strict=True):
        expected = one.logits[0].softmax(-1).tolist()
        assert [mine["probabilities"][f"LABEL_{number}"] for number in (0, 1)] == pytest.approx(expected, **CLOSE)


def test_regression_value_matches_model(saved, run, jsonl, texts):
    folder = saved("BertForSequenceClassification", num_labels=1)
    found = run(folder, jsonl([{"text": text} for text in texts]))
    theirs = [one.logits.item() for one in outputs("BertForSequenceClassification", folder, texts)]
    assert [one["value"] for one in found] == pytest.approx(theirs, **CLOSE)


def test_multi_label_probabilities_match_model(saved, run, jsonl, texts):
    folder = saved("BertForSequenceClassification", num_labels=3, problem_type="multi_label_classification")
    found = run(folder, jsonl([{"text": text} for text in texts]))
    for mine, theirs in zip(found, pipeline("text-classification", folder, top_k=None)(texts), strict=True):
        expected = {one["label"]: one["score"] for one in theirs}
        assert mine["probabilities"] == pytest.approx(expected, **CLOSE)
        assert set(mine["labels"]) == {name for name, score in expected.items() if score >= 0.5}
    first = run(folder, jsonl([{"text": text} for text in texts]), top_k=1)
    assert [one["labels"] for one in first] == [one["labels"] for one in found]
    assert {len(one["probabilities"]) for one in first} == {1}


def test_fill_mask_matches_pipeline(saved, run, jsonl, texts):
    folder = saved("BertForMaskedLM")
    masked = [re.sub(r"^\w+", "[MASK]", text) + " [MASK] w1" for text in texts]
    found = run(folder, jsonl([{"text": text} for text in masked]), top_k=4)
    for mine, theirs in zip(found, pipeline("fill-mask", folder, top_k=4)(masked), strict=True):
        assert len(mine["masks"]) == 2
        assert [[one["token"] for one in mask] for mask in mine["masks"]] == [
            [one["token_str"] for one in mask] for mask in theirs
        ]
        assert [[one["probability"] for one in mask] for mask in mine["masks"]] == [
            pytest.approx([one["score"] for one in mask], **CLOSE) for mask in theirs
        ]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_embeddings_match_model(saved, run, jsonl, texts, pooling):
    folder = saved("BertModel")
    found = run(folder, jsonl([{"text": text} for text in texts]), embeddings={"pooling": pooling, "normalise": True})
    for mine, one in zip(found, outputs("BertModel", folder, texts), strict=True):
        hidden = one.last_hidden_state[0]
        expected = hidden.mean(0) if pooling == "mean" else hidden[0]
        assert mine["embedding"] == pytest.approx((expected / expected.norm()).tolist(), **CLOSE)


def test_entities_match_pipeline_with_offsets(saved, run, jsonl):
    names = dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]))
    folder = saved("BertForTokenClassification", id2label=names, label2id={v: k for k, v in names.items()})
    texts = ["w1s, w2 w3x in Paris.", "  W7   in w9s w9 ", "w5", *(f"w{one}x w{one + 1}" for one in range(20))]
    found = run(folder, jsonl([{"text": text} for text in texts]))
    ner = pipeline("token-classification", folder, aggregation_strategy="first")
    assert any(len(one["entities"]) > 1 for one in found)
    for text, mine, theirs in zip(texts, found, ner(texts), strict=True):
        expected = [(one["entity_group"], one["start"], one["end"]) for one in theirs]
        assert [(one["type"], one["begin"], one["end"]) for one in mine["entities"]] == expected
        scores = pytest.approx([one["score"] for one in theirs], **CLOSE)
        assert [one["probability"] for one in mine["entities"]] == scores
        assert all(one["text"] == text[one["begin"] : one["end"]] for one in mine["entities"])


def test_answers_are_best_span_of_logits(saved, run, jsonl, texts):
    folder = saved("BertForQuestionAnswering")
    rows = [{"question": "w1 w2", "context": text} for text in texts]
    found = run(folder, jsonl(rows), data={"max_query_length": 8}, answers={"max_answer_length": 4})
    theirs = outputs("BertForQuestionAnswering", folder, ["w1 w2"] * len(texts), texts)
    for row, mine, one in zip(rows, found, theirs, strict=True):
        start, end = (getattr(one, f"{side}_logits")[0, 4:-1].numpy() for side in ("start", "end"))
        scores = start[:, None] + end[None, :]
        length = np.arange(len(end))[None, :] - np.arange(len(start))[:, None] + 1
        scores[(length < 1) | (length > 4)] = -np.inf
        first, last = np.unravel_index(scores.argmax(), scores.shape)
        words = row["context"].split()
        assert mine["answer"] == " ".join(words[first : last + 1])
        assert row["context"][mine["begin"] : mine["end"]] == mine["answer"]
        best = mine["candidates"][0]
        assert best["start_logit"] + best["end_logit"] == pytest.approx(scores.max(), **CLOSE)
        assert mine["probability"] == best["probability"]
    assert ANSWERS not in found[0]


def test_bf16_is_close_to_fp32(saved, run, jsonl, texts):
    folder = saved("BertModel")
    source = jsonl([{"text": text} for text in texts])
    exact = np.array([one["embedding"] for one in run(folder, source)])
    near = np.array([one["embedding"] for one in run(folder, source, batching={"precision": "bf16"})])
    assert 0 < np.abs(near - exact).max() < 0.1 * np.abs(exact).max()
