"""Sweep jobs: accepted as the client sends them (it differs from Microsoft's schema only in letter case), and run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from wire_entities import cluster, environment, job, prepare

from orchestrator.testing import AzureDouble
from orchestrator.testing.jobs.sweep_jobs import draw
from tests.conftest import wait_for
from tests.unit.sweeps.laws import CASES, distance_to, law_of_wire, limit

SETTINGS = {"lr": "optimizer.learning_rate", "steps": "train.steps"}


@pytest.mark.parametrize("sampling", ["random", "sobol", "grid", "bayesian"])
def test_sweep_is_accepted(azure: AzureDouble, ml: Any, code: Path, tmp_path: Path, sampling: str) -> None:
    from azure.ai.ml.sweep import BanditPolicy, Choice, RandomSamplingAlgorithm, Uniform

    prepare(ml, tmp_path)
    alone = {"command": "python job.py ${{inputs.lr}}", "inputs": {"lr": 0.1}, "outputs": {}}
    trial = job("trial", code, **alone)(lr=Choice([0.1, 0.2]) if sampling == "grid" else Uniform(0.0, 0.3))
    algorithm = RandomSamplingAlgorithm(rule="sobol", seed=1) if sampling == "sobol" else sampling
    sweep = trial.sweep(sampling_algorithm=algorithm, primary_metric="loss", goal="minimize")
    sweep.name, sweep.experiment_name = "search", "bert"
    sweep.set_limits(max_total_trials=4, max_concurrent_trials=2, timeout=3600)
    sweep.early_termination = BanditPolicy(slack_factor=0.1, evaluation_interval=2) if sampling == "random" else None
    ml.jobs.create_or_update(sweep)
    assert ml.jobs.get("search").type == "sweep"
    (put,) = azure.requests("PUT */jobs/search")
    assert put.query["api-version"] == "2024-01-01-preview"
    assert put.body["properties"]["objective"] == {"goal": "minimize", "primaryMetric": "loss"}
    assert azure.violations == []


def search(ml: Any, tmp_path: Path, space: dict[str, Any], **limits: Any) -> Any:
    """Return a sweep of `cloud_trial` over the grid of a space, without submitting it."""
    from azure.ai.ml import Output

    ml.compute.begin_create_or_update(cluster("cpu", size="Standard_D16s_v5", max_instances=4)).result()
    ml.environments.create_or_update(environment())
    code = tmp_path / "code"
    code.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).parents[1] / "cloud_trial.py", code)
    sets = " ".join(f"--set '{SETTINGS[name]}=${{{{inputs.{name}}}}}'" for name in space)
    work = {
        "command": f"python -S cloud_trial.py {sets} --output ${{{{outputs.run}}}}",
        "inputs": dict.fromkeys(space, ""),
        "outputs": {"run": Output(type="uri_folder", mode="rw_mount")},
        "compute": "cpu",
        "instance_count": 1,
        "distribution": None,
    }
    sweep = job("trial", code, **work)(**space).sweep(
        sampling_algorithm="grid", primary_metric="validation_loss", goal="minimize"
    )
    sweep.name, sweep.experiment_name = "search", "bert"
    sweep.set_limits(**{"max_total_trials": 10, "max_concurrent_trials": 2, "timeout": 3600, **limits})
    return sweep


@pytest.mark.filterwarnings("ignore:content_as_bytes:DeprecationWarning")  # azure-ai-ml calls deprecated blob functions
@pytest.mark.filterwarnings("ignore:The use of a 'BlobProperties':DeprecationWarning")
def test_sweep_runs_its_trials_and_names_the_best(running_azure: AzureDouble, client: Any, tmp_path: Path) -> None:
    from azure.ai.ml.sweep import Choice

    ml = client(running_azure)
    space = {"lr": Choice([0.03, 0.01, 0.02]), "steps": Choice([2])}
    ml.jobs.create_or_update(search(ml, tmp_path, space))
    assert running_azure.wait("search") == "Completed", running_azure.job("search").error
    children = list(ml.jobs.list(parent_job_name="search"))
    assert [child.name for child in children] == ["search_0", "search_1", "search_2"]
    assert [child.status for child in children] == ["Completed"] * 3
    settings = [json.loads(child.tags["hyperparameters"]) for child in children]
    assert settings == [{"lr": rate, "steps": 2} for rate in (0.03, 0.01, 0.02)]
    found = ml.jobs.get("search")
    assert (found.properties["best_child_run_id"], found.properties["score"]) == ("search_1", "10.5")
    assert [one.name for one in ml.jobs.list()] == ["search"]

    ml.jobs.download("search", download_path=tmp_path / "home", output_name="run")
    settings = json.loads((tmp_path / "home/named-outputs/run/model/settings.json").read_text())
    assert settings["optimizer.learning_rate"] == 0.01
    runs = {run.info["run_id"]: run.tags.get("mlflow.parentRunId") for run in running_azure._runs.runs()}
    assert runs == {"search": None, "search_0": "search", "search_1": "search", "search_2": "search"}


def test_trailing_failed_and_slow_trials_end_early(running_azure: AzureDouble, client: Any, tmp_path: Path) -> None:
    from azure.ai.ml.sweep import BanditPolicy, Choice

    ml = client(running_azure)
    sweep = search(ml, tmp_path, {"lr": Choice([0.01, 9.0, 100.0])}, max_concurrent_trials=1)
    sweep.early_termination = BanditPolicy(slack_factor=0.5)
    ml.jobs.create_or_update(sweep)
    assert running_azure.wait("search") == "Completed"
    statuses = [running_azure.job(f"search_{number}").status for number in range(3)]
    assert statuses == ["Completed", "Canceled", "Failed"]
    assert running_azure.job("search").properties["properties"]["best_child_run_id"] == "search_0"


def test_cancelling_a_sweep_ends_its_trials(running_azure: AzureDouble, client: Any, tmp_path: Path) -> None:
    from azure.ai.ml.sweep import Choice

    ml = client(running_azure)
    ml.jobs.create_or_update(search(ml, tmp_path, {"lr": Choice([1.0, 2.0, 3.0])}))
    wait_for(lambda: len(list(ml.jobs.list(parent_job_name="search"))) == 2, what="two trials at a time")
    for name in ("search_0", "search_1"):
        assert running_azure.wait(name, ["Running"]) == "Running"
    ml.jobs.begin_cancel("search").result()
    assert running_azure.wait("search") == "Canceled"
    assert [running_azure.job(f"search_{number}").status for number in range(2)] == ["Canceled"] * 2
    with pytest.raises(KeyError):
        running_azure.job("search_2")


def test_time_limits_apply_to_each_trial_and_to_the_sweep(
    running_azure: AzureDouble, client: Any, tmp_path: Path
) -> None:
    """The client rounds shorter limits up to a minute, so the test sends the same body with shorter ones."""
    from azure.ai.ml.sweep import Choice

    ml = client(running_azure)
    sweep = search(ml, tmp_path, {"lr": Choice([0.01])}, trial_timeout=60)
    ml.jobs.create_or_update(sweep)
    (put,) = running_azure.requests("PUT */jobs/search")
    properties = put.body["properties"]
    space = {"lr": ["choice", [[1.0, 0.02]]]}
    for name, limits in (("trials", {"trialTimeout": "PT1S"}), ("whole", {"timeout": "PT1S"})):
        limits = {**properties["limits"], "maxConcurrentTrials": 1, **limits}
        running_azure.jobs.submit(name, {**properties, "searchSpace": space, "limits": limits})
    assert running_azure.wait("trials") == "Completed"
    assert [running_azure.job(f"trials_{number}").status for number in range(2)] == ["Canceled", "Completed"]
    assert running_azure.wait("whole") == "Canceled"
    assert running_azure.jobs.get("whole_1") is None


@pytest.mark.parametrize(
    ("sampling", "law", "message"),
    [
        ("grid", ("Uniform", 0.0, 0.3), "Grid sampling supports choice only, and lr is uniform"),
        ("bayesian", ("LogUniform", -9.0, -2.0), "Bayesian sampling supports choice, uniform, quniform only"),
        ("random", ("Randint", 2.5), "The search space of lr is invalid"),
    ],
)
def test_spaces_refused_by_the_service_are_refused(
    azure: AzureDouble, ml: Any, tmp_path: Path, sampling: str, law: tuple[Any, ...], message: str
) -> None:
    from azure.ai.ml import sweep as laws
    from azure.core.exceptions import HttpResponseError

    name, *numbers = law
    sweep = search(ml, tmp_path, {"lr": getattr(laws, name)(*numbers)})
    sweep.sampling_algorithm = sampling
    with pytest.raises(HttpResponseError, match=message):
        ml.jobs.create_or_update(sweep)
    assert azure.jobs.all() == []


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rule", ["random", "sobol"])
def test_points_follow_the_distribution_of_the_wire_form(name: str, rule: str) -> None:
    _, wire = CASES[name]
    sweep = {"searchSpace": {"x": wire}, "samplingAlgorithm": {"samplingAlgorithmType": "Random", "rule": rule}}
    drawn = [draw(sweep, index)["x"] for index in range(2000)]
    assert drawn == [draw(sweep, index)["x"] for index in range(2000)]
    assert distance_to(law_of_wire(wire), drawn) < limit(len(drawn))


def test_mapping_option_is_one_value_with_drawn_parameters() -> None:
    wire = ["choice", [[{"name": "a", "rate": ["uniform", [0.5, 1.0]]}, "plain"]]]
    sweep = {"searchSpace": {"x": wire}, "samplingAlgorithm": {"samplingAlgorithmType": "Random"}}
    drawn = [draw(sweep, index)["x"] for index in range(20)]
    assert "plain" in drawn
    assert all(0.5 < value["rate"] < 1.0 for value in drawn if value != "plain")
    assert len({value["rate"] for value in drawn if value != "plain"}) > 3
