"""Real runs as MLflow's own client reads them: tags, description, datasets, artifacts; and the same after each copy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from orchestrator.backends.folder.mlflow_sync import sync_run
from orchestrator.backends.folder.run_folder import RunFolder
from tests.conftest import Console, write_corpus, write_spec
from tests.e2e.test_private_text import TUNING
from tests.mlflow_runs import wait_for_copy
from tests.unit.privacy.canary import files_with_canary
from tests.unit.privacy.private_data import write_rows

pytestmark = pytest.mark.long

LIGHT = {
    "artifacts.json",
    "config.json",
    "environment.json",
    "lineage.json",
    "model_card.md",
    "pictures",
    "plan.json",
    "report.html",
    "request.json",
    "spec.yaml",
}


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Console:
    folder = tmp_path_factory.mktemp("records")
    return Console(home=folder / "home", cwd=folder)


@pytest.fixture(scope="module")
def runs(console: Console) -> dict[str, RunFolder]:
    """Return a pretraining, and a fine-tuning that started from it and has predictions as artifacts."""
    folder = console.cwd
    write_spec(folder / "job.yaml", data={"text": [str(write_corpus(folder / "corpus.txt"))]})
    secret = ("--set", "environment.variables.MY_TOKEN=./quokka-4711")
    first = console("submit", "pretrain", "-f", "job.yaml", *secret, "-o", "json")
    assert first.code == 0, first.err
    assert "about 400 kB of files (tracking.artifacts)" in first.err.replace("\n              ", " ")
    name = first.json["name"]
    write_rows(folder)
    task = ("--task", str(folder / "notes.yaml"), "--model", name, *TUNING)
    second = console("submit", "finetune", *task, "--set", "tracking.artifacts=all", "-o", "json")
    assert second.code == 0, second.err
    found = {"pretrain": RunFolder(console.folder(name)), "finetune": RunFolder(console.folder(second.json["name"]))}
    for run in found.values():
        wait_for_copy(run)
    return found


def client(console: Console) -> MlflowClient:
    return MlflowClient(tracking_uri=f"sqlite:///{console.home / 'mlflow.db'}")


def everything(console: Console, run: RunFolder) -> dict[str, Any]:
    """Return all that MLflow has of a run, and the content of its artifacts."""
    mlflow = client(console)
    found = mlflow.get_run(str(run.mlflow_run_id))
    place = Path(found.info.artifact_uri.removeprefix("file://"))
    histories = {key: mlflow.get_metric_history(found.info.run_id, key) for key in found.data.metrics}
    return {
        **found.to_dictionary()["data"],
        "info": {key: value for key, value in dict(found.info).items() if key not in ("run_id", "run_uuid")},
        "inputs": [one.to_dictionary() for one in found.inputs.dataset_inputs],
        "metrics": {
            key: sorted((one.step, one.timestamp, one.value) for one in kept) for key, kept in histories.items()
        },
        "files": {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()},
    }


def test_pretraining_explains_itself(console: Console, runs: dict[str, RunFolder]) -> None:
    run = client(console).get_run(str(runs["pretrain"].mlflow_run_id))
    tags = run.data.tags
    assert tags["mlflow.user"] == runs["pretrain"].path.owner()
    assert (tags["mlflow.source.name"], tags["mlflow.source.type"]) == ("train_jobs.pretrain", "LOCAL")
    assert tags["mlflow.source.git.commit"] == tags["orchestrator.commit"].removesuffix("+dirty")
    note = tags["mlflow.note.content"]
    assert note.startswith("**pretrain** with recipe `tiny` on `corpus.txt` (1 file")
    assert "| Held-out MLM loss | " in note
    for command in ("report", "model deploy"):
        assert f"orchestrator {command} {runs['pretrain'].name}" in note
    assert run.data.params["optimizer.betas"] == "0.9, 0.98"
    assert not [value for value in run.data.params.values() if value.startswith(("[", "{"))]
    assert {"system/cpu_utilization_percentage", "system/disk_available_megabytes"} <= run.data.metrics.keys()
    (data,) = run.inputs.dataset_inputs
    profile = json.loads(data.dataset.profile)
    assert (data.dataset.name, len(data.dataset.digest), profile["vocab_size"]) == ("corpus.txt", 36, 256)
    assert profile["num_elements"] == profile["train_tokens"] + profile["validation_tokens"] > 0
    assert {tag.key: tag.value for tag in data.tags}["mlflow.data.context"] == "train"
    assert {file.path for file in client(console).list_artifacts(run.info.run_id)} == LIGHT


def test_finetuning_has_datasets_tables_and_its_start(console: Console, runs: dict[str, RunFolder]) -> None:
    mlflow = client(console)
    run = mlflow.get_run(str(runs["finetune"].mlflow_run_id))
    assert run.data.tags["orchestrator.parent_run_id"] == runs["pretrain"].mlflow_run_id
    found = {one.dataset.name: one for one in run.inputs.dataset_inputs}
    contexts = {name: {tag.key: tag.value for tag in one.tags}["mlflow.data.context"] for name, one in found.items()}
    assert contexts == {"train.tsv": "train", "dev.tsv": "validation", "new.tsv": "test"}
    rows = {name: json.loads(one.dataset.profile)["num_rows"] for name, one in found.items()}
    assert rows == {"train.tsv": 32, "dev.tsv": 8, "new.tsv": 4}
    columns = json.loads(found["dev.tsv"].dataset.schema)["mlflow_colspec"]
    assert [column["name"] for column in columns] == ["text", "label"]
    files = everything(console, runs["finetune"])["files"]
    table = json.loads(files["tables/confusion_dev.json"])
    assert table["columns"] == ["label", "predicted bad", "predicted good"]
    assert sum(sum(row[1:]) for row in table["data"]) == 8
    assert json.loads(files["tables/per_class_dev.json"])["columns"][0] == "class"
    assert [name for name in files if name.startswith("predictions/")], "asked for by tracking.artifacts"
    experiment = mlflow.get_experiment(run.info.experiment_id)
    assert experiment.tags["mlflow.experiment.primaryMetric.name"] in ("validation_loss", "validation_score")


def test_artifacts_have_no_text_and_no_secret(console: Console, runs: dict[str, RunFolder]) -> None:
    """The rows of the task are the canary; the predictions were asked for and are listed in docs/privacy.md."""
    found = files_with_canary(console.home / "artifacts")
    assert [name for name in found if "/predictions/" not in name] == []
    for name, content in everything(console, runs["pretrain"])["files"].items():
        assert b"quokka" not in content, name


@pytest.mark.parametrize("kind", ["pretrain", "finetune"])
def test_repeated_copy_changes_nothing(console: Console, runs: dict[str, RunFolder], kind: str) -> None:
    before = everything(console, runs[kind])
    assert sync_run(runs[kind]).values == 0
    assert everything(console, runs[kind]) == before


def test_edited_description_is_kept(console: Console, runs: dict[str, RunFolder]) -> None:
    run_id = sync_run(runs["finetune"]).run_id
    client(console).set_tag(run_id, "mlflow.note.content", "the best one")
    sync_run(runs["finetune"])
    assert client(console).get_run(run_id).data.tags["mlflow.note.content"] == "the best one"


def test_deleted_store_is_rebuilt_in_full(console: Console, runs: dict[str, RunFolder]) -> None:
    before = everything(console, runs["pretrain"])
    (console.home / "mlflow.db").unlink()
    shutil.rmtree(console.home / "artifacts")
    sync_run(runs["pretrain"])
    after = everything(console, runs["pretrain"])
    assert after["info"].pop("artifact_uri") != before["info"].pop("artifact_uri")
    assert after == before
