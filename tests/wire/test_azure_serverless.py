"""Jobs on serverless compute against the double: accepted, run, compared with the quota."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.client import Orchestrator
from orchestrator.run import Run
from orchestrator.runs.status import RunState
from orchestrator.support.errors import QuotaError
from orchestrator.testing import AzureDouble
from tests.conftest import write_corpus, write_spec

T4 = "Standard_NC4as_T4_v3"


def submit(folder: Path, **compute: Any) -> Run:
    write_corpus(folder / "corpus.txt")
    section = {"cluster": "serverless", "sku": T4, "tier": "spot", "nodes": 2, **compute}
    write_spec(folder / "job.yaml", data={"text": ["corpus.txt"]}, compute=section)
    orchestrator = Orchestrator("azure", home=folder / "home", environ={})
    return orchestrator.submit(orchestrator.plan(file=folder / "job.yaml"))


@pytest.mark.usefixtures("small_snapshot")
def test_serverless_job_needs_no_cluster(azure: AzureDouble, tmp_path: Path) -> None:
    run = submit(tmp_path)
    (put,) = azure.requests(f"PUT *jobs/{run.name}")
    sent = put.body["properties"]
    assert "computeId" not in sent
    assert sent["queueSettings"] == {"jobTier": "Spot"}
    assert (sent["resources"]["instanceType"], sent["resources"]["instanceCount"]) == (T4, 2)
    status = run.status()
    assert (status.state, status.warning) == (RunState.STARTING, None)
    azure.move(run.name, "Running")
    azure.preempt(run.name)
    assert run.status().state == RunState.PREEMPTED
    assert not azure.requests("*computes*")
    assert azure.violations == []


@pytest.mark.usefixtures("small_snapshot")
def test_serverless_job_beyond_the_quota_is_refused(azure: AzureDouble, tmp_path: Path) -> None:
    azure.set_quota("standardNCASv3_T4Family", 4)
    with pytest.raises(QuotaError) as failure:
        submit(tmp_path, tier="dedicated")
    assert failure.value.fix == "--nodes 1"
    assert not azure.requests("PUT *jobs/*")


@pytest.mark.long
def test_serverless_job_runs(running_azure: AzureDouble, tmp_path: Path) -> None:
    run = submit(tmp_path, tier="dedicated", sku="Standard_DS3_v2", nodes=1, device="cpu")
    assert run.wait(timeout=240).state == RunState.COMPLETED
