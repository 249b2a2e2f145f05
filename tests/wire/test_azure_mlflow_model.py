"""A registered model at an endpoint of Azure without code: the SDK's request, and MLflow's answer from its files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.client import Orchestrator
from orchestrator.testing import AzureDouble
from tests.conftest import write_corpus, write_spec
from tests.unit.finetuning.finetune_jobs import write_model

pytestmark = [
    pytest.mark.usefixtures("small_snapshot"),
    # MLflow's, of its own classes, when it is imported
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning"),
]


def test_registered_model_is_served_without_code(azure: AzureDouble, ml: Any, tmp_path: Path) -> None:
    from azure.ai.ml.entities import ManagedOnlineDeployment, ManagedOnlineEndpoint, Model
    from azure.core.exceptions import HttpResponseError

    write_corpus(tmp_path / "corpus.txt")
    compute = {"cluster": "gpu", "sku": "Standard_NC4as_T4_v3"}
    write_spec(tmp_path / "job.yaml", data={"text": ["corpus.txt"]}, compute=compute)
    here = Orchestrator("azure", home=tmp_path / "home", environ={})
    run = here.submit(here.plan(file=tmp_path / "job.yaml"))
    outputs = azure.folder() / "orchestrator" / "runs" / run.name / "outputs"
    outputs.mkdir(parents=True, exist_ok=True)
    exported = write_model(outputs)  # as the job leaves it
    azure.move(run.name, "Completed")
    registered = run.register_model("masks")

    ml.online_endpoints.begin_create_or_update(ManagedOnlineEndpoint(name="masks", auth_mode="key")).result()

    def deploy(name: str, version: str) -> None:
        wanted = ManagedOnlineDeployment(
            name="blue",
            endpoint_name="masks",
            model=f"azureml:{name}:{version}",
            instance_type="Standard_DS3_v2",
            instance_count=1,
        )
        ml.online_deployments.begin_create_or_update(wanted).result()

    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "config.json").write_text("{}")
    ml.models.create_or_update(Model(name="plain", path=str(tmp_path / "plain")))
    with pytest.raises(HttpResponseError, match="Only an MLflow model"):
        deploy("plain", "1")
    deploy("masks", registered["version"])

    import mlflow

    shutil.copytree(exported, tmp_path / "served")  # Azure's image mounts these files
    model = mlflow.pyfunc.load_model(str(tmp_path / "served"))
    example = json.loads((tmp_path / "served" / "input_example.json").read_text())
    assert example["columns"] == ["text"]
    (served,) = model.predict(["w1 [MASK] w3"])
    from train_jobs.config import PredictConfig
    from train_jobs.inference.loaded_model import load_predictor
    from train_jobs.inference.score_requests import predict_requests, read_request

    fp32 = {"model": exported, "input": "inputs.jsonl", "batching": {"precision": "fp32"}}  # auto: bf16 on some CPUs
    task = load_predictor(PredictConfig.model_validate(fp32), torch.device("cpu"), single_texts=True)
    ((masks,),) = predict_requests(task, [read_request(json.dumps({"inputs": ["w1 [MASK] w3"]}), task)])
    assert [one["token"] for one in served["masks"][0]] == [one["token"] for one in masks[0]]
    assert [one["probability"] for one in served["masks"][0]] == pytest.approx(
        [one["probability"] for one in masks[0]], abs=1e-5
    )
    assert azure.violations == []
