"""Pretraining in the double's cloud loses its machine and resumes from its checkpoint in another job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from wire_entities import cluster, environment

from orchestrator.testing import AzureDouble
from tests.conftest import MICRO, wait_for, write_corpus

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = "azureml://datastores/workspaceblobstore/paths/runs/micro/"
COMMAND = (
    "python -m train_jobs.pretrain --config job.yaml --device cpu --output ${{outputs.run}} "
    "--set 'data.text=[${{inputs.text}}]'"
)


def training_job(name: str, code: Path) -> Any:
    """Return a job of two nodes with a process each, whose output path does not depend on the name of the job."""
    from azure.ai.ml import Input, Output, PyTorchDistribution, command

    return command(
        name=name,
        code=str(code),
        command=COMMAND,
        compute="cpu",
        environment="train@latest",
        experiment_name="bert",
        instance_count=2,
        distribution=PyTorchDistribution(process_count_per_instance=1),
        environment_variables={"OMP_NUM_THREADS": "1", "PYTHONPATH": "."},
        inputs={"text": Input(type="uri_file", path="azureml:text:1")},
        outputs={"run": Output(type="uri_folder", path=CHECKPOINTS, mode="rw_mount")},
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:content_as_bytes:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The use of a 'BlobProperties':DeprecationWarning")
def test_training_survives_the_loss_of_its_machine(
    running_azure: AzureDouble, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from azure.ai.ml.entities import Data
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    ml = client(running_azure)
    ml.compute.begin_create_or_update(cluster("cpu", size="Standard_D16s_v5", tier="low_priority")).result()
    ml.environments.create_or_update(environment())
    text = write_corpus(tmp_path / "text.txt")
    ml.data.create_or_update(Data(name="text", path=str(text), type="uri_file"))
    code = tmp_path / "code"
    code.mkdir()
    (code / "train_jobs").symlink_to(ROOT / "train_jobs")
    config = {key: value for key, value in MICRO.items() if key not in ("recipe", "name", "compute")}
    config["train"] = {**config["train"], "steps": 200}
    (code / "job.yaml").write_text(yaml.safe_dump(config))

    ml.jobs.create_or_update(training_job("micro", code))
    run = running_azure.folder() / "runs" / "micro"
    wait_for(
        lambda: list(run.glob("checkpoints/*/COMMIT.json")) or running_azure.job("micro").error, what="a checkpoint"
    )
    assert running_azure.job("micro").error is None, running_azure.logs("micro")
    running_azure.preempt("micro")
    assert running_azure.wait("micro") == "Failed"
    ml.jobs.create_or_update(training_job("micro-a2", code))
    assert running_azure.wait("micro-a2", seconds=300) == "Completed", running_azure.logs("micro-a2")

    reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert reports[-1]["step"] == 200
    outside = MlflowClient(tracking_uri=ml.workspaces.get().mlflow_tracking_uri)
    assert outside.get_run("micro-a2").info.status == "FINISHED"
    steps = [point.step for point in outside.get_metric_history("micro-a2", "train_loss")]
    assert steps[-1] == 200
    ml.jobs.download("micro-a2", download_path=tmp_path / "home", output_name="run")
    assert list((tmp_path / "home").rglob("model/model.safetensors"))
