"""Predictions after damage: parts, their markers and the joined file that changed, are cut or are missing."""

from __future__ import annotations

import json
import os

import pytest

from train_jobs import predict
from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.config import SpecError
from train_jobs.engine.reporting.metrics import MetricsLog
from train_jobs.inference.prediction_files import PredictionParts
from train_jobs.inference.text_predictors import LabelPredictor

KEYS = {"evaluate": True, "batching": {"precision": "fp32", "window": 4}}
DAMAGED = 1  # number of a window
PART, MARKER = f"{DAMAGED:08d}.jsonl", f"{DAMAGED:08d}.json"


@pytest.fixture
def job(saved, run, jsonl, texts):
    """Return a function that predicts and scores three windows."""
    rows = [{"text": text, "label": "no" if number % 3 else "yes"} for number, text in enumerate(texts[:12])]
    names = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    model, source = saved("BertForSequenceClassification", **names), jsonl(rows)
    return lambda **more: run(model, source, **{**KEYS, **more})


@pytest.fixture
def seen(monkeypatch):
    """Return the first row of each window that is predicted."""
    found, once = [], LabelPredictor.predict

    def record(self, table, first):
        found.append(first)
        return once(self, table, first)

    monkeypatch.setattr(LabelPredictor, "predict", record)
    return found


def killed(monkeypatch, job, owner, name):
    """Run a job that dies as it calls a function."""

    def die(*_given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(KeyboardInterrupt):
            job()


def result(out):
    return json.loads((out / "result.json").read_text())


def steps(out):
    return [report["step"] for _, report in read_reports(out / "metrics.jsonl")]


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def flip_score(path):
    """Change a number of the score inputs, which stay valid JSON."""
    text = path.read_text()
    path.write_text(text.replace('"cut": 0', '"cut": 7'))
    assert path.read_text() != text


def forget(path):
    """Write a marker as earlier versions did: only the score inputs."""
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document.get("score_inputs", document)))


DAMAGE = {
    "flipped part": (PART, flip),
    "cut part": (PART, lambda path: os.truncate(path, path.stat().st_size // 2)),
    "missing part": (PART, lambda path: path.unlink()),
    "cut marker": (MARKER, lambda path: os.truncate(path, path.stat().st_size // 2)),
    "marker without content": (MARKER, lambda path: path.write_text("")),
    "changed scores": (MARKER, flip_score),
    "marker of an earlier version": (MARKER, forget),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_part_is_predicted_again(job, seen, tmp_path, monkeypatch, damage):
    out = tmp_path / "out"
    killed(monkeypatch, job, PredictionParts, "join")
    name, change = DAMAGE[damage]
    change(out / "predictions.jsonl.parts" / name)
    seen.clear()
    found, scores = job(), result(out)["metrics"]
    assert seen == [4]
    assert (result(out)["cut"], steps(out)) == (0, [4, 8, 12, 12])
    assert job(resume="never") == found
    assert result(out)["metrics"] == scores


def test_parts_left_by_kill_after_result_are_removed(job, seen, tmp_path, monkeypatch):
    out = tmp_path / "out"
    killed(monkeypatch, job, PredictionParts, "remove")
    assert (out / "predictions.jsonl.parts").exists()
    seen.clear()
    job()
    assert seen == []
    assert not (out / "predictions.jsonl.parts").exists()


def test_folder_of_user_with_the_name_of_parts_is_kept(job, tmp_path):
    notes = tmp_path / "out" / "predictions.jsonl.parts" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    with pytest.raises(SpecError, match="has files of something else"):
        job()
    assert notes.read_text() == "mine"


def test_parts_without_identity_after_kill_are_deleted(job, tmp_path, monkeypatch):
    killed(monkeypatch, job, PredictionParts, "join")
    parts = tmp_path / "out" / "predictions.jsonl.parts"
    (parts / "identity.json").unlink()
    job()
    assert not parts.exists()


def test_mirror_copies_the_rest_of_a_finished_job(job, tmp_path, monkeypatch):
    started = []

    class Mirror:
        def __init__(self, path, _config):
            self.path = path

        def start(self):
            started.append(self.path)

        def close(self, *, completed):
            started.append(completed)

    job()
    monkeypatch.setattr(predict, "MirrorThread", Mirror)
    before = steps(tmp_path / "out")
    job()
    assert started == [tmp_path / "out/metrics.jsonl", True]
    assert steps(tmp_path / "out") == before


def test_metrics_are_synced_before_the_result(job, tmp_path, monkeypatch):
    there, sync = [], MetricsLog.sync

    def record(self):
        there.append((tmp_path / "out/result.json").exists())
        sync(self)

    monkeypatch.setattr(MetricsLog, "sync", record)
    job()
    assert there == [False, True]


@pytest.mark.parametrize("change", [flip, lambda path: os.truncate(path, 10)])
def test_changed_predictions_are_predicted_again(job, seen, tmp_path, change):
    expected = job()
    change(tmp_path / "out/predictions.jsonl")
    seen.clear()
    assert job() == expected
    assert seen == [0, 4, 8]
    assert steps(tmp_path / "out") == [4, 8, 12, 12]


@pytest.mark.parametrize("change", [flip, lambda path: os.truncate(path, 10), lambda path: path.unlink()])
def test_changed_scored_rows_are_written_again(job, seen, tmp_path, change):
    """Also if the predictions are outside of the folder of the run: unchanged, they are not the user's work."""
    own, rows = tmp_path / "own.jsonl", tmp_path / "out/scored_rows.json"
    for _ in range(2):
        with pytest.raises(FileNotFoundError):  # the fixture reads the file in the folder of the run
            job(output=str(own))
    expected, predicted = rows.read_bytes(), own.read_bytes()
    assert seen == [0, 4, 8]
    change(rows)
    with pytest.raises(FileNotFoundError):
        job(output=str(own))
    assert (rows.read_bytes(), own.read_bytes()) == (expected, predicted)
    assert seen == [0, 4, 8] * 2


def test_changed_file_of_the_user_is_kept(job, tmp_path):
    own = tmp_path / "own.jsonl"
    job_with = {"output": str(own)}
    with pytest.raises(FileNotFoundError):  # the fixture reads the file in the folder of the run
        job(**job_with)
    original = own.read_text()
    own.write_text("notes")
    with pytest.raises(SpecError, match="changed since"):
        job(**job_with)
    assert own.read_text() == "notes"
    with pytest.raises(FileNotFoundError):
        job(**job_with, resume="never")
    assert own.read_text() == original


def test_result_of_earlier_version_is_accepted(job, seen, tmp_path):
    job()
    path = tmp_path / "out/result.json"
    new = (predict.FILE, predict.ROWS_FILE)
    path.write_text(json.dumps({key: value for key, value in result(path.parent).items() if key not in new}))
    seen.clear()
    job()
    assert seen == []


def test_rates_are_left_out_if_nothing_was_predicted(job, seen, tmp_path, monkeypatch):
    killed(monkeypatch, job, PredictionParts, "join")
    seen.clear()
    job()
    assert seen == []
    assert not {"seconds", "rows_per_second"} & result(tmp_path / "out").keys()
    job(resume="never")
    assert {"seconds", "rows_per_second"} < result(tmp_path / "out").keys()
