"""Overhead of the sweep driver compared with a plain loop over the same commands.

    python -m benchmarks.sweep_overhead [ROUNDS]

Trials that do next to nothing (benchmarks/sweep_trial.py, a Python without site-packages), 2 at a time: of the driver
in turn with a loop that starts the very same command lines in folders that lie ready. The driver plans each trial,
makes its folder with the code in it, keeps the study, reads the reports, and notices the end. Then a sweep of
1,000 trials: what the driver's memory grows by, and what `orchestrator sweep show` takes, the whole process.

With the arguments of orchestrator.sweeps.driver.driver, it is that driver with one more backend.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.machine import describe, spread
from orchestrator import backends
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.sweeps.design.sweep_plan import SpecContext, resolve_sweep
from orchestrator.sweeps.driver import driver
from orchestrator.sweeps.driver.control import make_sweep, start_driver
from orchestrator.sweeps.driver.planning import plan_sweep
from orchestrator.sweeps.driver.sweep_folder import SweepFolder

TRIALS, MANY, SLOTS = 200, 1000, 2
MARKS = (100, 250, 500, 1000)  # trials at which memory is looked at
LOOKS = 5  # at `sweep show`
HERE = Path(__file__).resolve()


def command(folder: Path) -> list[str]:
    """Return the command line of a trial."""
    return [sys.executable, "-S", str(HERE.with_name("sweep_trial.py")), str(folder)]


class TrivialBackend(LocalBackend):
    """Backend with runs in HOME/runs, like local's, whose job is sweep_trial.py, its own supervisor."""

    name = "trivial"

    def _supervise(self, run: RunFolder) -> None:
        process = subprocess.Popen(command(run.path), stdin=subprocess.DEVNULL, start_new_session=True)
        process.returncode = 0  # ours no longer: it is watched by its lock, not by its parent


backends._BUILT_IN["trivial"] = f"benchmarks.{HERE.stem}:TrivialBackend"


def make(home: Path, name: str, trials: int) -> SweepFolder:
    """Create a sweep without a driver."""
    text, file = home / "notes.txt", home / f"{name}.yaml"
    text.write_text("Some text.\n")
    trial = {"backend": "trivial", "recipe": "tiny", "data": {"text": [str(text)]}}
    space = {"optimizer.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}}
    limits = {"trials": trials, "concurrent": SLOTS}
    bandit = {"policy": "bandit", "slack_factor": 0.2, "delay": 3}
    document = {"name": name, "trial": trial, "space": space, "limits": limits, "early_termination": bandit}
    file.write_text(yaml.safe_dump(document))
    sweep = resolve_sweep(file=file, context=SpecContext(environ={"CUDA_VISIBLE_DEVICES": ""}))
    return make_sweep(plan_sweep(sweep, home)[0], home)


@dataclass(frozen=True)
class DriverCost:
    """Cost of a driver."""

    cpu: float
    """Seconds of its own, from its first trial on, without those of the trials."""
    memory: dict[int, float]
    """Trials that had begun -> MB that it had then."""


def run_driver(folder: SweepFolder, home: Path) -> DriverCost:
    """Run the driver of a sweep to its end."""
    start_driver(folder, home, ("-m", f"benchmarks.{HERE.stem}"))
    pid, memory, used = folder.stored_state().pid, {}, []
    while not folder.state().state.terminal:
        begun = sum(1 for _ in (home / "runs").glob(f"{folder.name}-t*"))
        for mark in MARKS:
            if begun >= mark and mark not in memory:
                memory[mark] = resident(pid)
        if begun:
            used.append(processor(pid))
        time.sleep(0.2)
    assert folder.state().state == "completed", (folder.path / "driver.log").read_text()
    return DriverCost(max(used, default=0.0) - min(used, default=0.0), memory)


def resident(pid: int | None) -> float:
    """Return the resident MB of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def processor(pid: int | None) -> float:
    """Return the processor seconds of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def span(folder: SweepFolder) -> float:
    """Return the seconds from the start of the first trial to the end of the last."""
    trials = [trial.user_attrs for trial in folder.study().trials]
    return float(
        max(attributes["end"]["ended"] for attributes in trials) - min(attributes["started"] for attributes in trials)
    )


def plain_loop(source: list[Path], to: Path) -> float:
    """Return the seconds of a plain loop over prepared copies of run folders."""
    folders = []
    for run in source:
        copy = to / run.name
        (copy / "outputs").mkdir(parents=True)
        for name in ("config.json", "state.json"):
            shutil.copy(run / name, copy)
        folders.append(copy)
    waiting, running = folders[::-1], []
    started = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < SLOTS:
            running.append(subprocess.Popen(command(waiting.pop()), stdin=subprocess.DEVNULL, start_new_session=True))
        # Waits without reaping: `poll` below must still find the exit code.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # whichever ends first
        running = [process for process in running if process.poll() is None]
    return time.perf_counter() - started


def time_sweep_show(home: Path, name: str) -> tuple[float, float, float]:
    """Return wall-clock seconds, processor seconds and peak MB of `orchestrator sweep show`."""
    started = time.perf_counter()
    with subprocess.Popen(
        [str(Path(sys.executable).parent / "orchestrator"), "sweep", "show", name],
        env={**os.environ, "ORCHESTRATOR_HOME": str(home)},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert len(lines) > 2
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def main() -> None:
    """Print tables."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    wholes, spans, loops, cpus = [], [], [], []
    print(f"{describe('optuna', 'mlflow')}\n", flush=True)
    with tempfile.TemporaryDirectory() as place:
        home = Path(place) / "home"
        home.mkdir()
        run_driver(make(home, "first", 2), home)  # creates the MLflow store, which must not count for the first round
        for number in range(rounds):  # in turn, so that a slow moment of the machine affects both equally
            folder = make(home, f"round-{number}", TRIALS)
            started = time.perf_counter()
            cpus.append(1000 * run_driver(folder, home).cpu / TRIALS)
            wholes.append(time.perf_counter() - started)
            spans.append(span(folder))
            runs = sorted((home / "runs").glob(f"{folder.name}-t*"))
            loops.append(plain_loop(runs, Path(place) / f"loop-{number}"))
            figures = {"sweep": wholes[-1], "of it from the first trial to the last": spans[-1], "loop": loops[-1]}
            figures |= {"processor time of the driver a trial, ms": cpus[-1]}
            print(json.dumps({what: round(seconds, 2) for what, seconds in figures.items()}), flush=True)
        costs = [1000 * (one - loop) / TRIALS for one, loop in zip(spans, loops, strict=True)]
        whole = [1000 * (one - loop) / TRIALS for one, loop in zip(wholes, loops, strict=True)]
        print(f"\n| {TRIALS} trials, {SLOTS} at a time | median (min-max) of {rounds} |\n| --- | --- |")
        print(f"| the loop, s | {spread(loops)} |")
        print(f"| the sweep, first trial to last, s | {spread(spans)} |")
        print(f"| the driver's cost a trial, ms | {spread(costs)} |")
        print(f"| its processor time a trial, ms | {spread(cpus)} |")
        print(f"| with its start, MLflow and its end, a trial, ms | {spread(whole)} |")
        folder = make(home, "many", MANY)
        memory = run_driver(folder, home).memory
        looks = [time_sweep_show(home, folder.name) for _ in range(LOOKS)]
        print(f"\n{MANY} trials: {span(folder):.0f} s")
        print("driver's memory, MB, by number of trials:", ", ".join(f"{n}: {mb:.0f}" for n, mb in memory.items()))
        few = [time_sweep_show(home, next((home / "sweeps").glob("first-*")).name) for _ in range(LOOKS)]
        for label, found in ((f"{MANY} trials", looks), ("2 trials", few)):
            seconds, cpu, peak = ([look[place] for look in found] for place in range(3))
            print(
                f"sweep show, {label}: {spread(seconds, digits=2)} s, of processor time {spread(cpu, digits=2)} s,"
                f" peak {statistics.median(peak):.0f} MB"
            )


if __name__ == "__main__":
    sys.exit(driver.main() if len(sys.argv) == 4 else main())
