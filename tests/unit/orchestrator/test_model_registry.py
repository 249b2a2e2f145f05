"""Jobs that start from a version in an MLflow registry: models:/NAME@ALIAS, models:/NAME/VERSION."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from orchestrator.client import Orchestrator
from orchestrator.support.errors import ConflictError, SpecError
from tests.unit.finetuning.finetune_jobs import write_model
from tests.unit.lineage.test_model_trust import Touch
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.start_model import initial_lineage
from train_jobs.artifacts.tracking.model_registry import Registry, registry_folder, registry_of


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that a pretraining exported."""
    return write_model(tmp_path_factory.mktemp("exported"))


@pytest.fixture
def registry(tmp_path: Path, empty_store: Path) -> Registry:
    """Return an empty registry."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    return Registry(uri, uri, tmp_path / "cache")


def register(registry: Registry, folder: Path, *, alias: str | None = None, **tags: str) -> str:
    """Register a folder as a version of the model `bert`, and return its number."""
    client = MlflowClient(registry.tracking_uri, registry.uri)
    if not client.search_registered_models("name = 'bert'"):
        client.create_registered_model("bert")
    version = client.create_model_version("bert", folder.as_uri(), tags=tags)
    if alias is not None:
        client.set_registered_model_alias("bert", alias, version.version)
    return str(version.version)


def as_mlflow_saves_it(exported: Path, folder: Path) -> Path:
    """Write a model in the layout of mlflow.transformers.save_model, with a pickle that creates a file."""
    (folder / "model").mkdir(parents=True)
    (folder / "components" / "tokenizer").mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(exported / name, folder / "model" / name)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(exported / name, folder / "components" / "tokenizer" / name)
    flavors = {"transformers": {"model_binary": "model", "components": ["tokenizer"]}, "python_function": {}}
    (folder / "MLmodel").write_text(json.dumps({"flavors": flavors}))
    (folder / "model" / "python_model.pkl").write_bytes(pickle.dumps(Touch(folder / "executed")))
    return folder


def test_alias_is_resolved_to_number_and_hash(registry: Registry, exported: Path) -> None:
    register(registry, exported)
    register(registry, exported, alias="champion")
    found = registry_folder("models:/bert@champion", registry)
    assert found.parent == registry.cache / "mlflow-models" / "bert"
    assert found.name.startswith("2-")
    assert registry_folder("models:/bert/2", registry) == found
    assert registry_folder("models:/bert/latest", registry) == found
    assert registry_folder("models:/bert/1", registry).name == f"1-{found.name.removeprefix('2-')}"
    assert {path.name for path in found.iterdir()} == {path.name for path in exported.iterdir()}
    link = initial_lineage(found).head
    assert (link.name, link.facts["revision"]) == ("models:/bert", "2")


def test_version_of_mlflow_itself_becomes_a_bert(registry: Registry, exported: Path, tmp_path: Path) -> None:
    saved = as_mlflow_saves_it(exported, tmp_path / "saved")
    register(registry, saved)
    found = registry_folder("models:/bert/1", registry)
    assert (found / "vocab.txt").read_text() == (exported / "vocab.txt").read_text()
    assert initial_lineage(found).head.weights == file_sha256(exported / "model.safetensors")
    assert not (found / "python_model.pkl").exists()
    assert not (saved / "executed").exists()


def test_cached_version_needs_no_files_of_registry(registry: Registry, exported: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(exported, source)
    register(registry, source)
    found = registry_folder("models:/bert/1", registry)
    shutil.rmtree(source)
    assert registry_folder("models:/bert/1", registry) == found


def test_changed_weights_are_refused(registry: Registry, exported: Path) -> None:
    register(registry, exported, **{"orchestrator.weights": "0" * 64})
    with pytest.raises(ConflictError, match="not those that were registered"):
        registry_folder("models:/bert/1", registry)
    assert not list((registry.cache / "mlflow-models" / "bert").iterdir())


@pytest.mark.parametrize(
    ("name", "message", "facts"),
    [
        ("models:/brt@champion", "unknown model 'brt'", {"have": "bert"}),
        ("models:/bert@chmpion", "unknown version models:/bert@chmpion", {"have": "@champion = 1, 1"}),
        ("models:/bert/7", "unknown version models:/bert/7", {"have": "@champion = 1, 1"}),
        ("models:/bert", "invalid model 'models:/bert'", {"need": "models:/NAME@ALIAS or models:/NAME/VERSION"}),
    ],
)
def test_unknown_names_list_known_ones(
    registry: Registry, exported: Path, name: str, message: str, facts: dict[str, str]
) -> None:
    register(registry, exported, alias="champion")
    with pytest.raises(SpecError, match=message) as caught:
        registry_folder(name, registry)
    assert facts.items() <= caught.value.facts.items()


@pytest.mark.parametrize("binary", ["../other", "/etc"])
def test_folder_outside_of_version_is_refused(registry: Registry, exported: Path, tmp_path: Path, binary: str) -> None:
    saved = as_mlflow_saves_it(exported, tmp_path / "saved")
    (saved / "MLmodel").write_text(json.dumps({"flavors": {"transformers": {"model_binary": binary}}}))
    register(registry, saved)
    with pytest.raises(SpecError, match="not a BERT") as caught:
        registry_folder("models:/bert/1", registry)
    assert caught.value.facts["why"] == "its MLmodel names a folder outside of the version"


def test_model_of_another_flavour_is_refused(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "MLmodel").write_text(json.dumps({"flavors": {"sklearn": {}}}))
    register(registry, tmp_path / "saved")
    with pytest.raises(SpecError, match="not a BERT of transformers") as caught:
        registry_folder("models:/bert/1", registry)
    assert caught.value.facts["why"] == "its flavours are sklearn"


def test_registry_that_is_away_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    uri = "http://user:secret@127.0.0.1:9"
    with pytest.raises(SpecError, match="cannot read the model models:/bert/1 from the MLflow registry") as caught:
        registry_folder("models:/bert/1", Registry(uri, uri, tmp_path))
    assert caught.value.facts["registry"] == "http://127.0.0.1:9"
    assert "secret" not in str(caught.value)


def test_registry_is_that_of_spec_or_environment(tmp_path: Path) -> None:
    environ = {"MLFLOW_TRACKING_URI": "http://tracking", "MLFLOW_REGISTRY_URI": "http://registry"}
    assert registry_of(environ, None, "sqlite:///x", tmp_path)[:2] == ("http://registry", "http://tracking")
    assert registry_of({}, "http://spec", "sqlite:///x", tmp_path)[:2] == ("http://spec", "http://spec")
    assert registry_of({}, None, "sqlite:///x", tmp_path)[:2] == ("sqlite:///x", "sqlite:///x")
    with pytest.raises(SpecError, match="no registry is set"):
        registry_of({}, None, None, tmp_path)


@pytest.mark.parametrize("kind", ["finetune", "predict", "pretrain"])
def test_plan_shows_version_and_its_hash(registry: Registry, exported: Path, tmp_path: Path, kind: str) -> None:
    register(registry, exported, alias="champion")
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "w1 [MASK]\tyes\nw3 [MASK]\tno\n" * 20)
    rows: dict[str, Any] = {"data.train": str(tmp_path / "rows.tsv"), "data.validation": str(tmp_path / "rows.tsv")}
    keys: dict[str, dict[str, Any]] = {
        "finetune": {"init_from": "models:/bert@champion", "task": "own", "data.max_length": 32, **rows},
        "predict": {"model": "models:/bert@champion", "input": str(tmp_path / "rows.tsv"), "data.max_length": 32},
        "pretrain": {"init_from": "models:/bert@champion", "recipe": "tiny", "data.sequence_length": 32},
    }
    plan = Orchestrator(home=tmp_path, environ={}).plan(kind, overrides=keys[kind])
    summary = " ".join(plan.summary().split())
    assert f"models:/bert, weights {file_sha256(exported / 'model.safetensors')[:8]}, models:/bert/1" in summary
