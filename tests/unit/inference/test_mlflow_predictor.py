"""An MLflow model of an export predicts what `train_jobs.predict` does, to 1e-5."""

from __future__ import annotations

import json
import shutil

import pandas as pd
import pytest

from orchestrator.backends.mlflow_model import model_files, read_export

CLOSE = {"rel": 1e-4, "abs": 1e-5}
# MLflow's, of its own classes, when it is imported
pytestmark = pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning")
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Leave the current folder: MLflow creates a store there when it loads a model."""
    monkeypatch.chdir(tmp_path)


def loaded(folder, tmp_path, **identity):
    """Return the MLflow model of an exported folder."""
    import mlflow

    target = tmp_path / "mlflow"
    shutil.copytree(folder, target)
    for name, content in model_files(read_export(folder), {}, {"run": "made-up"}, **identity).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)
    return mlflow.pyfunc.load_model(str(target))


def names(labels):
    return {"id2label": dict(enumerate(labels)), "label2id": {name: number for number, name in enumerate(labels)}}


def assert_close(mine, theirs):
    """Compare two JSON values: numbers to 1e-5, everything else exactly."""
    if isinstance(mine, dict):
        assert [*mine] == [*theirs]
        for key in mine:
            assert_close(mine[key], theirs[key])
    elif isinstance(mine, list):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_close(one, other)
    elif isinstance(mine, float):
        assert mine == pytest.approx(theirs, **CLOSE)
    else:
        assert mine == theirs


@pytest.mark.parametrize(
    "settings",
    [
        names(["bad", "so-so", "good"]),
        {"num_labels": 1},
        {"num_labels": 3, "problem_type": "multi_label_classification"},
    ],
    ids=["classes", "number", "several"],
)
def test_classifier_predicts_as_job(saved, run, jsonl, texts, tmp_path, settings):
    folder = saved("BertForSequenceClassification", **settings)
    texts = [*texts, " ".join(texts)]  # longer than all positions
    mine = loaded(folder, tmp_path).predict(pd.DataFrame({"text": texts}))
    assert_close(mine, run(folder, jsonl([{"text": text} for text in texts])))


def test_pair_classifier_predicts_as_job(saved, run, jsonl, texts, tmp_path):
    folder = saved("BertForSequenceClassification")
    rows = [{"text": one, "pair": " ".join(texts[:number])} for number, one in enumerate(texts, start=1)]
    rows += [{"text": row["pair"], "pair": row["text"]} for row in rows]
    mine = loaded(folder, tmp_path).predict(pd.DataFrame(rows))
    assert_close(mine, run(folder, jsonl(rows), data={"pair": "pair"}))


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForPreTraining"])
def test_masks_are_filled_as_by_job(saved, run, jsonl, texts, tmp_path, kind):
    folder, masked = saved(kind), [f"[MASK] {text} [MASK]" for text in texts]
    model = loaded(folder, tmp_path)
    assert_close(model.predict(masked), run(folder, jsonl([{"text": text} for text in masked])))
    (record,) = model.predict(masked[:1], params={"top_k": 2})
    assert [len(mask) for mask in record["masks"]] == [2, 2]
    with pytest.raises(ValueError, match=r"row 0: the text has no \[MASK\] in it"):
        model.predict(["w1"])


def test_entities_of_long_texts_match_job(saved, run, jsonl, texts, tmp_path):
    folder = saved("BertForTokenClassification", **names(TAGS))
    rows = [*texts, " ".join(texts), "w1, w2s. w3"]
    mine = loaded(folder, tmp_path).predict(rows)
    assert sum(len(record["entities"]) for record in mine) > 20
    assert_close(mine, run(folder, jsonl([{"text": text} for text in rows])))


@pytest.mark.parametrize("threshold", [None, -1.0, 40.0])
def test_answers_in_long_contexts_match_job(saved, run, jsonl, texts, tmp_path, threshold):
    settings = {} if threshold is None else {"null_threshold": threshold}
    folder = saved("BertForQuestionAnswering", **settings)
    rows = [{"question": one, "context": " ".join(texts[: number + 1])} for number, one in enumerate(texts)]
    mine = loaded(folder, tmp_path).predict(pd.DataFrame(rows))
    assert_close(mine, run(folder, jsonl(rows)))
    answered = [record["answer"] != "" for record in mine]
    assert any(answered) != (threshold == -1.0) or not all(answered)


def test_unusable_input_names_row(saved, tmp_path):
    model = loaded(saved("BertForQuestionAnswering"), tmp_path)
    with pytest.raises(Exception, match="context"):
        model.predict(pd.DataFrame([{"question": "w1"}]))


@pytest.mark.parametrize("rows", [300, 600])
def test_many_rows_are_computed_in_chunks(saved, tmp_path, monkeypatch, rows):
    model = loaded(saved("BertForSequenceClassification"), tmp_path)
    bert = model.unwrap_python_model()
    forward, calls = type(bert).forward, []

    def counted(self, sequences, *keys):
        calls.append(len(sequences))
        return forward(self, sequences, *keys)

    monkeypatch.setattr(type(bert), "forward", counted)
    table = pd.DataFrame({"text": [f"w1 w{number % 7}" for number in range(rows)]})
    found = model.predict(table)
    assert (sum(calls), max(calls)) == (rows, 256)
    assert_close(found[:7] + found[-7:], model.predict(table[:7]) + model.predict(table[-7:]))


def test_long_texts_are_computed_one_by_one(saved, tmp_path, monkeypatch):
    model = loaded(saved("BertForTokenClassification", **names(TAGS)), tmp_path)
    monkeypatch.setitem(type(model.unwrap_python_model()).predict.__globals__, "MOST_CHARACTERS", 40)
    texts = ["w1 w2 " * 10, "w3", "w4 w5", "w1 w2 " * 10]
    together = model.predict(texts)
    assert_close(together, [record for text in texts for record in model.predict([text])])


def test_unusable_row_of_later_chunk_is_numbered(saved, tmp_path):
    model = loaded(saved("BertForMaskedLM"), tmp_path)
    with pytest.raises(ValueError, match=r"row 257: the text has no \[MASK\] in it"):
        model.predict([*["w1 [MASK]"] * 257, "w1"])


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("hidden_size", 1_000_000, "embeddings.*has the shape"),
        ("vocab_size", 10**9, "word_embeddings.weight has the shape"),
        ("num_hidden_layers", 10**6, "2 layers, but config.json states 1000000"),
    ],
)
def test_config_of_other_shape_is_refused(saved, tmp_path, key, value, what):
    folder = shutil.copytree(saved("BertForSequenceClassification"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(ValueError, match=what):
        loaded(folder, tmp_path)
