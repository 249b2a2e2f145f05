"""`mlflow sync --all --to URI` with many short runs and a real server on this machine: seconds and CPU per run.

    python -m benchmarks.mlflow_servers [RUNS]

The runs have 80 values, 2 parameters and the artifacts of `tracking.artifacts: light` without pictures. The second copy
finds all of them on the server.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe
from tests.mlflow_runs import make_tracked_run
from tests.mlflow_servers import MlflowServer, active_runs, running


def copy(home: Path, uri: str) -> tuple[float, float]:
    """Copy all runs of a home; return seconds and CPU seconds of the command."""
    command = [sys.executable, "-m", "orchestrator.cli.main", "mlflow", "sync", "--all", "--to", uri]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, env={**os.environ, "ORCHESTRATOR_HOME": str(home)}, capture_output=True, text=True)
    spent, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    print(done.stdout.splitlines()[-1])
    return spent, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the seconds of a first and of a second copy."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(describe("mlflow"))
    with tempfile.TemporaryDirectory() as folder:
        home, place = Path(folder, "home"), Path(folder, "server")
        place.mkdir()
        for index in range(number):
            make_tracked_run(home, f"run-{index:04}")
        with running(MlflowServer(place)) as server:
            for title in ("first copy", "second copy"):
                seconds, cpu = copy(home, server.uri)
                each = f"{seconds / number:.3f} s and {cpu / number:.3f} s of CPU a run"
                print(f"{title}: {seconds:.1f} s, {cpu:.1f} s of CPU; {each}", flush=True)
                assert len(active_runs(server.uri)) == number


if __name__ == "__main__":
    main()
