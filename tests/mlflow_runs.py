"""Run folders that are copied to MLflow, and the store that results; as a module, syncs that race or are killed.

    python -m tests.mlflow_runs RUN_FOLDER... --race N
    python -m tests.mlflow_runs RUN_FOLDER... --kill SEED

Importing MLflow takes seconds, so the module imports it once and forks a process for each sync.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from orchestrator.backends.folder.mlflow_sync import is_behind, sync_run
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.runs.status import RunState
from orchestrator.runs.tracked_run import default_uri
from tests.run_folders import make_run

STARTED, ENDED = 1_700_000_000.25, 1_700_000_100.5
STEPS = range(1, 41)


def make_tracked_run(
    home: Path, name: str = "run", state: RunState = RunState.COMPLETED, *, uri: str | None = None, **more: Any
) -> RunFolder:
    """Create the folder of a run that reported 40 steps of two metrics and was never copied to MLflow."""
    attempt = {"started": STARTED, "ended": ENDED, "state": state} if state.terminal else {"started": STARTED}
    ended = {"ended": ENDED} if state.terminal else {}
    run = make_run(home, name, state, attempts=[attempt], **ended, **more)
    request = run.read_json("request.json") | {"tracking_uri": uri or default_uri(home), "experiment": "bert"}
    (run.path / "request.json").write_text(json.dumps(request))
    (run.path / "config.json").write_text(json.dumps({"train": {"steps": 40}, "optimizer": {"learning_rate": 0.1}}))
    (run.path / "tags.json").write_text(json.dumps({"orchestrator.handle": f"local://{name}", "team": "nlp"}))
    lines = [{"step": step, "time": STARTED + step, "metrics": {"loss": 1 / step, "rate": 0.1}} for step in STEPS]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def stored(folder: Path, file: str = "mlflow.db") -> list[tuple[str, str, int]]:
    """Return name, status and number of metric values of each MLflow run in the store of a home, or in another file."""
    query = "SELECT name, status, (SELECT count(*) FROM metrics WHERE metrics.run_uuid = runs.run_uuid) FROM runs"
    with closing(sqlite3.connect(folder / file)) as database:
        return sorted(database.execute(query))


def wait_for_copy(run: RunFolder, seconds: float = 300.0) -> str:
    """Wait until MLflow has everything of an ended run (minutes on a loaded machine); return the MLflow run's id."""
    until = time.monotonic() + seconds
    while is_behind(run):
        assert time.monotonic() < until, f"MLflow still lacks something of {run.path}"
        time.sleep(0.05)
    return str(run.mlflow_run_id)


def forked_sync(run: RunFolder) -> int:
    """Start a process that syncs a run; return its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        sync_run(run)
    except BaseException as problem:
        print(problem, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def race(run: RunFolder, number: int) -> bool:
    """Sync a run in several processes simultaneously; return whether all of them succeeded."""
    children = [forked_sync(run) for _ in range(number)]
    return all(os.waitpid(child, 0)[1] == 0 for child in children)


def kill(run: RunFolder, seconds: float) -> bool:
    """Kill a sync of a run after some time, then sync it again; return whether that succeeded."""
    child = forked_sync(run)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return race(run, 1)


def main() -> int:
    """Race or kill syncs of the given runs."""
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
    import mlflow.tracking  # noqa: F401

    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--race", type=int)
    parser.add_argument("--kill", type=int)
    given = parser.parse_args()
    first, *others = [RunFolder(path) for path in given.runs]
    if given.race:
        return 0 if race(first, given.race) else 1
    started = time.monotonic()
    if not race(first, 1):  # undisturbed: how long it takes
        return 1
    whole, draw = time.monotonic() - started, random.Random(given.kill)
    print(f"an undisturbed sync takes {whole:.2f} s")
    return 0 if all(kill(run, draw.uniform(0, whole)) for run in others) else 1


if __name__ == "__main__":
    sys.exit(main())
