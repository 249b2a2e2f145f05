"""Run folders as submission and supervisor leave them, without running anything."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.backends.folder.files import LocalState, RunFolder
from orchestrator.runs import RunState


def make_run(
    home: Path,
    name: str,
    state: RunState = RunState.COMPLETED,
    *,
    age: float = 0.0,
    nodes: int = 1,
    processes_per_node: int = 2,
) -> RunFolder:
    """A run folder as submission leaves it, `age` seconds ago."""
    run = RunFolder(home / "runs" / name)
    run.outputs.mkdir(parents=True)
    run.logs.mkdir()
    plan = {"job": {"train": {"steps": 100}}, "run_hash": "0123abcd", "spec": {"tags": {"a": "b"}}}
    request = {"tracking_uri": "sqlite:////x.db", "nodes": nodes, "processes_per_node": processes_per_node}
    (run.path / "plan.json").write_text(json.dumps(plan))
    (run.path / "request.json").write_text(json.dumps(request))
    (run.path / "lock").touch()
    run.write_state(LocalState(state=state, created=1000.0))
    for path in (run.path / "request.json", run.path / "state.json"):
        os.utime(path, (time.time() - age, time.time() - age))
    return run


@contextmanager
def live_run(home: Path, name: str, state: RunState = RunState.RUNNING, *, processes: int = 2) -> Iterator[RunFolder]:
    """A run whose supervisor lives: this process holds its lock. It completes at the end of the context."""
    run = make_run(home, name, state, processes_per_node=processes)
    with run.lock():
        yield run
        run.write_state(LocalState(state=RunState.COMPLETED, created=1000.0))
