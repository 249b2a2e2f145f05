"""Time of `orchestrator list` with many runs: the whole process, to its last line.

python -m benchmarks.list_runs [RUNS] [TIMES]

The runs are folders as a submission makes them, each with an hour's worth of reports (200 kB) and an end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe, spread
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.client import Orchestrator
from orchestrator.runs.status import RunAttempt, RunState

ORCHESTRATOR = str(Path(sys.executable).parent / "orchestrator")
REPORTS = 1000
METRICS = dict.fromkeys(("train_loss", "train_mlm_loss", "train_nsp_loss", "learning_rate", "seconds"), 1 / 3)


def make_runs(home: Path, count: int) -> None:
    """Create folders of COUNT completed runs of one plan."""
    plan = Orchestrator(home=home, environ={"CUDA_VISIBLE_DEVICES": ""}).plan()
    backend = LocalBackend(home)
    for number in range(count):
        run = backend._make(backend.prepare(plan, run=f"{plan.name}-{number}"))
        with run.metrics.open("w") as stream:
            for step in range(REPORTS):
                stream.write(json.dumps({"step": step, "time": step * 3.6, "metrics": METRICS}) + "\n")
        attempt = RunAttempt(started=0, ended=3600, state=RunState.COMPLETED, exit_code=0, step=REPORTS)
        ending = {"state": RunState.COMPLETED, "started": 0.0, "ended": 3600.0, "attempts": [attempt]}
        run.write_state(run.state().model_copy(update=ending))


def main() -> None:
    """Print a table of milliseconds."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    times = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as home:
        make_runs(Path(home), count)
        for _ in range(times + 1):  # in turn, so that a slow moment of the machine affects all equally
            for command in (
                [sys.executable, "-c", "pass"],
                [ORCHESTRATOR, "list"],
                [ORCHESTRATOR, "list", "-o", "json"],
            ):
                started = time.perf_counter()
                environ = {**os.environ, "ORCHESTRATOR_HOME": home}
                done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
                taken.setdefault(" ".join([Path(command[0]).name, *command[1:]]), []).append(
                    time.perf_counter() - started
                )
    assert done.stdout.count('"completed"') == 2 * count, "state of the run and of its attempt"
    print(f"{describe('pydantic')}; {count} runs; milliseconds, median (min-max) of {times} after a warm-up\n")
    for name, seconds in taken.items():
        print(f"| `{name}` | {spread(seconds[1:], 1e3, 0)} |")


if __name__ == "__main__":
    main()
