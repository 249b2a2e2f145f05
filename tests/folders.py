"""Run folders that nothing ran in: what a submission and a supervisor leave, written by hand."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from orchestrator.backends.folder.files import LocalState, RunFolder
from orchestrator.runs import RunState

PLAN: dict[str, Any] = {
    "job": {"train": {"steps": 100, "global_batch_size": 8}},
    "compute": {"nodes": 1, "processes_per_node": 2, "price_per_hour": None},
    "run_hash": "0123abcd",
    "spec": {"tags": {"a": "b"}},
}


def make_run(
    home: Path,
    name: str,
    state: RunState = RunState.COMPLETED,
    *,
    age: float = 0.0,
    nodes: int = 1,
    plan: dict[str, Any] | None = None,
    **more: Any,
) -> RunFolder:
    """A run of two processes on each node, submitted `age` seconds ago; `plan` and `more` change plan and state."""
    run = RunFolder(home / "runs" / name)
    run.outputs.mkdir(parents=True)
    run.logs.mkdir()
    (run.path / "plan.json").write_text(json.dumps(PLAN | (plan or {})))
    request = {"tracking_uri": "sqlite:////x.db", "nodes": nodes, "processes_per_node": 2}
    (run.path / "request.json").write_text(json.dumps(request))
    (run.path / "lock").touch()
    run.write_state(LocalState.model_validate({"state": state, "created": 1000.0, **more}))
    for path in (run.path / "request.json", run.path / "state.json"):
        os.utime(path, (time.time() - age, time.time() - age))
    return run


def report(run: RunFolder, step: int, *, at: float = 1.0, **metrics: float) -> None:
    """One line of the job's metrics."""
    with run.metrics.open("a") as stream:
        stream.write(json.dumps({"step": step, "time": at, "metrics": metrics}) + "\n")
