"""Files of a fine-tuning that are damaged before the job ends: they are made again, never taken as they are."""

from __future__ import annotations

import json
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
from finetune_jobs import WORDS, result_of, run, same_model, validations

from train_jobs.engine.loop.loop import Loop
from train_jobs.tasks import replicates
from train_jobs.tasks.sentences import glue as glue_results


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a table of 48 rows and one of 24."""
    folder, draw = tmp_path_factory.mktemp("tables"), random.Random(1)
    for split, rows in {"train": 48, "dev": 24}.items():
        table = [{"text": " ".join(draw.choices(WORDS, k=5)), "label": draw.choice("ab")} for _ in range(rows)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    return folder


def job(bert: Path, tables: Path, **sections: Any) -> dict[str, Any]:
    """Return the configuration of a job with three steps an epoch."""
    return {
        "init_from": str(bert),
        "data": {"train": str(tables / "train.jsonl"), "validation": str(tables / "dev.jsonl"), "max_length": 16},
        "checkpoint": {"asynchronous": False, "every_minutes": None, "every": 40},
        **sections,
        "train": {"epochs": 1, "global_batch_size": 16, "precision": "fp32", **sections.get("train", {})},
    }


def set_scores(monkeypatch: pytest.MonkeyPatch, scores: dict[int, float]) -> None:
    """Replace the score of each validation; `scores` has it by step."""
    measure = Loop._measure

    def scored(self: Loop) -> dict[str, float]:
        self.last_validation = {**measure(self), "score": scores[self.state.step]}
        return self.last_validation

    monkeypatch.setattr(Loop, "_measure", scored)


def flip(path: Path) -> None:
    """Flip a bit of a file's last byte."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    ("damaged", "last"),
    [
        ("model.safetensors", 0.8),
        ("model.safetensors", 0.9),
        ("COMMIT.json", 0.8),
        ("COMMIT.json", 0.9),
        ("step-00000006", 0.8),
        ("step-00000006", 0.9),
    ],
)
def test_damaged_best_checkpoint_is_not_replaced(
    *, bert: Path, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, damaged: str, last: float
) -> None:
    """The next best checkpoint would be another result, also if its score is equal."""
    scores = {3: 0.7, 6: 0.9, 9: last}
    set_scores(monkeypatch, scores)
    document = job(bert, tables, train={"epochs": 3})
    assert run(tmp_path / "whole", document) == 0
    assert result_of(tmp_path / "whole")["best_step"] == 6
    finish = replicates.finish
    best = tmp_path / "here" / "out" / "checkpoints" / "step-00000006"

    def damage(*arguments: Any) -> dict[str, Any]:
        if damaged == best.name:
            best.rename(tmp_path / damaged)
        else:
            flip(best / damaged)
        return finish(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(replicates, "finish", damage)
        assert run(tmp_path / "here", document) == 1
    message = capfd.readouterr().err
    assert "error[storage]: cannot export the best checkpoint: it is damaged or missing" in message
    assert f"where  {best}" in message
    assert "orchestrator resume RUN" in message
    assert not (tmp_path / "here" / "out" / "model").exists()
    assert run(tmp_path / "here", document) == 0
    assert same_model(tmp_path / "here" / "out", tmp_path / "whole" / "out")
    assert validations(tmp_path / "here" / "out") == scores
    assert result_of(tmp_path / "here")["best_step"] == 6


@pytest.mark.parametrize(
    "damaged", ["model/model.safetensors", "model/lineage.json", "result.json", "without checkpoints"]
)
def test_damaged_finished_seed_is_run_again(
    bert: Path, tables: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], damaged: str
) -> None:
    document = job(bert, tables, seeds=[3, 4])
    assert run(tmp_path, document) == 0
    output = tmp_path / "out"
    before = result_of(tmp_path)
    seed = output / f"seed-{before['best_seed']}"
    other = next(folder for folder in output.glob("seed-*") if folder != seed)
    weights, kept = (seed / "model" / "model.safetensors").read_bytes(), (other / "result.json").stat().st_mtime_ns
    if damaged == "without checkpoints":
        (seed / "checkpoints").rename(tmp_path / "checkpoints")
        flip(seed / "model" / "model.safetensors")
    elif damaged == "model/model.safetensors":
        flip(seed / damaged)
    else:
        (seed / damaged).write_bytes((seed / damaged).read_bytes()[:100])
    capfd.readouterr()
    assert run(tmp_path, document) == 0
    shown = capfd.readouterr().out
    model = f"the weights in {seed}/model do not match their lineage"
    reason = f"{seed}/result.json is damaged" if damaged == "result.json" else model
    assert f"warning: {reason}, so this run is repeated from its last checkpoint\n" in shown
    resumed = f"resumed at step 3 from {seed}/checkpoints" in shown
    assert resumed == (damaged != "without checkpoints")
    assert (seed / "model" / "model.safetensors").read_bytes() == weights
    assert (output / "model" / "model.safetensors").read_bytes() == weights
    assert result_of(tmp_path) == before
    assert (other / "result.json").stat().st_mtime_ns == kept, "the intact seed is not repeated"


def note_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the names of the synced files, in order."""
    synced, fsync = [], os.fsync

    def note(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    return synced


def test_scored_rows_reach_the_disk_before_result(
    bert: Path, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = job(bert, tables, seeds=[3, 4])
    assert run(tmp_path, document) == 0
    synced = note_syncs(monkeypatch)
    assert run(tmp_path, document) == 0, "only the summary is written again"
    names = [name.removeprefix(".").rpartition(".json.")[0] for name in synced]
    assert names.index("scored_rows") < names.index("result")
    best = tmp_path / "out" / f"seed-{result_of(tmp_path)['best_seed']}"
    assert (tmp_path / "out" / "scored_rows.json").read_bytes() == (best / "scored_rows.json").read_bytes()


def test_submission_is_synced_and_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glue_results, "FILES", {name: (task, 2) for name, (task, _) in glue_results.FILES.items()})
    synced = note_syncs(monkeypatch)
    path, given = tmp_path / "submission.zip", {name: [0, 1] for name in glue_results.FILES}
    glue_results.write_submission(path, given)
    assert synced == [".submission.zip.tmp"]
    written = path.read_bytes()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile.ZipFile, "writestr", interrupted)
    with pytest.raises(KeyboardInterrupt):
        glue_results.write_submission(path, given)
    assert path.read_bytes() == written
    assert [found.name for found in tmp_path.iterdir()] == ["submission.zip"]
