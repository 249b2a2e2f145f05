"""The whole workflow on the double of Azure by the command line.

A cluster, a token store, a model trained on it, a sweep of the Azure service, and the download of its best model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow.tracking import MlflowClient

from orchestrator.testing import AzureDouble
from tests.conftest import Console, Finished, write_corpus, write_spec
from train_jobs.tools.stores import main as look_into_stores

CLUSTER = {"cluster": "cpu", "sku": "Standard_D16s_v5", "max_nodes": 2}
STORE = "azureml://datastores/workspaceblobstore/paths/orchestrator/token-stores/words"
RATE = "optimizer.learning_rate"


@pytest.fixture
def azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureDouble]:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    with AzureDouble(tmp_path / "azure") as double:
        yield double
        assert (double.violations, double.refused) == ([], [])


@pytest.fixture
def cloud(console: Console, azure: AzureDouble) -> Console:
    """Return the command line of a signed-in user."""
    kept = {key: value for key, value in os.environ.items() if key.startswith("ORCHESTRATOR_AZURE_")}
    console.variables |= {**kept, "ORCHESTRATOR_AZURE_POLL_SECONDS": "0.5"}
    return console


def done(found: Finished) -> Any:
    """Return the document that a command printed."""
    assert found.code == 0, found.err
    return found.json


@pytest.mark.slow
def test_azure_workflow_from_text_to_best_of_sweep(cloud: Console, azure: AzureDouble) -> None:
    write_corpus(cloud.cwd / "corpus.txt")
    shape = ("--sku", CLUSTER["sku"], "--max-nodes", "2")
    done(cloud("cluster", "create", "--name", "cpu", *map(str, shape), "-y", "-o", "json"))
    sets = [f"compute.{key}={value}" for key, value in CLUSTER.items()]
    sets += ["data.vocab_size=256", "data.validation_fraction=0.2"]
    words = ["submit", "prepare", "-b", "azure", "--data", "corpus.txt", "--store", "words"]
    words += [word for text in sets for word in ("--set", text)]
    prepared = done(cloud(*words, "-o", "json"))
    assert (prepared["state"], prepared["store"]) == ("completed", STORE)
    assert (azure.folder() / "orchestrator/token-stores/words/manifest.json").is_file()
    assert prepared["metrics"]["documents"] > 0
    assert cloud("download", prepared["name"], "store", "--to", "here").code == 0
    assert look_into_stores(["verify", str(cloud.cwd / "here" / "words")]) == 0

    ours = {"backend": "azure", "azure": {"data": STORE, "preflight": False}, "compute": CLUSTER}
    write_spec(cloud.cwd / "job.yaml", **ours, train={"precision": "bf16"})
    trained = done(cloud("submit", "pretrain", "-f", "job.yaml", "-o", "json"))
    assert (trained["state"], trained["step"]) == ("completed", 12)

    document = {
        "trial": "job.yaml",
        "space": {RATE: [0.001, 0.01], "objective.next_sentence": [True]},
        "sampling": "grid",
        "limits": {"concurrent": 2},
    }
    (cloud.cwd / "sweep.yaml").write_text(yaml.safe_dump(document))
    swept = done(cloud("submit", "sweep", "-f", "sweep.yaml", "-o", "json"))
    name, rows = swept["name"], swept["rows"]
    assert swept["state"] == "completed", swept["reason"]
    assert [(row["state"], row["reports"], row["settings"][RATE]) for row in rows] == [
        ("completed", 2, 0.001),
        ("completed", 2, 0.01),
    ]
    best = done(cloud("sweep", "best", name, "--spec", "best.yaml", "-o", "json"))
    assert best["outcome"] == min(row["outcome"] for row in rows)
    assert azure.job(name).properties["properties"]["best_child_run_id"] == best["runs"][0]
    assert cloud("validate", "pretrain", "-f", "best.yaml").code == 0
    assert cloud("download", best["runs"][0], "model", "--to", "model").code == 0
    assert [*(cloud.cwd / "model").rglob("model.safetensors")]

    place = azure.place
    outside = MlflowClient(tracking_uri=f"azureml://{place.data_plane}/mlflow/v1.0{place.workspace_path}")
    for row in rows:
        run = outside.get_run(row["runs"][0])
        assert (run.info.status, run.data.tags["mlflow.parentRunId"]) == ("FINISHED", name)
        values = [point.value for point in outside.get_metric_history(run.info.run_id, "validation_loss")]
        assert values == row["values"], "what the service judges by is what is shown"
