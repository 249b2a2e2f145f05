"""Times of commands with many runs: the whole process, to its last line.

    python -m benchmarks.list_runs [RUNS] [TIMES]

The runs are folders as a submission makes them, each with an hour's worth of reports (200 kB), an end, and a copy of
the code; equal files are hard links. `list` is measured with and without its index of finished runs. Commands run in
turn, so that a slow moment of the machine affects all equally.
"""

from __future__ import annotations

import json
import os
import shutil
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


def make_runs(home: Path, count: int) -> str:
    """Create folders of completed runs; return the name of one.

    Args:
        home: home folder.
        count: number of runs.
    """
    plan = Orchestrator(home=home, environ={"CUDA_VISIBLE_DEVICES": ""}).plan()
    backend = LocalBackend(home)
    first = backend._make(backend.prepare(plan, run=f"{plan.name}-0"))
    with first.metrics.open("w") as stream:
        for step in range(REPORTS):
            stream.write(json.dumps({"step": step, "time": step * 3.6, "metrics": METRICS}) + "\n")
    attempt = RunAttempt(started=0, ended=3600, state=RunState.COMPLETED, exit_code=0, step=REPORTS)
    ending = {"state": RunState.COMPLETED, "started": 0.0, "ended": 3600.0, "attempts": [attempt]}
    first.write_state(first.state().model_copy(update=ending))
    for number in range(1, count):
        run = first.path.with_name(f"{plan.name}-{number}")
        shutil.copytree(first.path, run, copy_function=os.link)
        for name in ("state.json", "request.json"):
            text = (run / name).read_text().replace(first.name, run.name)
            (run / name).unlink()
            (run / name).write_text(text)
    time.sleep(3)  # the index keeps no run that has just changed
    return first.name


def main() -> None:
    """Print a table of milliseconds."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    times = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as home:
        name = make_runs(Path(home), count)
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "orchestrator list, without its index": [ORCHESTRATOR, "list"],
            "orchestrator list": [ORCHESTRATOR, "list"],
            "orchestrator list -o json": [ORCHESTRATOR, "list", "-o", "json"],
            "orchestrator status RUN": [ORCHESTRATOR, "status", name],
            "orchestrator prune --older-than 1d --dry-run": [ORCHESTRATOR, "prune", "--older-than", "1d", "--dry-run"],
            "completion of a run": [ORCHESTRATOR],
        }
        environ = {**os.environ, "ORCHESTRATOR_HOME": home}
        line = f"orchestrator status {name[:4]}"
        completing = {
            "_ARGCOMPLETE": "1",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
            "_ARGCOMPLETE_STDOUT_FILENAME": os.devnull,
        }
        for _ in range(times + 1):
            for label, command in commands.items():
                if "without" in label:
                    shutil.rmtree(Path(home, "cache"), ignore_errors=True)
                more = completing if label.startswith("completion") else {}
                started = time.perf_counter()
                done = subprocess.run(command, env=environ | more, capture_output=True, text=True, check=True)
                taken.setdefault(label, []).append(time.perf_counter() - started)
                if label.endswith("json"):
                    assert done.stdout.count('"completed"') == 2 * count, "state of the run and of its attempt"
    print(f"{describe('pydantic')}; {count} runs; milliseconds, median (min-max) of {times} after a warm-up\n")
    for label, seconds in taken.items():
        print(f"| `{label}` | {spread(seconds[1:], 1e3, 0)} |")


if __name__ == "__main__":
    main()
