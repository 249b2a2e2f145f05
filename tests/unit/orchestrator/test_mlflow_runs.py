"""Runs of other tools in MLflow: listed with ours, and compared with them."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from mlflow.entities import Dataset, DatasetInput, InputTag
from mlflow.tracking import MlflowClient

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.cli.main import main
from orchestrator.runs.mlflow_runs import find_run, our_metric, read_runs
from tests.conftest import Console, Finished, write_spec
from tests.mlflow_runs import wait_for_copy
from train_jobs.artifacts.tracking import mlflow_copy

PARAMS = {
    "learning_rate": "0.0500",
    "per_device_train_batch_size": "2",
    "seed": "7",
    "hub_token": "hf_Zk3SrhQp0XbN8vYw",
    "fp16": "True",
}
METRICS = {"eval/accuracy": 0.887, "eval_loss": 0.31, "train_loss": 0.2}
DIGEST = "3064697713f5"


@pytest.fixture
def store(tmp_path: Path, empty_store: Path) -> Path:
    """Return an empty MLflow store."""
    return Path(shutil.copy(empty_store, tmp_path / "theirs.db"))


@pytest.fixture
def command(
    console: Console, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Finished]:
    """Return the command line in this process: a new one imports MLflow first, which takes seconds."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(console.home))
    monkeypatch.chdir(console.cwd)

    def run(*words: str) -> Finished:
        code = main(list(words))
        return Finished(code, *capsys.readouterr())

    return run


def log_run(store: Path, name: str, params: Mapping[str, str] = PARAMS, experiment: str = "colleague") -> str:
    """Log a run as transformers' Trainer does; return its id."""
    client = MlflowClient(tracking_uri=f"sqlite:///{store}")
    known = client.get_experiment_by_name(experiment)
    place = known.experiment_id if known else client.create_experiment(experiment)
    run = client.create_run(place, run_name=name, tags={"mlflow.user": "ada"}).info.run_id
    for key, value in params.items():
        client.log_param(run, key, value)
    for key, number in METRICS.items():
        client.log_metric(run, key, number)
    dataset = Dataset(name="reviews.csv", digest=DIGEST, source_type="local", source="{}")
    client.log_inputs(run, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
    client.set_terminated(run)
    return str(run)


@pytest.mark.long
def test_runs_of_colleagues_are_listed_beside_ours(
    console: Console, command: Callable[..., Finished], corpus: Path, empty_store: Path
) -> None:
    spec = write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 4, "seed": 7})
    done = console("submit", "pretrain", "-f", str(spec), "-o", "json")
    assert done.code == 0, done.err
    ours = done.json["name"]
    store = console.home / "mlflow.db"
    wait_for_copy(RunFolder(console.home / "runs" / ours))
    log_run(store, "their-run")
    listed = console("list", "--mlflow", str(store))
    assert listed.code == 0, listed.err
    header, first, second = listed.out.splitlines()
    assert header.split() == ["RUN", "STATE", "SCORE", "DATA", "EXPERIMENT", "USER", "STARTED"]
    assert first.split()[:7] == [
        "their-run",
        "completed",
        "validation_accuracy",
        "0.8870",
        "reviews.csv",
        "(30646977)",
        "colleague",
    ]
    assert second.split()[:3] == [ours, "completed", "validation_loss"]
    only = command("list", "--mlflow", f"sqlite:///{store}", "--experiment", "colleague", "-o", "json").json
    assert [(one["name"], one["user"], one["score"]) for one in only] == [
        ("their-run", "ada", {"name": "validation_accuracy", "value": 0.887})
    ]
    # the copy and the run itself are one row; without the copy, the run is listed all the same
    shutil.copy(empty_store, console.cwd / "empty.db")
    (own,) = command("list", "--mlflow", "empty.db", "-o", "json").json
    assert (own["name"], own["experiment"], own["data"][0][0]) == (ours, None, corpus.name)

    compared = command("diff", "@last", "their-run", "--mlflow", str(store), "-o", "json")
    assert compared.code == 0, compared.err
    found = compared.json
    # equal as numbers: seed and batch size; precision has another name there and is not compared
    assert found["spec"] == {"optimizer.learning_rate": {"a": "0.002", "b": "0.0500"}}
    assert found["data"]["datasets"]["b"] == "reviews.csv (30646977)"
    assert found["results"]["validation_accuracy"] == {"b": 0.887}
    losses = found["results"]["validation_loss"]
    assert losses["difference"] == pytest.approx(losses["b"] - losses["a"])
    text = command("diff", "@last", "their-run", "--mlflow", str(store)).out
    assert "3 parameters are in both runs and compared" in text
    assert "hf_Zk3" not in text + compared.out


@pytest.mark.usefixtures("copied_later")
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")  # other tests have imported the job
def test_run_and_its_copy_do_not_differ(
    console: Console, command: Callable[..., Finished], corpus: Path, empty_store: Path
) -> None:
    """A colleague has only the copy: its parameters, data and results are those of the run."""
    console.home.mkdir()
    store = Path(shutil.copy(empty_store, console.home / "mlflow.db"))
    spec = write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 4})
    done = command("submit", "pretrain", "-f", str(spec), "-b", "debug")
    assert done.code == 0, done.err
    assert command("mlflow", "sync", "--all").code == 0
    (copied,) = read_runs(str(store))
    found = command("diff", "@last", copied.id, "--mlflow", str(store), "-o", "json").json
    assert (found["spec"], found["data"], found["environment"]) == ({}, {}, {})
    assert {"state", "validation_loss"} <= found["results"].keys()
    found["results"].pop("seconds")  # of the copy from the start of the job, of the run from its submission
    assert all(pair["a"] == pytest.approx(pair["b"]) for pair in found["results"].values()), found["results"]


def test_run_is_found_by_id_and_ambiguous_name_is_refused(command: Callable[..., Finished], store: Path) -> None:
    runs = [log_run(store, "twin"), log_run(store, "twin", {"learning_rate": "0.1"})]
    done = command("diff", *runs, "--mlflow", str(store), "-o", "json")
    assert done.code == 0, done.err
    assert done.json["spec"] == {"learning_rate": {"a": "0.0500", "b": "0.1"}}
    twice = command("diff", runs[0], "twin", "--mlflow", str(store))
    assert (twice.code, twice.err.splitlines()[0]) == (
        5,
        f"error[not-found]: more than one run is named twin in {store}",
    )
    unknown = command("diff", runs[0], "no 'one'", "--mlflow", str(store))
    assert (unknown.code, "unknown run \"no 'one'\"" in unknown.err) == (5, True), unknown.err
    assert command("diff", *runs).code == 5


@pytest.mark.parametrize("name", ["it's a run", 'the "best" run', """it's the "best" run""", "a\\'b", "100% _"])
def test_run_with_quotes_in_its_name_is_found(store: Path, name: str) -> None:
    run = log_run(store, name)
    log_run(store, "another")
    assert find_run(str(store), name).id == run


def test_secrets_of_others_are_not_shown(command: Callable[..., Finished], store: Path) -> None:
    log_run(store, "careless")
    listed = command("list", "--mlflow", str(store), "-o", "json")
    assert listed.json[0]["params"]["learning_rate"] == "0.0500"
    assert "hf_Zk3" not in listed.out


def test_nan_and_infinite_metrics_are_shown(command: Callable[..., Finished], store: Path) -> None:
    """MLflow stores infinity as the largest double, of 309 digits."""
    runs = [log_run(store, name) for name in ("diverged", "exploded", "fine")]
    client = MlflowClient(tracking_uri=f"sqlite:///{store}")
    for run, number in zip(runs, (math.nan, math.inf, 0.5), strict=True):
        client.log_metric(run, "eval/accuracy", number)
    listed = command("list", "--mlflow", str(store))
    assert listed.code == 0, listed.err
    shown = {line.split()[0]: line.split()[3] for line in listed.out.splitlines()[1:]}
    assert shown == {"diverged": "nan", "exploded": "1.798e+308", "fine": "0.5000"}
    found = command("list", "--mlflow", str(store), "-o", "json")
    assert "NaN" not in found.out
    assert [one["score"]["value"] for one in found.json] == [0.5, sys.float_info.max, None]
    assert command("diff", "diverged", "fine", "--mlflow", str(store)).code == 0
    compared = command("diff", "diverged", "fine", "--mlflow", str(store), "-o", "json")
    assert compared.json["results"]["validation_accuracy"] == {"a": None, "b": 0.5, "difference": None}
    assert "NaN" not in compared.out


def test_all_pages_are_read(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_copy, "PAGE", 2)
    for number in range(5):
        log_run(store, f"run-{number}", {}, experiment=f"experiment-{number % 3}")
    names = [run.name for run in read_runs(str(store))]
    assert names == [f"run-{number}" for number in reversed(range(5))]
    assert [run.name for run in read_runs(str(store), limit=3)] == names[:3]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--mlflow", "missing.db"), 1, "error[storage]: cannot read the MLflow store: "),
        (("--mlflow", "http://127.0.0.1:9"), 7, "reason  the server does not answer: Connection refused"),
        (("--mlflow", "http://ada:hunter2@127.0.0.1:9"), 2, "invalid tracking URI: it must not contain credentials"),
        (
            ("--mlflow", "theirs.db", "--experiment", "collegue"),
            5,
            "unknown experiment 'collegue' (did you mean \"coll",
        ),
        (("--experiment", "colleague"), 2, "error[usage]: cannot use --experiment without --mlflow"),
    ],
)
def test_bad_address_is_a_clear_error(
    console: Console, command: Callable[..., Finished], store: Path, words: tuple[str, ...], code: int, text: str
) -> None:
    log_run(store, "one")
    done = command("list", *words)
    assert (done.code, done.out) == (code, "")
    assert text in done.err
    assert not Path(console.cwd, "missing.db").exists()


def test_folder_of_files_is_read(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(tracking_uri=(console.cwd / "mlruns").as_uri())
    run = client.create_run(client.create_experiment("old"), run_name="from-files").info.run_id
    client.log_metric(run, "val_f1", 0.5)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    (found,) = console("list", "--mlflow", "mlruns", "-o", "json").json
    assert (found["name"], found["state"], found["score"]["name"]) == ("from-files", "running", "validation_f1")


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_folder_that_is_no_store_is_refused(command: Callable[..., Finished], tmp_path: Path, form: str) -> None:
    folder = tmp_path / "project"
    (folder / "recipe").mkdir(parents=True)
    (folder / "recipe" / "meta.yaml").write_text("package: {name: x}\n")
    (folder / "mlflow.db").touch()
    done = command("list", "--mlflow", form.format(folder))
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[0] == f"error[storage]: {folder} is not an MLflow store: it has no experiment folder"
    assert f"orchestrator list --mlflow {folder}/mlflow.db" in done.err
    assert sorted(path.name for path in folder.rglob("*")) == ["meta.yaml", "mlflow.db", "recipe"]
    missing = command("list", "--mlflow", form.format(tmp_path / "missing"))
    assert missing.code == 1, missing.err
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("name", "ours"),
    [("eval/f1", "validation_f1"), ("dev_loss", "validation_loss"), ("validate", "validate"), ("test_f1", "test_f1")],
)
def test_metrics_get_our_names(name: str, ours: str) -> None:
    assert our_metric(name) == ours
