"""Entities that the tests create in a workspace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import requests
import yaml

from orchestrator.testing import AzureDouble
from tests.conftest import MICRO, SMALL_TEXT


def cluster(name: str = "gpu", **more: Any) -> Any:
    """Return a cluster of up to two nodes."""
    from azure.ai.ml.entities import AmlCompute

    return AmlCompute(name=name, **{"size": "Standard_ND96isr_H100_v5", "max_instances": 2, **more})


def environment(name: str = "train") -> Any:
    """Return an image with a few packages."""
    from azure.ai.ml.entities import Environment

    packages = {"name": "train", "channels": ["conda-forge"], "dependencies": ["python=3.11"]}
    return Environment(name=name, image="mcr.microsoft.com/azureml/base:1", conda_file=packages)


def data(folder: Path, name: str = "corpus") -> Any:
    """Return a data asset of a folder with one text."""
    from azure.ai.ml.entities import Data

    folder.mkdir()
    (folder / "text.txt").write_text("some text\n")
    return Data(name=name, path=str(folder), type="uri_folder")


def job(name: str, code: Path, **more: Any) -> Any:
    """Return a job of two nodes with two processes each, which copy an input to an output."""
    from azure.ai.ml import Input, Output, PyTorchDistribution, command

    common = {
        "experiment_name": "bert",
        "command": "python job.py ${{inputs.data}} ${{outputs.model}}",
        "compute": "gpu",
        "environment": "train@latest",
        "instance_count": 2,
        "distribution": PyTorchDistribution(process_count_per_instance=2),
        "inputs": {"data": Input(type="uri_folder", path="azureml:corpus:1", mode="ro_mount")},
        "outputs": {"model": Output(type="uri_folder", mode="rw_mount")},
        "shm_size": "64g",
        "timeout": 7200,
        "tags": {"commit": "abc"},
    }
    return command(name=name, code=str(code), **{**common, **more})


def get_json(double: AzureDouble, path: str, version: str, **query: str) -> Any:
    """Return the response to a plain GET, because the client's classes omit parts of it."""
    bearer = {"Authorization": f"Bearer {double.login.issue('https://management.azure.com')}"}
    url = f"https://management.azure.com{double.place.workspace_path}/{path}"
    with requests.get(url, params={"api-version": version, **query}, headers=bearer) as reply:
        return reply.json()


def prepare(ml: Any, tmp_path: Path) -> None:
    """Create the cluster, environment and data of `job`."""
    ml.compute.begin_create_or_update(cluster()).result()
    ml.environments.create_or_update(environment())
    ml.data.create_or_update(data(tmp_path / "corpus"))


def write_sweep(space: dict[str, Any], **sections: Any) -> Path:
    """Write a sweep of `tests/cloud_trial.py`, with grid sampling unless the sections override it."""
    Path("code").mkdir(exist_ok=True)
    shutil.copy(Path(__file__).parents[1] / "cloud_trial.py", "code")
    Path("notes.txt").write_text(SMALL_TEXT)
    job_file = json.loads(json.dumps(MICRO))
    job_file |= {"backend": "azure", "code": {"folder": "code", "entry": "cloud_trial"}, "azure": {"preflight": False}}
    job_file["data"]["text"] = ["notes.txt"]
    job_file["train"]["steps"] = 2
    job_file["compute"] |= {"cluster": "cpu", "sku": "Standard_D16s_v5", "max_nodes": 4}
    document = {"trial": job_file, "space": space, "sampling": "grid", **sections}
    Path("sweep.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return Path("sweep.yaml")
