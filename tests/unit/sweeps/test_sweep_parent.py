"""The MLflow run of a sweep, and its final state."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from orchestrator.runs.status import RunState
from orchestrator.runs.tracked_run import default_uri
from orchestrator.sweeps.design.sweep_record import EarlierSweep, SweepRecord
from orchestrator.sweeps.driver.control import make_sweep
from orchestrator.sweeps.driver.parent import ParentRun
from orchestrator.sweeps.policy.termination import Decision


@pytest.mark.slow
def test_parent_run_has_final_state_and_every_decision(tmp_path: Path) -> None:
    document: dict[str, Any] = {"space": {"optimizer.learning_rate": [1, 2]}, "limits": {"trials": 4}}
    record = SweepRecord(
        name="search-1",
        created=time.time(),
        kind="pretrain",
        sweep=document,
        trial={"backend": "local", "tracking": {"uri": None, "experiment": "bert"}},
        compute={},
        changes={},
        snapshot="abc",
        warnings=[],
        earlier=[EarlierSweep(sweep="search-0", used=3, outside=0)],
    )
    folder = make_sweep(record, tmp_path)
    client = MlflowClient(tracking_uri=default_uri(tmp_path))
    run_id = None
    for number, (state, expected) in enumerate({RunState.PREEMPTED: "KILLED", RunState.COMPLETED: "FINISHED"}.items()):
        parent = ParentRun(folder, record, tmp_path)
        before, run_id = run_id, parent.open(run_id)
        assert run_id is not None
        assert before in {None, run_id}, "a resumed sweep has the same run"
        assert client.get_run(run_id).info.status == "RUNNING"
        folder.decide(number, Decision(number % 2 == 0, 3, "0.611 x 1.2 < 0.79"))
        parent.end(state)
        assert client.get_run(run_id).info.status == expected, "SIGTERM ends the run"
    assert run_id is not None
    run = client.get_run(run_id)
    assert run.data.params["limits.trials"] == "4"
    assert run.data.params["space.optimizer.learning_rate"] == "[1, 2]"
    assert run.data.tags["orchestrator.warm_start"] == "3 trials of search-0"
    lines = Path(client.download_artifacts(run_id, "decisions.jsonl", str(tmp_path))).read_text().splitlines()
    assert len(lines) == 2
    assert parent.tags()["mlflow.parentRunId"] == run_id
