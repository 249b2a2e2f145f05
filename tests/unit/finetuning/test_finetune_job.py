"""Classification jobs on tiny models and tables: training, the best checkpoint, resuming and saving."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from finetune_jobs import WORDS, run, same_model, settings, stop_in, validations
from safetensors.torch import load_file

from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.config.finetune import FinetuneConfig
from train_jobs.config.reported import reported_metrics
from train_jobs.engine.checkpoint.checkpoints import CheckpointStore
from train_jobs.engine.runtime.boundary import PREEMPTED
from train_jobs.tasks.finetuning import Finetuning


def pairs(rows: int, seed: int) -> list[tuple[int, str, str]]:
    """Return sentence pairs; in one of three the second contains `not` and the meaning differs."""
    draw = random.Random(seed)
    found = []
    for _ in range(rows):
        words = draw.choices(WORDS, k=draw.randint(3, 9))
        same = int(draw.random() < 0.67)
        found.append((same, " ".join(words), " ".join(words if same else ["not", *words[1:]])))
    return found


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a GLUE folder that contains only MRPC."""
    folder = tmp_path_factory.mktemp("glue")
    (folder / "MRPC").mkdir()
    for number, (split, rows) in enumerate({"train": 240, "dev": 60, "test": 30}.items()):
        header = "\ufeffQuality" if split != "test" else "index"
        lines = [f"{header}\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        lines += [f"{label}\t1\t2\t{one}\t{two}" for label, one, two in pairs(rows, number)]
        (folder / "MRPC" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def mrpc(bert: Path, glue: Path, **sections: Any) -> dict[str, Any]:
    return settings(bert, "MRPC", {"glue": glue}, **sections)


@pytest.fixture(scope="module")
def done(bert: Path, glue: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the outputs of an uninterrupted job."""
    folder = tmp_path_factory.mktemp("done")
    assert run(folder, mrpc(bert, glue)) == 0
    return folder / "out"


def test_job_beats_constant_prediction(done: Path) -> None:
    result = json.loads((done / "result.json").read_text())
    share = float(np.mean([label for label, _, _ in pairs(60, 1)]))
    assert 0.5 < share < 0.8
    assert result["metrics"]["accuracy"] > max(share + 0.15, 0.85)
    assert result["metrics"]["f1"] > 2 * share / (1 + share)
    assert result["metrics"]["collapsed"] == 0.0
    assert (result["task"], result["seed"], result["steps"]) == ("MRPC", 42, 120)


def test_each_epoch_is_evaluated_and_best_is_kept(done: Path) -> None:
    result = json.loads((done / "result.json").read_text())
    found = validations(done)
    assert list(found) == [15 * epoch for epoch in range(1, 9)]
    names = {name for _, report in read_reports(done / "metrics.jsonl") for name in report["metrics"]}
    declared = reported_metrics(
        FinetuneConfig.model_validate({"task": "MRPC", "init_from": "x", "data": {"glue": "x"}})
    )
    assert set(declared or ()) <= names
    best = next(step for step, score in found.items() if score == max(found.values()))
    assert result["best_step"] == best
    assert result["metrics"]["score"] == pytest.approx(found[best])
    saved = load_file(done / "model" / "model.safetensors")
    kept = load_file(done / "checkpoints" / f"step-{best:08d}" / "model.safetensors")
    assert saved.keys() == kept.keys()
    assert all(torch.equal(saved[name], kept[name]) for name in saved)


def test_transformers_loads_labels_and_predicts_equally(done: Path) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(done / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(done / "model")
    assert model.config.id2label == {0: "not_equivalent", 1: "equivalent"}
    first, second = zip(*(pair[1:] for pair in pairs(30, 2)), strict=True)
    with torch.no_grad():
        logits = model(**tokenizer(list(first), list(second), padding=True, return_tensors="pt")).logits
    expected = [f"{row}\t{label}" for row, label in enumerate(logits.argmax(-1).tolist())]
    lines = (done / "predictions" / "MRPC.tsv").read_text().splitlines()
    assert lines == ["index\tprediction", *expected]
    assert len(set(logits.argmax(-1).tolist())) == 2


def test_stopped_run_resumes_to_identical_weights(
    bert: Path, glue: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_in(patched, epoch=4)
        assert run(tmp_path, mrpc(bert, glue)) == PREEMPTED
    assert not (tmp_path / "out" / "model").exists()
    assert run(tmp_path, mrpc(bert, glue)) == 0
    assert same_model(tmp_path / "out", done)
    assert validations(tmp_path / "out") == validations(done)


@pytest.mark.long
@pytest.mark.parametrize("name", ["state.json", "model.safetensors"])
def test_damaged_best_checkpoint_is_trained_again(
    bert: Path, glue: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, name: str
) -> None:
    """The result is the best checkpoint, not the newest one."""
    with monkeypatch.context() as patched:
        stop_in(patched, epoch=6)
        assert run(tmp_path, mrpc(bert, glue)) == PREEMPTED
    best = CheckpointStore(tmp_path / "out" / "checkpoints", keep_last=1).best()
    assert best is not None
    newest = committed_step(tmp_path)
    assert best.step < newest
    damaged = best.folder / name
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert run(tmp_path, mrpc(bert, glue)) == 0
    shown = capfd.readouterr().out
    assert f"warning: the checkpoint of step {best.step} is damaged, starting over" in shown
    assert f"warning: step {newest} is not used: the result is the best checkpoint, and it is damaged" in shown
    assert same_model(tmp_path / "out", done)
    assert validations(tmp_path / "out") == validations(done)


@pytest.mark.long
def test_sigterm_within_epoch_keeps_run_bit_exact(
    bert: Path, glue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All stateful features: dropout, accumulation of grouped batches, LAMB, class weights, a best score."""
    document = mrpc(
        *(bert, glue),
        train={
            "epochs": 2,
            "micro_batch_size": 8,
            "precision": "bf16",
            "group_by_length": True,
            "class_weights": "balanced",
        },
        optimizer={"name": "lamb", "learning_rate": 3e-3, "layer_decay": 0.9},
        evaluation={"every": 6, "patience": 4},
    )
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    assert run(tmp_path / "whole", document) == 0
    made = Finetuning.train_batch
    for after in (8, 12):  # of 15 in an epoch
        batches = iter(range(after))

        def stopped(self: Finetuning, cursor: dict[str, int], batches: Iterator[int] = batches) -> Any:
            if next(batches, None) is None:
                os.kill(os.getpid(), signal.SIGTERM)
            return made(self, cursor)

        with monkeypatch.context() as patched:
            patched.setattr(Finetuning, "train_batch", stopped)
            assert run(tmp_path / "stopped", document) == PREEMPTED
        assert committed_step(tmp_path / "stopped") % 15 != 0
    assert committed_step(tmp_path / "stopped") > 15
    assert run(tmp_path / "stopped", document) == 0
    outputs = [tmp_path / name / "out" for name in ("whole", "stopped")]
    assert same_model(*outputs)
    one, other = (load_file(path / "checkpoints" / "step-00000030" / "model.safetensors") for path in outputs)
    assert all(torch.equal(one[name], other[name]) for name in one)
    losses = [validations(output, "validation_loss") for output in outputs]
    assert losses[0] == losses[1]
    assert list(losses[0]) == [6, 12, 18, 24, 30]
    assert len({(output / "predictions" / "MRPC.tsv").read_text() for output in outputs}) == 1


def committed_step(folder: Path) -> int:
    """Return the step of the newest checkpoint."""
    return max(int(path.parent.name.split("-")[1]) for path in folder.glob("out/checkpoints/*/COMMIT.json"))


def test_other_configuration_is_refused(bert: Path, glue: Path, done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(done.parent, mrpc(bert, glue), "--set", "optimizer.learning_rate=0.002") == 1
    assert "optimizer.learning_rate: 0.003 -> 0.002" in capsys.readouterr().err


def test_seeds_are_replicates_of_own_task(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split, rows in {"train": 48, "dev": 24, "test": 6}.items():
        table = [{"text": one, "pair": two, "label": 2.5 * label} for label, one, two in pairs(rows, len(split))]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    data = {"train": "train", "validation": "dev", "test": "test"}
    document = {
        "init_from": str(bert),
        "seeds": [3, 4],
        "data": {
            **{key: str(tmp_path / f"{name}.jsonl") for key, name in data.items()},
            "pair": "pair",
            "regression": True,
            "max_length": 24,
        },
        "train": {"epochs": 1, "global_batch_size": 16, "group_by_length": True, "unpad": False, "precision": "fp32"},
        "optimizer": {"layer_decay": 0.9},
    }
    assert run(tmp_path, document) == 0
    output = tmp_path / "out"
    result = json.loads((output / "result.json").read_text())
    each = [run["metrics"]["pearson"] for run in result["seeds"]]
    assert each[0] != each[1]
    low, high = np.mean([run["intervals"]["pearson"] for run in result["seeds"]], axis=0)
    assert result["metrics"]["pearson"] == pytest.approx(
        {"mean": np.mean(each), "sd": np.std(each, ddof=1), "median": np.mean(each), "max": max(each)}
        | {"low": low, "high": high}
    )
    assert result["collapsed"] == sum(run["metrics"]["collapsed"] for run in result["seeds"])
    assert result["best_seed"] == max(result["seeds"], key=lambda run: run["metrics"]["score"])["seed"]
    best = output / f"seed-{result['best_seed']}" / "model" / "model.safetensors"
    assert (output / "model" / "model.safetensors").read_bytes() == best.read_bytes()
    assert len((output / "predictions" / "predictions.tsv").read_text().splitlines()) == 7
    model = transformers.AutoModelForSequenceClassification.from_pretrained(output / "model")
    assert (model.config.problem_type, model.config.num_labels) == ("regression", 1)
    before = best.stat().st_mtime_ns
    assert run(tmp_path, document) == 0
    assert best.stat().st_mtime_ns == before, "what is done is left alone"
    assert [report["step"] for _, report in read_reports(output / "metrics.jsonl")] == [1, 2]
    more = ["--set", "seeds=[3,4,5]"]
    for name, change in {
        "dev": ["--set", f"data.validation={tmp_path / 'test.jsonl'}"],
        "test": ["--set", f"data.test={tmp_path / 'dev.jsonl'}"],
        "every": ["--set", "evaluation.every=2"],
    }.items():
        assert run(tmp_path, document, *more, *change) == 1
        assert f"scored.{name}: " in capsys.readouterr().err
    seed = output / "seed-3" / "result.json"
    older = json.loads(seed.read_text())
    del older["config"]["scored"]  # as versions wrote it that did not check these
    seed.write_text(json.dumps(older))
    assert run(tmp_path, document) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [1, 1]}, "seeds contains a duplicate"),
        ({"train": {"epoch": 3}}, 'train.epoch: unknown key (did you mean "epochs"?)'),
        ({"optimizer": {"name": "lion:Lion"}}, "does not support your own code"),
        ({"schedule": {"hours": 2.0}}, "fine-tuning, which ends with train.epochs"),
    ],
)
def test_invalid_keys_and_values_are_named(
    bert: Path, glue: Path, tmp_path: Path, changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, mrpc(bert, glue, **changes)) == 2
    assert message in capsys.readouterr().err


def test_sequence_longer_than_model_is_refused(
    bert: Path, glue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, mrpc(bert, glue), "--set", "data.max_length=33") == 2
    assert "--set data.max_length=32" in capsys.readouterr().err


def test_bad_rows_end_job_with_their_lines(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("text\tlabel\na\tx\n\tx\nb\ty\nc\n")
    document = {"init_from": str(bert), "data": {"train": str(path), "validation": str(path), "max_length": 32}}
    assert run(tmp_path, document) == 2
    assert f"{path}:5: 0 tabs, need 1" in capsys.readouterr().err


def test_unused_setting_and_micro_batch_are_reported(
    bert: Path, glue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = mrpc(bert, glue, evaluation={"max_answer_length": 7})
    assert run(tmp_path, document, "--set", "train.epochs=1", "--set", "train.micro_batch_size=auto") == 0
    output = capsys.readouterr().out
    assert "warning: evaluation.max_answer_length has no effect on task MRPC\n" in output
    assert "micro batches of 16 (auto)\n" in output
