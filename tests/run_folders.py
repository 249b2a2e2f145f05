"""Run folders as submission and supervisor write them, without running a job."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.backends.folder.run_folder import LocalState, RunFolder
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.backends.local.launch import LocalRequest
from orchestrator.client import Orchestrator
from orchestrator.runs.status import RunState

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
    processes_per_node: int = 2,
    plan: dict[str, Any] | None = None,
    **more: Any,
) -> RunFolder:
    """Create a run folder submitted `age` seconds ago; `plan` and `more` change the plan and the state."""
    run = RunFolder(home / "runs" / name)
    run.outputs.mkdir(parents=True)
    run.logs.mkdir()
    (run.path / "plan.json").write_text(json.dumps(PLAN | (plan or {})))
    request = {"tracking_uri": "sqlite:////x.db", "nodes": nodes, "processes_per_node": processes_per_node}
    (run.path / "request.json").write_text(json.dumps(request))
    (run.path / "lock").touch()
    run.write_state(LocalState.model_validate({"state": state, "created": 1000.0, **more}))
    for path in (run.path / "request.json", run.path / "state.json"):
        os.utime(path, (time.time() - age, time.time() - age))
    return run


def write_local_request(run: RunFolder, *, processes_per_node: int = 1) -> None:
    """Write the request from which the local backend resumes a run."""
    request = LocalRequest(
        name=run.name,
        command=["true"],
        nodes=1,
        processes_per_node=processes_per_node,
        threads=1,
        device="cpu",
        master_port=0,
        max_restarts=0,
        variables={},
        snapshot="",
        tracking_uri="sqlite:////x.db",
        experiment="x",
        steps=100,
        token_stores="x",
    )
    (run.path / "request.json").write_text(request.model_dump_json())


@contextmanager
def live_run(home: Path, name: str, state: RunState = RunState.RUNNING, **more: Any) -> Iterator[RunFolder]:
    """Yield a run with a live supervisor: this process holds its lock. The run completes when the context ends."""
    run = make_run(home, name, state, **more)
    with run.lock():
        yield run
        run.write_state(run.state().model_copy(update={"state": RunState.COMPLETED}))


def report(run: RunFolder, step: int, *, at: float = 1.0, **metrics: float) -> None:
    """Append one line to the metrics of the job."""
    with run.metrics.open("a") as stream:
        stream.write(json.dumps({"step": step, "time": at, "metrics": metrics}) + "\n")


def run_script(home: Path, script: str, **overrides: Any) -> str:
    """Start a run of two ranks that only execute a shell script, with launcher and supervisor; return its name."""
    changed = {"compute.processes_per_node": 2, "train.micro_batch_size": 32, **overrides}
    orchestrator = Orchestrator(home=home, environ={"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": ""})
    plan = orchestrator.plan(overrides=changed)
    backend = LocalBackend(home)
    submission = backend.prepare(plan, run=plan.name)
    request = submission.request.model_copy(update={"command": ["/bin/sh", "-c", script], "writes_result": False})
    documents = {**submission.documents, "request.json": request.model_dump_json()}
    return backend.submit(replace(submission, request=request, documents=documents)).name
