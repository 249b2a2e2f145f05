"""MLflow's client finds the run of a job, from inside the job and, with Azure's plugin, from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests
from wire_entities import job, prepare

from orchestrator.testing import AzureDouble

REPORTS = """
import os, time
from mlflow.tracking import MlflowClient
from mlflow.entities import Metric, Param
client = MlflowClient()
run = os.environ["MLFLOW_RUN_ID"]
metrics = [Metric("loss", 10.0 / step, int(time.time() * 1000), step) for step in (1, 2, 5)]
client.log_batch(run, metrics=metrics, params=[Param("lr", "0.1")])
assert client.get_experiment(os.environ["MLFLOW_EXPERIMENT_ID"]).name == os.environ["MLFLOW_EXPERIMENT_NAME"]
"""


@pytest.fixture(autouse=True)
def _no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")  # the double refuses this host


def test_job_reports_to_the_run_of_its_name(
    running_azure: AzureDouble, client: Any, code: Path, tmp_path: Path
) -> None:
    from mlflow.tracking import MlflowClient

    ml = client(running_azure)
    prepare(ml, tmp_path)
    (code / "job.py").write_text(REPORTS)
    alone = {"inputs": {}, "outputs": {}, "instance_count": 1, "distribution": None}
    ml.jobs.create_or_update(job("one", code, command="python job.py", **alone))
    assert running_azure.wait("one") == "Completed", running_azure.logs("one")
    outside = MlflowClient(tracking_uri=ml.workspaces.get().mlflow_tracking_uri)
    run = outside.get_run("one")
    assert (run.info.status, run.data.params, run.data.metrics) == ("FINISHED", {"lr": "0.1"}, {"loss": 2.0})
    assert [point.step for point in outside.get_metric_history("one", "loss")] == [1, 2, 5]
    experiment = outside.get_experiment_by_name("bert")
    found = outside.search_runs([experiment.experiment_id], filter_string="tags.commit = 'abc'")
    assert [run.info.run_id for run in found] == ["one"]
    assert outside.search_runs([experiment.experiment_id], filter_string="tags.commit = 'other'") == []


def test_token_of_a_closed_double_is_not_cached(client: Any, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    for number in range(2):  # at the same address
        with AzureDouble(tmp_path / str(number), run_jobs=False) as double:
            double.jobs.submit("one", {"jobType": "Command", "command": "x"})
            address = client(double).workspaces.get().mlflow_tracking_uri
            assert MlflowClient(tracking_uri=address).get_run("one").info.run_id == "one"


def test_server_has_limits_pages_and_tokens(azure: AzureDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    azure.jobs.submit("one", {"jobType": "Command", "command": "x"})
    variables = azure._variables(azure.job("one"))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", variables["MLFLOW_TRACKING_TOKEN"])
    azure.expire_tokens()  # the service renews the token of a job
    inside = MlflowClient(tracking_uri=variables["MLFLOW_TRACKING_URI"])
    metrics = [Metric("loss", float(step), step, step) for step in range(1000)]
    inside.log_batch("one", metrics=metrics)
    inside.log_param("one", "lr", "0.1")
    for changed in ({"metrics": [*metrics, *metrics[:1]]}, {"params": [Param("lr", "0.2")]}):
        with pytest.raises(MlflowException):
            inside._tracking_client.store.log_batch("one", **{"metrics": [], "params": [], "tags": [], **changed})
    url = f"{variables['MLFLOW_TRACKING_URI']}/api/2.0/mlflow/metrics/get-history"
    steps, page = [], {"run_id": "one", "metric_key": "loss", "max_results": "300"}
    headers = {"Authorization": f"Bearer {variables['MLFLOW_TRACKING_TOKEN']}"}
    while page.get("page_token") != "":
        with requests.get(url, params=page, headers=headers) as reply:
            answer = reply.json()
        steps += [metric["step"] for metric in answer["metrics"]]
        page["page_token"] = answer.get("next_page_token", "")
    assert steps == list(range(1000))
    with requests.get(url, params=page) as reply:
        assert reply.status_code == 401
