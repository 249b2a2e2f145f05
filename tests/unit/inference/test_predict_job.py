"""The whole prediction job: output formats, interruption and resume, and refusals."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from train_jobs import predict
from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.config import DataError, OutOfMemoryError, SpecError
from train_jobs.engine.runtime import storage
from train_jobs.engine.runtime.stop import Preempted
from train_jobs.inference import forward
from train_jobs.inference.prediction_files import PredictionParts
from train_jobs.inference.text_predictors import LabelPredictor

WINDOWS = {"precision": "fp32", "window": 4}


def classifier(saved, **more):
    return saved("BertForSequenceClassification", **more)


def result(tmp_path):
    return json.loads((tmp_path / "out" / "result.json").read_text())


def rows_of(texts):
    return [{"id": number, "text": text} for number, text in enumerate(texts)]


def test_window_and_batch_sizes_do_not_change_results(saved, run, jsonl, texts):
    folder, source = classifier(saved), jsonl(rows_of(texts))
    whole = run(folder, source, data={"keep": ["id"]})
    small = run(folder, source, data={"keep": ["id"]}, batching={**WINDOWS, "batch_tokens": 8})
    assert [one["id"] for one in small] == list(range(len(texts)))
    for one, other in zip(whole, small, strict=True):
        assert one["probability"] == pytest.approx(other["probability"], rel=1e-4)


def test_tsv_has_columns_and_one_line_per_row(saved, run, jsonl, tmp_path):
    source = jsonl([{"id": 'a\tb\n"c" \\d', "text": "w1"}, {"id": 7, "text": "w2"}])
    found = predict_in_both_formats(saved, run, source, output="found.tsv", data={"keep": ["id"]})
    lines = (tmp_path / "out" / "found.tsv").read_text().splitlines()
    assert lines[0] == "id\tlabel\tprobability\tprobabilities"
    fields = lines[1].split("\t")
    assert fields[0] == 'a\\tb\\n"c" \\\\d'
    assert json.loads(fields[3]) == found[0]["probabilities"]
    assert (len(lines), lines[2][0]) == (3, "7")


def test_csv_is_read_back_with_ids(saved, run, jsonl, tmp_path):
    """Python's reader, and so a spreadsheet, finds the rows in their order, whatever characters an id has."""
    ids = ['a,b\n"c"', "\u00e9", 7, None, "", "x"]
    source = jsonl([{"id, of row": one, "text": f"w{number}"} for number, one in enumerate(ids)])
    keys = {"output": "found.csv", "data": {"keep": ["id, of row"]}, "batching": WINDOWS}  # two parts
    found = predict_in_both_formats(saved, run, source, **keys)
    with (tmp_path / "out" / "found.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["id, of row", "label", "probability", "probabilities"]
    assert [row["id, of row"] for row in rows] == [ids[0], ids[1], "7", "", "", "x"]
    assert [row["label"] for row in rows] == [one["label"] for one in found]
    assert [float(row["probability"]) for row in rows] == pytest.approx([one["probability"] for one in found], rel=1e-4)
    assert json.loads(rows[0]["probabilities"]).keys() == found[0]["probabilities"].keys()


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_dates_and_decimals_are_written_as_text(saved, run, tmp_path, suffix):
    kept = {"day": date(2024, 1, 2), "price": Decimal("1.50"), "tags": ["a"], "seen": True, "id": 2**62}
    pq.write_table(pa.Table.from_pylist([{**kept, "text": "w1"}]), tmp_path / "rows.parquet")
    keep = ["day", "price", "tags", "seen", "id"]
    output = f"found.{suffix}"
    predict_in_both_formats(saved, run, tmp_path / "rows.parquet", output=output, data={"keep": keep})
    with (tmp_path / "out" / output).open(encoding="utf-8", newline="") as stream:
        (row,) = csv.DictReader(stream, delimiter="\t" if suffix == "tsv" else ",")
    assert [row[name] for name in keep] == ["2024-01-02", "1.50", '["a"]', "true", str(2**62)]


@pytest.mark.parametrize(
    ("suffix", "kept"),
    [
        ("jsonl", [None, None, 0.5, [1.0, None], {"a": None}]),
        ("csv", ["", "", "0.5", "[1.0, null]", '{"a": null}']),
        ("tsv", ["null", "null", "0.5", "[1.0, null]", '{"a": null}']),
    ],
)
def test_copied_nan_and_infinity_are_null(saved, run, tmp_path, suffix, kept):
    """Neither is JSON; each is written as a null of the input is."""
    nan, infinity = float("nan"), float("inf")
    row = {"a": nan, "b": infinity, "c": 0.5, "d": [1.0, nan], "e": {"a": -infinity}}
    pq.write_table(pa.Table.from_pylist([{**row, "text": "w1"}]), tmp_path / "rows.parquet")
    output = f"found.{suffix}"
    predict_in_both_formats(saved, run, tmp_path / "rows.parquet", output=output, data={"keep": list(row)})
    with (tmp_path / "out" / output).open(encoding="utf-8", newline="") as stream:
        if suffix == "jsonl":
            (found,) = [json.loads(line, parse_constant=pytest.fail) for line in stream]
        else:
            (found,) = csv.DictReader(stream, delimiter="\t" if suffix == "tsv" else ",")
    assert [found[name] for name in row] == kept


def test_large_ids_are_written_to_parquet(saved, run, tmp_path):
    ids = pa.array([*range(4), *range(2**64 - 4, 2**64)], pa.uint64())  # two parts; the first fits into int64
    pq.write_table(pa.table({"id": ids, "text": [f"w{number}" for number in range(8)]}), tmp_path / "rows.parquet")
    keys = {"output": "found.parquet", "data": {"keep": ["id"]}, "batching": WINDOWS}
    predict_in_both_formats(saved, run, tmp_path / "rows.parquet", **keys)
    found = pq.read_table(tmp_path / "out" / "found.parquet")["id"]
    assert (found.type, found.to_pylist()) == (pa.uint64(), ids.to_pylist())


@pytest.mark.parametrize("ids", [[2**64], [-1, 2**63], [-1, 1, 2, 3, 2**63]])
def test_ids_without_common_type_are_refused_in_parquet(saved, run, jsonl, ids):
    source = jsonl([{"id": one, "text": "w1"} for one in ids])
    with pytest.raises(DataError, match="column id has values of several types"):
        run(classifier(saved), source, output="found.parquet", data={"keep": ["id"]}, batching=WINDOWS)


def predict_in_both_formats(saved, run, source, **keys):
    """Return the rows as JSON Lines and in the requested format."""
    found = run(classifier(saved), source)
    try:
        run(classifier(saved), source, **keys)
    except FileNotFoundError:  # the second run must keep predictions.jsonl of the first
        raise AssertionError from None
    return found


def test_parquet_output_has_types(saved, run, jsonl, texts, tmp_path):
    source = jsonl(
        [{"id": number, "when": None if number < 4 else 0.5, "text": text} for number, text in enumerate(texts)]
    )
    keys = {"output": "found.parquet", "data": {"keep": ["id", "when"]}, "batching": WINDOWS}
    found = predict_in_both_formats(saved, run, source, **keys)
    table = pq.read_table(tmp_path / "out" / "found.parquet")
    assert table["id"].to_pylist() == list(range(len(texts)))
    assert table["when"].to_pylist() == [None] * 4 + [0.5] * (len(texts) - 4)
    assert table["label"].to_pylist() == [one["label"] for one in found]
    assert table["probabilities"].to_pylist()[0] == pytest.approx(found[0]["probabilities"], rel=1e-4)


def test_mixed_type_column_is_refused_in_parquet(saved, run, jsonl):
    source = jsonl([{"id": 1, "text": "w1"}, {"id": "a", "text": "w2"}])
    with pytest.raises(DataError, match="column id has values of several types"):
        run(classifier(saved), source, output="found.parquet", data={"keep": ["id"]})


def test_embeddings_are_written_as_array(saved, run, jsonl, texts, tmp_path):
    source = jsonl(rows_of(texts))
    found = run(saved("BertModel"), source)
    run(saved("BertModel"), source, output="found.npz", batching=WINDOWS)
    with np.load(tmp_path / "out" / "found.npz") as archive:
        assert archive["embeddings"].dtype == np.float32
        expected = [one["embedding"] for one in found]
        np.testing.assert_allclose(archive["embeddings"], expected, rtol=1e-4, atol=1e-5)


def test_stop_keeps_finished_windows_and_job_resumes(saved, run, jsonl, texts, tmp_path, monkeypatch):
    folder, source = classifier(saved), jsonl(rows_of(texts))
    expected = run(folder, source, batching=WINDOWS)
    shutil.rmtree(tmp_path / "out")
    stop_after(monkeypatch, 3)
    with pytest.raises(Preempted):
        run(folder, source, batching=WINDOWS)
    assert not (tmp_path / "out" / "predictions.jsonl").exists()
    predicted_before = record_windows(monkeypatch)
    assert run(folder, source, batching=WINDOWS) == expected
    assert predicted_before == [12, 16, 20, 24]
    assert not (tmp_path / "out" / "predictions.jsonl.parts").exists()
    reports = [report for _, report in read_reports(tmp_path / "out" / "metrics.jsonl")]
    assert [report["step"] for report in reports] == [4, 8, 12, 16, 20, 24, 25]


def stop_after(monkeypatch, windows):
    """Send SIGTERM after the given number of windows."""
    write = PredictionParts.write

    def last(self, number, records, judged):
        write(self, number, records, judged)
        if number + 1 == windows:
            monkeypatch.setattr(PredictionParts, "write", write)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(PredictionParts, "write", last)


def record_windows(monkeypatch):
    """Record the first row of each window that is predicted from now on."""
    seen = []
    once = LabelPredictor.predict

    def record_first(self, table, first):
        seen.append(first)
        return once(self, table, first)

    monkeypatch.setattr(LabelPredictor, "predict", record_first)
    return seen


@pytest.mark.parametrize("changed", ["input", "settings", "weights", "nothing"])
def test_parts_of_other_input_or_model_are_ignored(saved, run, jsonl, texts, tmp_path, monkeypatch, changed):
    stop_after(monkeypatch, 3)
    with pytest.raises(Preempted):
        run(classifier(saved), jsonl(rows_of(texts)), batching=WINDOWS)
    seen = record_windows(monkeypatch)
    source = jsonl(rows_of(["w9", *texts[1:]])) if changed == "input" else jsonl(rows_of(texts))
    folder = tmp_path / "model"
    shutil.copytree(classifier(saved), folder)
    if changed == "weights":
        weights = load_file(folder / "model.safetensors")
        save_file({**weights, "classifier.bias": weights["classifier.bias"] + 1}, folder / "model.safetensors")
    run(folder, source, batching=WINDOWS, top_k=1 if changed == "settings" else None)
    assert seen[0] == (12 if changed == "nothing" else 0)


def test_completed_output_is_kept_and_can_be_repeated(saved, run, jsonl, texts, monkeypatch):
    folder, source = classifier(saved), jsonl(rows_of(texts))
    run(folder, source)
    seen = record_windows(monkeypatch)
    run(folder, source)
    assert seen == []
    run(folder, source, resume="never")
    assert seen == [0]


def test_output_of_other_configuration_not_reused(saved, run, jsonl, texts, tmp_path, monkeypatch):
    folder, source = classifier(saved), jsonl(rows_of(texts))
    expected = run(folder, source)
    write = storage.write_json

    def killed(path, document):
        if path.name == "result.json":
            raise KeyboardInterrupt
        write(path, document)

    monkeypatch.setattr(storage, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        run(folder, source, top_k=1)
    monkeypatch.undo()
    assert len(json.loads((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()[0])["probabilities"]) == 1
    assert run(folder, source) == expected


def test_compiling_without_compiler_is_reported(saved, run, jsonl, texts, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(SpecError, match=r"batching\.compile needs a C\+\+ compiler") as caught:
        run(classifier(saved), jsonl(rows_of(texts)), batching={"compile": True})
    assert "--set batching.compile=auto" in str(caught.value.fix)


def test_out_of_memory_halves_batches(saved, run, jsonl, texts, monkeypatch):
    folder, source = classifier(saved), jsonl(rows_of(texts))
    expected = run(folder, source)
    seen = limit_memory(monkeypatch, 40)
    found = run(folder, source, resume="never")
    assert [one["label"] for one in found] == [one["label"] for one in expected]
    assert max(seen) > 40 >= seen[-1]


@pytest.mark.long
def test_out_of_memory_with_one_sequence_raises(saved, run, jsonl, texts, monkeypatch):
    limit_memory(monkeypatch, 2)
    with pytest.raises(OutOfMemoryError, match="out of memory with one sequence of 14 tokens"):
        run(classifier(saved), jsonl(rows_of(texts)))


def limit_memory(monkeypatch, tokens):
    """Limit memory to `tokens` tokens; return the list of attempted batch sizes."""
    made, seen = forward.Forward.batch, []

    def batch(self, sequences, rows):
        seen.append(sum(len(one.ids) for one in sequences))
        if seen[-1] > tokens:
            raise MemoryError
        return made(self, sequences, rows)

    monkeypatch.setattr(forward.Forward, "batch", batch)
    return seen


def test_truncated_rows_are_counted_across_starts(saved, run, jsonl, tmp_path, monkeypatch):
    source = jsonl([{"text": "w1 " * size} for size in (31, 30, 50)])
    stop_after(monkeypatch, 1)
    with pytest.raises(Preempted):
        run(classifier(saved), source, batching={"window": 1})
    run(classifier(saved), source, batching={"window": 1})
    assert result(tmp_path)["cut"] == 2


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("BertModel", {"task": "text-classification"}, "has no head for text-classification"),
        ("BertForMaskedLM", {"task": "question-answering"}, "has no head for question-answering"),
        ("BertModel", {"data": {"max_length": 33}}, "data.max_length 33 is more than the 32 positions"),
        ("BertForMaskedLM", {"output": "found.npz"}, ".npz holds only embeddings"),
        ("BertModel", {"evaluate": True}, "cannot score embeddings"),
        ("BertModel", {"data": {"keep": ["embedding"]}}, "the output already has a column embedding"),
    ],
)
def test_task_that_model_cannot_do_is_refused(saved, run, jsonl, kind, keys, message):
    with pytest.raises(SpecError, match=message.replace("[", r"\[")):
        run(saved(kind), jsonl([{"text": "w1 [MASK]", "embedding": 1}]), **keys)


def test_other_model_type_and_missing_model_are_refused(saved, run, jsonl, tmp_path):
    source = jsonl([{"text": "w1"}])
    with pytest.raises(SpecError, match=r"cannot read .*config\.json"):
        run(tmp_path, source)
    folder = tmp_path / "other"
    shutil.copytree(saved("BertModel"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "roberta", "hidden_act": "relu"}))
    with pytest.raises(SpecError) as failure:
        run(folder, source)
    assert "model_type is 'roberta', need 'bert'" in str(failure.value)
    assert "hidden_act is 'relu', need 'gelu'" in str(failure.value)
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMultipleChoice"]}))
    with pytest.raises(SpecError, match="unknown class in config"):
        run(folder, source)


def test_predict_command_prints_summary(saved, jsonl, texts, tmp_path, capsys):
    source, out = jsonl(rows_of(texts)), tmp_path / "out"
    arguments = ["--model", str(saved("BertModel")), "--input", str(source), "--output", str(out), "--device", "cpu"]
    assert predict.main([*arguments, "--set", "batching.window=10"]) == 0
    assert "rows 25/25" in capsys.readouterr().out
    assert len((out / "predictions.jsonl").read_text().splitlines()) == 25
    assert predict.main([*arguments, "--set", "batchng.window=10"]) == 2
    assert 'did you mean "batching"' in capsys.readouterr().err
    assert json.loads((out / "error-0.json").read_text())["error"]["kind"] == "spec"


@pytest.mark.parametrize("link", [None, Path.symlink_to, Path.hardlink_to])
def test_output_that_is_an_input_is_refused(saved, jsonl, texts, tmp_path, capsys, link):
    source, output = jsonl(rows_of(texts)), tmp_path / "output.jsonl"
    before = source.read_text()
    if link is None:
        output = source
    else:
        link(output, source)
    words = ["--model", str(classifier(saved)), "--input", str(source), "--set", f"output={output}"]
    assert predict.main([*words, "--output", str(tmp_path / "out"), "--device", "cpu"]) == 2
    assert f"it is the input {source}" in capsys.readouterr().err
    assert source.read_text() == before


def test_predictions_of_earlier_run_in_place_are_refused(saved, jsonl, texts, tmp_path, capsys):
    """Also a relative output in the folder of the run."""
    source = jsonl(rows_of(texts), "predictions.jsonl")
    words = ["--model", str(classifier(saved)), "--input", str(source), "--output", str(tmp_path)]
    assert predict.main([*words, "--device", "cpu"]) == 2
    assert "--set output=OTHER.jsonl" in capsys.readouterr().err


def test_summary_names_attention_kernel_of_all_processes(saved, run, jsonl, texts, monkeypatch, capsys):
    asked = []

    def agree(world, precision, head_size, **more):
        asked.append((precision, head_size, more["section"]))
        return ["warning: attention is slower without FlashAttention"]

    monkeypatch.setattr(predict, "agree_on_kernels", agree)
    run(classifier(saved), jsonl(rows_of(texts)), batching={"precision": "fp32"})
    assert "warning: attention is slower without FlashAttention\n" in capsys.readouterr().out
    assert asked == [("fp32", 16, "batching")]


@pytest.mark.long
def test_processes_share_windows(saved, run, jsonl, texts, tmp_path):
    folder, source = classifier(saved), jsonl(rows_of(texts))
    expected = run(folder, source, batching=WINDOWS)
    settings = ["--set", "batching.window=4", "--set", "batching.precision=fp32"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "train_jobs.predict", "--model", str(folder), "--input", str(source), "--device", "cpu"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "two"), *settings],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "two" / "predictions.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [one["label"] for one in found] == [one["label"] for one in expected]
    assert [one["probability"] for one in found] == pytest.approx([one["probability"] for one in expected], rel=1e-4)
    assert [line for line in done.stdout.splitlines() if line.startswith("rows ")][1:] == [
        line for line in done.stdout.splitlines() if line.startswith("rows ") and "/25" in line
    ]
    assert json.loads((tmp_path / "two" / "result.json").read_text())["rows"] == 25
