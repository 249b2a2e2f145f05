"""Overhead of `orchestrator submit` compared with starting the same torchrun manually.

python -m benchmarks.submit_overhead [PAIRS]

The same job (the tiny recipe, 100 steps, its token store prepared) in turn: torchrun in a shell, and submitted to the
local backend, followed. Timing: until the job's first report, and until the command has returned.

Expected before measuring: to the first report, half a second (the command's own start, the run's folder, the
supervisor's start), as MLflow opens while the launcher starts; to the end, as much again (a poll of the supervisor, one
of the command, the last word to MLflow, which the job itself has imported by then if it ran for more than 5 s).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import describe, spread

BIN = Path(sys.executable).parent
STEPS = 100
SETS = (f"train.steps={STEPS}", "train.log_every=5")


@dataclass(frozen=True)
class Timing:
    """Seconds from the start of the command."""

    first_report: float
    returned: float


def torchrun_directly(folder: Path, stores: Path) -> Timing:
    """Run torchrun directly."""
    words = [str(word) for text in SETS for word in ("--set", text)]
    command = [
        *(str(BIN / "torchrun"), "--nproc-per-node", "1", "--master-port", "0", "-m", "train_jobs.pretrain"),
        *("--config", "tiny", "--output", str(folder), "--cache", str(stores), "--device", "cpu", *words),
    ]
    # As the orchestrator sets them, or the comparison would measure threads.
    threads = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), "OMP_WAIT_POLICY": "PASSIVE"}
    return _time(command, folder / "metrics.jsonl", threads)


def submitted(home: Path, number: int) -> Timing:
    """Run the same job through the orchestrator."""
    words = [word for text in SETS for word in ("--set", text)]
    name = f"pair-{number}"
    before = set((home / "runs").glob("*")) if (home / "runs").is_dir() else set()
    command = [str(BIN / "orchestrator"), "submit", "pretrain", "--new", "-n", name, *words]
    return _time(command, home / "runs", {"ORCHESTRATOR_HOME": str(home)}, before)


def _time(command: list[str], place: Path, more: Mapping[str, str], before: set[Path] | None = None) -> Timing:
    """Run a command and time it; `place` is the metrics file, or the folder of new runs."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env={**os.environ, **more}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    first = 0.0
    while process.poll() is None and not first:
        files = [place] if before is None else [run / "outputs/metrics.jsonl" for run in set(place.glob("*")) - before]
        if any(file.exists() and file.stat().st_size for file in files):
            first = time.perf_counter() - started
        # A short interval: it is the resolution of the measurement.
        time.sleep(0.005)
    _, err = process.communicate()
    assert process.returncode == 0, err
    return Timing(first, time.perf_counter() - started)


def main() -> None:
    """Print a table of seconds."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    hand: list[Timing] = []
    ours: list[Timing] = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        submitted(home, 0)  # prepares the token store, makes the MLflow store
        for number in range(1, pairs + 1):  # in turn, so that a slow moment of the machine affects both equally
            hand.append(torchrun_directly(Path(folder) / f"hand-{number}", home / "token-stores"))
            ours.append(submitted(home, number))
    print(f"{describe('torch', 'mlflow')}; seconds, median (min-max) of {pairs} pairs\n")
    print("| until | torchrun by hand | orchestrator submit | median of the differences |")
    print("| --- | --- | --- | --- |")
    for label, field in (("first report", "first_report"), ("command returned", "returned")):
        one, other = ([getattr(taken, field) for taken in runs] for runs in (hand, ours))
        differences = [b - a for a, b in zip(one, other, strict=True)]
        print(f"| {label} | {spread(one)} | {spread(other)} | {statistics.median(differences):.2f} |")


if __name__ == "__main__":
    main()
