"""Models of runs in MLflow's registry: one version for each run, which loads without this package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import ViewType
from mlflow.tracking import MlflowClient

from orchestrator.backends.capabilities import MODEL_TAG
from orchestrator.backends.folder.mlflow_records import tracking_request
from orchestrator.backends.folder.mlflow_sync import sync_run
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.runs.tracked_run import default_uri, run_lock, sync
from orchestrator.support.errors import ServiceError, StorageError
from tests.mlflow_runs import make_tracked_run
from tests.unit.finetuning.finetune_jobs import write_model
from tests.unit.lineage.test_model_trust import write_keys
from tests.unit.sweeps.test_sweep_parent import make_search
from train_jobs.artifacts.commit import Commit, WrittenFile, folder_name, write_commit
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.model_trust import sign_folder, verify_signature
from train_jobs.artifacts.tracking.model_registry import Registry, registry_folder

# MLflow's, of its own classes, when it is imported
pytestmark = pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning")
ENVIRONMENT = {"environment": {"python": "3.11.7", "torch": "2.13.0+cpu"}}
WITHOUT_US = """
import json, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"train_jobs", "orchestrator"}:
            raise ModuleNotFoundError(f"{name} is hidden")

sys.meta_path.insert(0, Hidden())
import mlflow
print(json.dumps(mlflow.pyfunc.load_model(sys.argv[1]).predict(json.loads(sys.argv[2]))))
"""

KILLED = """
import os, signal
from pathlib import Path
from mlflow.tracking import MlflowClient
from orchestrator.backends.folder import registered_models
from orchestrator.backends.local.backend import LocalBackend

def kill(*given, **named):
    os.kill(os.getpid(), signal.SIGKILL)

owner = MlflowClient if hasattr(MlflowClient, "{name}") else registered_models
setattr(owner, "{name}", kill)
LocalBackend(Path("{home}")).register_model("run", "bert")
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that a pretraining exported."""
    return write_model(tmp_path_factory.mktemp("exported"))


@pytest.fixture
def run(tmp_path: Path, empty_store: Path, exported: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Return a completed run with a model, in a home of its own."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    run = make_tracked_run(tmp_path, "run", plan=ENVIRONMENT)
    shutil.copytree(exported, run.model)
    (run.model / "README.md").write_text("---\nlicense: apache-2.0\nbase_model: bert-base\n---\n# Card\n")
    return run


def client_of(home: Path) -> MlflowClient:
    return MlflowClient(tracking_uri=default_uri(home), registry_uri=default_uri(home))


def logged_models(run: RunFolder, home: Path) -> list[Any]:
    client = client_of(home)
    experiment = client.get_run(str(run.mlflow_run_id)).info.experiment_id
    return list(client.search_logged_models([experiment]))


def texts_below(folder: Path) -> dict[str, str]:
    """Return name -> text of all files of a folder except weights."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".safetensors"
    }


def artifacts_of(home: Path, name: str, version: str) -> Path:
    return Path(client_of(home).get_model_version_download_uri(name, version).removeprefix("file://"))


@pytest.mark.long
def test_version_loads_without_package(run: RunFolder, tmp_path: Path) -> None:
    from train_jobs.tools.serve import load

    found = LocalBackend(tmp_path).register_model("run", "bert", alias="champion")
    assert (found["name"], found["version"], found["alias"], found["uri"]) == (
        "bert",
        "1",
        "champion",
        "models:/bert/1",
    )
    text = ["w1 [MASK] w3"]
    command = [sys.executable, "-I", "-c", WITHOUT_US, "models:/bert@champion", json.dumps(text)]
    variables = {**os.environ, "MLFLOW_TRACKING_URI": default_uri(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    (record,) = json.loads(done.stdout.splitlines()[-1])
    task = load(run.model)
    from train_jobs.inference.score_requests import predict_requests, read_request

    ((masks,),) = predict_requests(task, [read_request(json.dumps({"inputs": text}), task)])
    assert [one["token"] for one in record["masks"][0]] == [one["token"] for one in masks[0]]


def test_second_call_makes_no_second_version(run: RunFolder, tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    first = backend.register_model("run", "bert")
    assert backend.register_model("run", "bert") == first
    assert backend.register_model("run", "bert", alias="champion") == {**first, "alias": "champion"}
    client = client_of(tmp_path)
    assert len(client.search_model_versions("name = 'bert'")) == 1
    assert str(client.get_model_version_by_alias("bert", "champion").version) == "1"


@pytest.mark.parametrize(
    ("killed_in", "ready_before"), [("link_or_copy", 0), ("create_model_version", 1)], ids=["copy", "version"]
)
def test_repeat_after_a_kill_makes_one_logged_model(
    run: RunFolder, tmp_path: Path, killed_in: str, ready_before: int
) -> None:
    home, script = str(tmp_path), Path(tmp_path, "killed.py")
    script.write_text(KILLED.format(name=killed_in, home=home))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [model.status for model in logged_models(run, tmp_path)] == ["READY" if ready_before else "PENDING"]
    found = LocalBackend(tmp_path).register_model("run", "bert")
    (model,) = logged_models(run, tmp_path)
    version = client_of(tmp_path).get_model_version("bert", found["version"])
    assert (found["version"], model.status, version.tags[MODEL_TAG]) == ("1", "READY", model.model_id)


def test_alias_moves_to_newer_run(run: RunFolder, tmp_path: Path, exported: Path) -> None:
    newer = make_tracked_run(tmp_path, "newer", plan=ENVIRONMENT)
    shutil.copytree(exported, newer.model)
    backend = LocalBackend(tmp_path)
    backend.register_model("run", "bert", alias="champion")
    assert backend.register_model("newer", "bert", alias="champion")["version"] == "2"
    assert str(client_of(tmp_path).get_model_version_by_alias("bert", "champion").version) == "2"


def test_weights_are_linked_and_no_file_has_a_path(run: RunFolder, tmp_path: Path) -> None:
    LocalBackend(tmp_path).register_model("run", "bert")
    folder = artifacts_of(tmp_path, "bert", "1")
    assert (folder / "model.safetensors").samefile(run.model / "model.safetensors")
    texts = texts_below(folder)
    assert not [name for name, text in texts.items() if str(tmp_path) in text]
    assert "torch==2.13.0\n" in texts["requirements.txt"]
    for fact in ("license: apache-2.0", "base_model: bert-base", "weights_sha256: "):
        assert fact in texts["MLmodel"]


def test_logged_model_has_metrics_and_dataset(run: RunFolder, tmp_path: Path) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    run_id, client = sync_run(run).run_id, client_of(tmp_path)
    dataset = Dataset("notes", "0123456789abcdef", "local", "{}")
    client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "train")])])
    LocalBackend(tmp_path).register_model("run", "bert")
    tracked = client.get_run(run_id)
    (output,) = tracked.outputs.model_outputs
    model = client.get_logged_model(output.model_id)
    assert (str(model.status), model.source_run_id, output.step) == ("READY", run_id, 40)
    assert model.params == tracked.data.params
    found = {one.key: (one.value, one.step, one.dataset_name) for one in model.metrics}
    assert found == {"loss": (1 / 40, 40, "notes"), "rate": (0.1, 40, "notes")}
    assert len(client.get_metric_history(run_id, "loss")) == 40, "linking adds no value to the run"


def test_older_version_without_mlmodel_is_replaced(run: RunFolder, tmp_path: Path, capsys: Any) -> None:
    from orchestrator.cli.main import main

    client = client_of(tmp_path)
    client.create_registered_model("bert")
    client.create_model_version("bert", run.model.as_uri(), tags={"orchestrator.run": "run"})
    assert main(["model", "register", "run", "--name", "bert", "--alias", "champion"]) == 0
    out, err = capsys.readouterr()
    assert out == "bert:2\n"
    assert "version 1 has no MLmodel file, so MLflow cannot load it: use version 2" in err


def test_signature_of_export_holds_for_registered_copy(run: RunFolder, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    sign_folder(run.model, private)
    LocalBackend(tmp_path).register_model("run", "bert")
    uri = default_uri(tmp_path)
    verify_signature(registry_folder("models:/bert/1", Registry(uri, uri, tmp_path / "cache")), public)


def test_signed_files_of_any_kind_are_copied(run: RunFolder, tmp_path: Path) -> None:
    """Also in folders, and without a vocabulary that would have no signature."""
    private, public = write_keys(tmp_path)
    (run.model / "onnx").mkdir()
    for name in ("model.onnx", "model.onnx.data", "notes.csv", "onnx/graph.onnx"):
        (run.model / name).write_text(name)
    (run.model / "vocab.txt").unlink()
    sign_folder(run.model, private)
    LocalBackend(tmp_path).register_model("run", "bert")
    uri = default_uri(tmp_path)
    copy = registry_folder("models:/bert/1", Registry(uri, uri, tmp_path / "cache"))
    verify_signature(copy, public)
    assert (copy / "onnx" / "graph.onnx").read_text() == "onnx/graph.onnx"


def test_names_of_a_signature_never_leave_the_folder(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("secret")
    names = ["../secret", str(tmp_path / "elsewhere" / "secret"), "link/secret", "a/../../secret", "nul\0", "", "."]
    payload = json.dumps({"predicate": {"resources": [{"name": name} for name in names]}}).encode()
    signature = {"dsseEnvelope": {"payload": base64.b64encode(payload).decode()}}
    (run.model / "model.sig").write_text(json.dumps(signature))
    LocalBackend(tmp_path).register_model("run", "bert")
    (artifacts_of(tmp_path, "bert", "1") / "link").symlink_to(tmp_path / "elsewhere")
    uri = default_uri(tmp_path)
    copy = registry_folder("models:/bert/1", Registry(uri, uri, tmp_path / "cache"))
    assert {path.name for path in copy.rglob("*")} == {path.name for path in run.model.iterdir()}
    assert not list((tmp_path / "cache").rglob("secret"))


@pytest.mark.long
def test_purge_deletes_files_of_logged_model(run: RunFolder, tmp_path: Path) -> None:
    from orchestrator.client import Orchestrator

    LocalBackend(tmp_path).register_model("run", "bert")
    orchestrator, folder = Orchestrator(home=tmp_path, environ={}), artifacts_of(tmp_path, "bert", "1")
    assert (folder / "model.safetensors").is_file()
    registry = Registry(default_uri(tmp_path), default_uri(tmp_path), tmp_path / "cache")
    copy, other = registry_folder("models:/bert/1", registry), tmp_path / "cache" / "mlflow-models" / "bert" / "12-abc"
    other.mkdir()
    purging = orchestrator.purging("run")
    assert f"cache {copy.relative_to(tmp_path)}" in purging.records
    orchestrator.purge(purging)
    assert not folder.exists()
    assert list(other.parent.iterdir()) == [other]
    assert [path.name for path in (tmp_path / "artifacts").rglob("*")] == ["models"]
    database = (tmp_path / "mlflow.db").read_bytes()
    assert b"orchestrator.logged_model" not in database


def test_purge_keeps_copies_of_another_registry(run: RunFolder, tmp_path: Path, empty_store: Path) -> None:
    """Both registries have a version 1 of `bert`."""
    from orchestrator.client import Orchestrator

    LocalBackend(tmp_path).register_model("run", "bert")
    shutil.copy(empty_store, tmp_path / "b.db")
    uri, cache = f"sqlite:///{tmp_path / 'b.db'}", tmp_path / "cache"
    other = make_tracked_run(tmp_path, "other", plan=ENVIRONMENT, uri=uri)
    shutil.copytree(run.model, other.model)
    (other.model / "README.md").write_text("another card")
    LocalBackend(tmp_path).register_model("other", "bert")
    mine = registry_folder("models:/bert/1", Registry(default_uri(tmp_path), default_uri(tmp_path), cache))
    theirs = registry_folder("models:/bert/1", Registry(uri, uri, cache))
    records = {*mine.parent.glob(".1-*.json")}
    orchestrator = Orchestrator(home=tmp_path, environ={})
    orchestrator.purge(orchestrator.purging("run"))
    assert (mine.exists(), theirs.is_dir()) == (False, True)
    assert len({*mine.parent.glob(".1-*.json")} & records) == 1
    assert registry_folder("models:/bert/1", Registry(uri, uri, cache)) == theirs


def test_purge_waits_for_copy_that_is_being_made(run: RunFolder, tmp_path: Path) -> None:
    from orchestrator.client import Orchestrator

    begun, copied = threading.Event(), threading.Event()

    def copy() -> None:
        """Copy the run as the process does that its supervisor starts, and take a second."""
        with run_lock(run.path):
            request = tracking_request(run)
            begun.set()
            time.sleep(1.0)
            sync(request)
            copied.set()

    orchestrator = Orchestrator(home=tmp_path, environ={})
    with ThreadPoolExecutor() as threads:
        made = threads.submit(copy)
        begun.wait()
        purging = orchestrator.purging("run")
        orchestrator.purge(purging)
        made.result()
    assert copied.is_set()
    assert not purging.tracking  # the plan could not list it
    assert not MlflowClient(default_uri(tmp_path)).search_runs(["0", "1"], run_view_type=ViewType.ALL)
    assert list((tmp_path / "artifacts").iterdir()) == []
    assert not run.path.exists()


def test_interrupted_upload_is_no_version(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("orchestrator.backends.folder.registered_models.link_or_copy", full)
        with pytest.raises(StorageError, match="No space"):
            LocalBackend(tmp_path).register_model("run", "bert")
    assert not client_of(tmp_path).search_registered_models()
    assert LocalBackend(tmp_path).register_model("run", "bert")["version"] == "1"


def test_run_deleted_in_mlflow_is_copied_again(run: RunFolder, tmp_path: Path) -> None:
    first = sync_run(run).run_id
    client_of(tmp_path).delete_run(first)
    assert LocalBackend(tmp_path).register_model("run", "bert")["version"] == "1"
    assert client_of(tmp_path).get_model_version("bert", "1").run_id == run.mlflow_run_id != first


def test_only_an_invalid_name_has_a_name_as_its_fix(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="MLflow refused it") as refused:
        LocalBackend(tmp_path).register_model("run", "a/b")
    assert refused.value.fix == "--name with letters, digits and hyphens"
    assert not client_of(tmp_path).search_registered_models()
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("DROP TABLE model_versions")
    with pytest.raises(ServiceError, match="MLflow refused it") as broken:
        LocalBackend(tmp_path).register_model("run", "bert")
    assert broken.value.fix == "orchestrator mlflow sync run; then register it again"


def write_checkpoint(run: RunFolder, step: int, exported: Path) -> Path:
    """Commit a checkpoint with the exported weights, each changed by the step."""
    from safetensors.torch import load_file, save_file

    folder = run.outputs / "checkpoints" / folder_name(step)
    folder.mkdir(parents=True)
    tensors = {name: tensor + step / 1000 for name, tensor in load_file(exported / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    file = WrittenFile((folder / "model.safetensors").stat().st_size, file_sha256(folder / "model.safetensors"))
    write_commit(folder, Commit(step, None, {"model.safetensors": file}))
    return folder


def test_kept_checkpoints_are_logged_models_on_request(run: RunFolder, tmp_path: Path, exported: Path) -> None:
    import mlflow

    folders = {step: write_checkpoint(run, step, exported) for step in (20, 30)}
    (run.outputs / "checkpoints" / folder_name(35)).mkdir()  # not committed
    backend, client = LocalBackend(tmp_path), client_of(tmp_path)
    assert "checkpoints" not in backend.register_model("run", "bert")
    first = backend.register_model("run", "bert", checkpoints=True)
    assert backend.register_model("run", "bert", checkpoints=True) == first
    assert (first["version"], [one["step"] for one in first["checkpoints"]]) == ("1", [20, 30])
    mlflow.set_tracking_uri(default_uri(tmp_path))
    for one in first["checkpoints"]:
        step = one["step"]
        model = client.get_logged_model(one["uri"].removeprefix("models:/"))
        assert (model.name, str(model.status)) == (f"run-step-{step:08d}", "READY")
        assert {metric.key: (metric.value, metric.step) for metric in model.metrics} == {
            "loss": (1 / step, step),
            "rate": (0.1, step),
        }
        weights = Path(model.artifact_location.removeprefix("file://"), "model.safetensors")
        assert weights.samefile(folders[step] / "model.safetensors"), "linked, not copied"
        assert "masks" in mlflow.pyfunc.load_model(one["uri"]).predict(["w1 [MASK] w3"])[0]
    tracked = client.get_run(str(run.mlflow_run_id))
    assert sorted(one.step for one in tracked.outputs.model_outputs) == [20, 30, 40]
    assert len(client.get_metric_history(tracked.info.run_id, "loss")) == 40


@pytest.mark.parametrize("first", ["register", "tune"])
def test_model_is_input_of_run_that_started_from_it(run: RunFolder, tmp_path: Path, first: str) -> None:
    """Whether the model is registered before or after the fine-tuning is copied."""
    sync_run(run)
    tuned = make_tracked_run(tmp_path, "tuned", plan=ENVIRONMENT)
    (tuned.path / "tags.json").write_text(
        json.dumps({"orchestrator.handle": "local://tuned", "orchestrator.parent": "local://run"})
    )
    steps = [lambda: LocalBackend(tmp_path).register_model("run", "bert"), lambda: sync_run(tuned)]
    for step in (*steps, *steps) if first == "register" else (*steps[::-1], *steps[::-1]):
        step()
    client = client_of(tmp_path)
    (output,) = client.get_run(str(run.mlflow_run_id)).outputs.model_outputs
    (source,) = client.get_run(str(tuned.mlflow_run_id)).inputs.model_inputs
    assert source.model_id == output.model_id


def test_sweep_registers_model_of_its_best_trial(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from orchestrator.cli.main import main
    from orchestrator.sweep import Sweep
    from orchestrator.sweeps.driver.sweep_status import TrialRow

    make_search(tmp_path)
    tags = run.read_json("tags.json") | {"orchestrator.sweep": "search-1"}
    (run.path / "tags.json").write_text(json.dumps(tags))
    monkeypatch.setattr(Sweep, "best", lambda self: TrialRow(trial=0, state="completed", settings={}, runs=["run"]))
    assert main(["model", "register", "search-1", "--name", "bert", "--alias", "champion"]) == 0
    assert capsys.readouterr().out == "bert:1\n"
    tags = client_of(tmp_path).get_model_version_by_alias("bert", "champion").tags
    assert (tags["orchestrator.run"], tags["orchestrator.sweep"]) == ("run", "search-1")
