"""A new sentence task is one entry in `TASKS`: planned, trained, scored and predicted like any other."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from finetune_jobs import WORDS, result_of, run, settings

from orchestrator.jobs.finetune.plan import FinetunePlan, TaskRows
from orchestrator.jobs.resolve import make_plan, resolve_spec
from train_jobs import predict
from train_jobs.config.finetune import FinetuneConfig
from train_jobs.config.reported import reported_metrics
from train_jobs.config.tasks import TASKS, SentenceTask, tables

ROWS = {"train": 160, "dev": 40, "test": 10}
ENTRY = SentenceTask(
    name="Polarity",
    text="review",
    label="verdict",
    labels=("bad", "good"),
    metrics=("accuracy", "f1"),
    files=tables("Polarity", *ROWS.values()),
    recipe="glue-stable",
    aliases=("pol",),
)


@pytest.fixture(autouse=True)
def entry() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(TASKS, ENTRY.name, ENTRY)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of sentences with label `bad` if they contain `not`."""
    root = tmp_path_factory.mktemp("tasks")
    (root / "Polarity").mkdir()
    draw = random.Random(3)
    for split, rows in ROWS.items():
        lines = ["index\treview" if split == "test" else "verdict\treview"]
        for number in range(rows):
            words = draw.choices(WORDS, k=5)
            good = draw.random() < 0.5
            first = str(number) if split == "test" else ENTRY.labels[good]
            lines.append(f"{first}\t{' '.join(words if good else ['not', *words])}")
        (root / "Polarity" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return root


@pytest.mark.usefixtures("small_snapshot")
def test_plan_counts_rows_and_takes_recipe(bert: Path, folder: Path, tmp_path: Path) -> None:
    sets = [f"init_from={bert}", f"data.glue={folder}", "data.max_length=32", "task=pol"]
    resolved = resolve_spec("finetune", sets=sets, environ={"CUDA_VISIBLE_DEVICES": ""})
    plan = make_plan(resolved, home=tmp_path)
    assert isinstance(plan, FinetunePlan)
    assert (plan.spec.task, plan.spec.recipe) == ("Polarity", "glue-stable")
    assert plan.rows == {"Polarity": TaskRows(train=160, validation=40, test=10)}
    assert not [warning for warning in plan.warnings if "data." in warning]


def test_names_and_metrics_follow_task_entry(folder: Path) -> None:
    config = FinetuneConfig.model_validate({"task": "polarity", "init_from": "x", "data": {"glue": folder}})
    assert (config.task, config.ignored()) == ("Polarity", [])
    assert {"validation_accuracy", "validation_f1"} <= set(reported_metrics(config) or ())
    with pytest.raises(ValueError, match=r"glue, SQuAD-1\.1, SQuAD-2\.0, NER, Polarity or own"):
        FinetuneConfig.model_validate({"task": "Polairty", "init_from": "x", "data": {"glue": folder}})


def test_job_trains_scores_and_predicts(
    bert: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, settings(bert, "Polarity", {"glue": folder})) == 0
    assert "official file" not in capsys.readouterr().out
    result = result_of(tmp_path)
    assert result["task"] == "Polarity"
    assert result["metrics"]["accuracy"] > 0.8
    assert "submission" not in result
    out = tmp_path / "out"
    written = (out / "predictions" / "Polarity.tsv").read_text().splitlines()
    assert len(written) == 1 + ROWS["test"]
    assert {line.split("\t")[1] for line in written[1:]} <= {*ENTRY.labels}
    labels = json.loads((out / "model" / "config.json").read_text())["id2label"]
    assert list(labels.values()) == ["bad", "good"]
    assert "fine-tuned on Polarity" in (out / "model" / "README.md").read_text()


def test_evaluation_uses_columns_of_task_entry(bert: Path, folder: Path, tmp_path: Path) -> None:
    assert run(tmp_path, settings(bert, "Polarity", {"glue": folder}, train={"epochs": 2})) == 0
    document = {
        "model": str(tmp_path / "out" / "model"),
        "input": [str(folder / "Polarity" / "dev.tsv")],
        "task": "Polarity",
        "evaluate": True,
        "batching": {"precision": "fp32"},
    }
    (tmp_path / "predict.yaml").write_text(json.dumps(document))
    assert predict.main(["--config", str(tmp_path / "predict.yaml"), "--output", str(tmp_path / "scored")]) == 0
    found = json.loads((tmp_path / "scored" / "result.json").read_text())
    trained = result_of(tmp_path)["metrics"]
    assert found["metrics"]["accuracy"] == pytest.approx(trained["accuracy"])
