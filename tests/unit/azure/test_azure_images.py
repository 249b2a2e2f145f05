"""Environments of the jobs: they pin the tested versions, and their own version is the hash of their content."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest
import yaml

from orchestrator.backends.azure.assets import ENVIRONMENTS, pinned_versions, train_image
from orchestrator.support.errors import NotFoundError

ROOT = ENVIRONMENTS.parent
NAMES = {"mlflow": "mlflow-skinny", "sklearn": "scikit-learn", "yaml": "PyYAML"}  # module -> package
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)


def required_packages() -> list[str]:
    lines = (ENVIRONMENTS / "train-gpu" / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_environments_have_the_pinned_versions() -> None:
    conda = yaml.safe_load((ENVIRONMENTS / "train-cpu" / "conda.yaml").read_text())
    pip = conda["dependencies"][-1]["pip"]
    assert "python=3.11" in conda["dependencies"]
    found = dict(line.split("==") for line in pip if not line.startswith("--"))
    assert found == {name: PINS[name] + ("+cpu" if name == "torch" else "") for name in required_packages()}


OPTIONAL = {"datasets", "fsspec", "model_signing", "onnx", "onnxruntime"}  # an error names the package to install
SERVER = {
    "h11",
    "prometheus_client",
    "starlette",
    "uvicorn",
}  # the server of this machine; Azure has its own
STORE = {"sqlalchemy"}  # of MLflow, for the store on this machine; Azure has a server


def test_environments_have_all_imported_packages() -> None:
    imported = set()
    for path in (ROOT / "train_jobs").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    import sys

    packages = {NAMES.get(name, name) for name in imported - set(sys.stdlib_module_names) - {"train_jobs"}}
    assert packages - OPTIONAL - SERVER - STORE <= set(required_packages())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Copy the environments next to the constraints."""
    shutil.copytree(ENVIRONMENTS, tmp_path / "environments")
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    return tmp_path / "environments"


def test_environment_version_is_hash_of_its_content(folder: Path) -> None:
    gpu, cpu = train_image("gpu", folder), train_image("cpu", folder)
    assert gpu == train_image("gpu")
    assert (gpu.conda, cpu.files) == (None, {})
    assert set(gpu.files) == {"Dockerfile", "requirements.txt", "constraints.txt"}
    with (folder.parent / "constraints.txt").open("a") as stream:
        stream.write("one-more==1\n")
    assert train_image("gpu", folder).version != gpu.version
    assert train_image("cpu", folder).version == cpu.version
    with (folder / "train-cpu" / "conda.yaml").open("a") as stream:
        stream.write("\n")
    assert train_image("cpu", folder).version != cpu.version


def test_missing_environments_are_reported_with_fix(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as failure:
        train_image("gpu", tmp_path / "environments")
    assert "azure.environment" in str(failure.value.fix)
    assert pinned_versions(("torch",), tmp_path / "environments") == {}


def test_pinned_versions_match_the_constraints() -> None:
    assert pinned_versions(("torch", "nothing-of-that-name")) == {
        "python": "3.11",
        "torch": PINS["torch"],
        "nothing-of-that-name": "absent",
    }


def test_supervisor_environment_has_pinned_versions() -> None:
    conda = yaml.safe_load((ENVIRONMENTS / "supervise" / "conda.yaml").read_text())
    found = dict(line.split("==") for line in conda["dependencies"][-1]["pip"])
    assert "python=3.11" in conda["dependencies"]
    assert found == {name: PINS[name] for name in found}
    assert "torch" not in found


def test_serving_environment_has_training_versions() -> None:
    conda = yaml.safe_load((ENVIRONMENTS / "serve-cpu" / "conda.yaml").read_text())
    found = dict(line.split("==") for line in conda["dependencies"][-1]["pip"] if not line.startswith("--"))
    assert "python=3.11" in conda["dependencies"]
    assert found.pop("azureml-inference-server-http")
    assert found.pop("pydantic").startswith("2.12.")  # limit of the server; a slow test covers the resolution
    assert found == {name: PINS[name] + ("+cpu" if name == "torch" else "") for name in found}
    assert {"torch", "tokenizers", "safetensors", "numpy", "pyarrow", "PyYAML"} == found.keys()
