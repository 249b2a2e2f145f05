"""A local process drives trials that are jobs on Azure: features that the service lacks, and a crash of the driver."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from wire_entities import write_sweep

from orchestrator.backends.azure.backend import AzureBackend
from orchestrator.client import Orchestrator
from orchestrator.runs.status import RunState
from orchestrator.testing import AzureDouble
from tests.conftest import wait_for

RATE = "optimizer.learning_rate"


@pytest.mark.slow
def test_next_driver_continues_after_a_crash(
    running_azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bayesian sampling over a logarithmic range, successive halving and seeds: the service supports none of them."""
    monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.1")
    monkeypatch.chdir(tmp_path)
    document = {
        "driver": "here",
        "sampling": "bayesian",
        "early_termination": {"policy": "asha", "reduction_factor": 2},
        "limits": {"trials": 3, "concurrent": 2},
        "seeds": [1, 2],
    }
    file = write_sweep({RATE: {"low": 1e-4, "high": 1e-1, "log": True}}, **document)
    sweeps = Orchestrator(home=tmp_path / "home", environ={}).sweeps
    sweep = sweeps.submit(sweeps.plan(file=file, sets=["trial.compute.max_nodes=null"]))
    wait_for(lambda: running_azure.jobs.get(f"{sweep.name}-t0001-r0"), what="the second trial")
    (cluster,) = running_azure.requests("PUT *computes/cpu*")
    scale = cluster.body["properties"]["properties"]["scaleSettings"]
    assert scale["maxNodeCount"] == 4, "two trials at a time, each with two seeds"
    os.kill(sweep.folder.stored_state().pid or 0, signal.SIGKILL)
    wait_for(lambda: not sweep.folder.locked(), what="the driver's death")
    assert sweep.state() == RunState.FAILED
    sweep.resume()
    status = sweep.wait(timeout=200)
    assert (status.state, status.ended) == (RunState.COMPLETED, 3), (sweep.folder.path / "driver.log").read_text()
    names = [f"{sweep.name}-t{trial:04d}-r{seed}" for trial in range(3) for seed in range(2)]
    assert sorted(job.name for job in running_azure.jobs.all()) == names, "every trial exactly once"
    assert {row.state for row in status.rows} <= {"completed", "stopped"}
    assert [row.runs for row in status.rows] == [names[trial * 2 : trial * 2 + 2] for trial in range(3)]
    for row in status.rows:
        assert row.values[0] == pytest.approx(1000 * row.settings[RATE] + 1.0015), "the median of both seeds"
    assert len({row.settings[RATE] for row in status.rows}) == 3
    assert sweep.best().outcome == min(row.outcome for row in status.rows if row.outcome is not None)
    decided = [row.why for row in status.rows if row.state == "stopped"]
    assert all("in this rung, of which the first" in str(why) for why in decided)


@pytest.mark.long
def test_deleted_job_ends_its_trial_alone(azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users can delete jobs: the driver continues with the other trials, and a retry submits another job."""
    monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.1")
    monkeypatch.chdir(tmp_path)
    document = {"driver": "here", "sampling": "random", "limits": {"trials": 2, "concurrent": 2, "retries": 0}}
    file = write_sweep({RATE: {"low": 1e-4, "high": 1e-1, "log": True}}, **document)
    sweeps = Orchestrator(home=tmp_path / "home", environ={}).sweeps
    sweep = sweeps.submit(sweeps.plan(file=file, sets=["trial.compute.max_nodes=null"]))
    kept, deleted = (f"{sweep.name}-t000{number}" for number in range(2))
    for name in (kept, deleted):
        wait_for(lambda name=name: azure.jobs.get(name), what=name)
        azure.move(name, "Running")
    backend = AzureBackend(tmp_path / "home")
    wait_for(lambda: backend.describe(deleted).state == RunState.RUNNING, what="a record of the running job")
    del azure.jobs._jobs[deleted]
    wait_for(lambda: sweep.status().rows[1].state == "failed", what="the end of the trial")
    assert "its job was deleted from the workspace" in str(sweep.status().rows[1].why)
    assert sweep.state() == RunState.RUNNING
    assert azure.jobs.get(kept).status == "Running"
    azure.move(kept, "Completed")
    assert sweep.wait(timeout=100).state.terminal, (sweep.folder.path / "driver.log").read_text()
    sweep.retry()
    wait_for(lambda: azure.jobs.get(f"{deleted}-a2"), what="the next job of the trial")
    sweep.cancel()
    assert sweep.wait(timeout=100).state == RunState.CANCELLED
