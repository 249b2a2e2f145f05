"""The MLflow store and run that are created before a job, with real stores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from orchestrator.runs.tracked_run import TrackingRequest, default_uri, open_run
from orchestrator.support.errors import ServiceError
from train_jobs.config.reported import flatten


def request(uri: str, name: str = "run", run_id: str | None = None) -> TrackingRequest:
    params = {f"section.key{index}": str(index) for index in range(120)}  # more than MLflow accepts in one request
    return TrackingRequest(
        uri=uri, experiment="bert", run_name=name, params=params, tags={"team": "nlp"}, run_id=run_id
    )


@pytest.mark.slow
def test_parallel_creation_of_a_store_is_safe(tmp_path: Path) -> None:
    uri = default_uri(tmp_path / "home")
    with ThreadPoolExecutor(3) as pool:  # each is a separate process
        ids = list(pool.map(lambda index: open_run(request(uri, f"run-{index}")), range(3)))
    assert len(set(ids)) == 3
    client = MlflowClient(tracking_uri=uri)
    experiments = [found for found in client.search_experiments() if found.name == "bert"]
    assert len(experiments) == 1
    assert experiments[0].artifact_location == (tmp_path / "home" / "artifacts").as_uri()
    run = client.get_run(ids[0])
    assert run.info.status == "RUNNING"
    assert len(run.data.params) == 120
    assert run.data.tags["team"] == "nlp"

    client.set_terminated(ids[0], "KILLED")
    assert open_run(request(uri, run_id=ids[0])) == ids[0]
    assert client.get_run(ids[0]).info.status == "RUNNING"


def test_store_refused_by_mlflow_has_its_message(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="cannot open an MLflow run") as caught:
        open_run(request(f"file://{tmp_path / 'mlruns'}"))
    assert caught.value.facts["where"] == f"file://{tmp_path / 'mlruns'}"
    assert str(caught.value.facts["reason"])
    assert not (tmp_path / "mlruns").exists()


def test_parameters_are_dotted_names_with_text() -> None:
    tree = {"train": {"steps": 10, "deep": {"er": None}}, "betas": [0.9, 0.98], "long": "x" * 7000}
    found = flatten(tree)
    assert found["train.steps"] == "10"
    assert found["train.deep.er"] == "None"
    assert found["betas"] == "[0.9, 0.98]"
    assert len(found["long"]) == 6000
