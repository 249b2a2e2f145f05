"""The orchestrator under load: thousands of runs, a large sweep, many simultaneous submissions, a log of gigabytes.

    python -m benchmarks.load [list|sweep|submits|log|leftovers[=COUNT] ...]

- list: commands with 5,000 finished runs, each with an hour's worth of reports (200 kB) and a copy of the code; equal
  files are hard links. `list` is measured with and without its index of finished runs.
- sweep: `sweep show` of 1,000 finished trials.
- submits: 50 different jobs submitted simultaneously. Each must be a run of its own, with its own spec.
- log: a log of 5 GB that grows whenever the follower has printed all of it; peak memory of the follower.
- leftovers: 200 jobs, one after the other, with their own home, temporary folder and HOME: what they leave there.

COUNT is another number of runs, trials, jobs or bytes. Processor time is that of the whole process, user and system: on
a busy machine it varies less than wall-clock time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks.machine import describe, spread
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.client import Orchestrator
from orchestrator.runs.status import RunAttempt, RunState
from orchestrator.support.home import SETTLED
from orchestrator.sweeps.design.sweep_plan import SpecContext, resolve_sweep
from orchestrator.sweeps.driver.control import make_sweep
from orchestrator.sweeps.driver.planning import plan_sweep
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from tests.mlflow_runs import wait_for_copy
from tests.run_folders import live_run, run_script

ORCHESTRATOR = str(Path(sys.executable).parent / "orchestrator")
IDLE = "python -c pass"  # its share of a command's time is that of the machine
TIMES = 5  # after a warm-up
REPORTS = 1000
METRICS = dict.fromkeys(("train_loss", "train_mlm_loss", "train_nsp_loss", "learning_rate", "seconds"), 1 / 3)
BLOCK = b"".join(b"step %07d/9999999  loss 9.1234  lr 1.00e-04\n" % number for number in range(9000))


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


def make_trials(home: Path, count: int) -> SweepFolder:
    """Create a completed sweep of one setting, with two reports of each trial.

    Args:
        home: home folder.
        count: number of trials.
    """
    import optuna

    file, text = home / "sweep.yaml", home / "notes.txt"
    text.write_text("\n\n".join(f"Note {number} is about word{number}." for number in range(200)))
    space = {"optimizer.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}}
    trial = {"backend": "local", "recipe": "tiny", "data": {"text": [str(text)]}}
    file.write_text(json.dumps({"name": "many", "trial": trial, "space": space, "limits": {"trials": count}}))
    sweep = resolve_sweep(file=file, context=SpecContext(environ={"CUDA_VISIBLE_DEVICES": ""}))
    folder = make_sweep(plan_sweep(sweep, home)[0], home)
    study = folder.study()
    for number in range(count):
        value = 1 + 1 / (number + 1)
        attributes = {
            "settings": {"optimizer.learning_rate": value / 1000},
            "runs": [f"{folder.name}-t{number:04}"],
            "started": 10.0 * number,
            "end": {"state": "completed", "ended": 10.0 * number + 60, "outcome": value, "cost": 0.0},
        }
        reports = {1: value + 1, 2: value}
        finished = optuna.trial.TrialState.COMPLETE
        study.add_trial(
            optuna.trial.create_trial(
                state=finished, value=value, user_attrs=attributes, intermediate_values=reports, params={}
            )
        )
    folder.write_state(folder.stored_state().model_copy(update={"state": RunState.COMPLETED, "ended": 10.0 * count}))
    return folder


def measure(command: Sequence[str], environ: Mapping[str, str]) -> tuple[float, float]:
    """Return processor and wall-clock seconds of a command.

    Args:
        command: its words.
        environ: its environment, beyond that of this process.
    """
    started = time.perf_counter()
    with subprocess.Popen(
        command, env={**os.environ, **environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0 or "_ARGCOMPLETE" in environ, command
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - started


def compare(commands: Mapping[str, tuple[Sequence[str], Mapping[str, str]]], home: Path) -> None:
    """Print processor and wall-clock milliseconds of commands that run in turn.

    Args:
        commands: label -> command and variables. "without its index": the index is deleted before each time. `list`
            then reads the newest runs, and `list -o json` all others. "without kept rows": likewise of a sweep.
        home: home folder.
    """
    taken: dict[str, list[tuple[float, float]]] = {label: [] for label in commands}
    for _ in range(TIMES + 1):
        for label, (command, variables) in commands.items():
            if label.endswith("without its index"):
                shutil.rmtree(home / "cache", ignore_errors=True)
            if label.endswith("without kept rows"):
                for kept in home.glob("sweeps/*/rows.json"):
                    kept.unlink()
            taken[label].append(measure(command, {"ORCHESTRATOR_HOME": str(home), **variables}))
    print(f"\n| milliseconds, median (min-max) of {TIMES} | processor | wall clock |\n|---|---|---|")
    for label, seconds in taken.items():
        processor, wall = zip(*seconds[1:], strict=True)
        print(f"| `{label}` | {spread(processor, 1e3, 0)} | {spread(wall, 1e3, 0)} |", flush=True)


def measure_list(home: Path, count: int) -> None:
    """Measure commands with many finished runs."""
    name = make_runs(home, count)
    line = f"orchestrator status {name[:4]}"
    completing = {
        "_ARGCOMPLETE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_STDOUT_FILENAME": os.devnull,
    }
    print(f"\n{count} runs")
    compare(
        {
            IDLE: ([sys.executable, "-c", "pass"], {}),
            "orchestrator list, without its index": ([ORCHESTRATOR, "list"], {}),
            "orchestrator list": ([ORCHESTRATOR, "list"], {}),
            "orchestrator list -o json, rest of the index": ([ORCHESTRATOR, "list", "-o", "json"], {}),
            "orchestrator list -o json": ([ORCHESTRATOR, "list", "-o", "json"], {}),
            "orchestrator status RUN": ([ORCHESTRATOR, "status", name], {}),
            "orchestrator prune --older-than 1d --dry-run": (
                [ORCHESTRATOR, "prune", "--older-than", "1d", "--dry-run"],
                {},
            ),
            "completion of a run": ([ORCHESTRATOR], completing),
        },
        home,
    )


def measure_sweep(home: Path, count: int) -> None:
    """Measure the table of a large sweep."""
    folder = make_trials(home, count)
    print(f"\na sweep of {count} trials")
    command = [ORCHESTRATOR, "sweep", "show", folder.name]
    time.sleep(2 * SETTLED)  # rows of a sweep that has just ended are not kept
    labels = ("orchestrator sweep show SWEEP, without kept rows", "orchestrator sweep show SWEEP")
    compare({IDLE: ([sys.executable, "-c", "pass"], {}), **dict.fromkeys(labels, (command, {}))}, home)


def submit_concurrently(home: Path, count: int) -> None:
    """Submit different jobs simultaneously, and check that each is a run of its own and that no other file remains.

    Args:
        home: home folder.
        count: number of jobs.
    """
    environ = {**os.environ, "ORCHESTRATOR_HOME": str(home)}

    def submit(number: int) -> str:
        sets = [f"train.seed={number}", "train.steps=1"]
        words = [ORCHESTRATOR, "submit", "pretrain", "-d", "-o", "json", *(f"--set={one}" for one in sets)]
        done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["name"])

    started = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        names = list(pool.map(submit, range(count)))
    seconds = time.perf_counter() - started
    runs = {path.name: path for path in (home / "runs").iterdir()}
    assert sorted(names) == sorted(runs), "a run for each job, no remaining draft"
    seeds = [json.loads((runs[name] / "config.json").read_text())["train"]["seed"] for name in names]
    assert seeds == list(range(count)), "each with its own spec"
    orchestrator = Orchestrator(home=home, environ={})
    for name in names:
        orchestrator.attach(name).cancel()
    states = {name: orchestrator.attach(name).wait().state for name in names}
    assert all(state in {RunState.CANCELLED, RunState.COMPLETED} for state in states.values()), states
    print(f"\n{count} simultaneous submissions: {len(runs)} runs, {seconds:.0f} s")


def follow_log(home: Path, size: int) -> float:
    """Return the peak memory in MB of a follower that prints a log of `size` bytes while it grows."""
    peak = home / "peak"
    command = [sys.executable, "tests/peak.py", str(peak), "logs", "live", "-f"]
    with ExitStack() as stack:
        run = stack.enter_context(live_run(home, "live"))
        environ = {**os.environ, "ORCHESTRATOR_HOME": str(home), "PYTHONPATH": str(Path.cwd())}
        process = stack.enter_context(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE))
        assert process.stdout is not None
        printed = 0
        while printed < size:  # the file keeps its size, but not its blocks: a log of 5 GB needs no disk of 5 GB
            with run.rank_log(0).open("ab") as stream:
                stream.write(BLOCK * 20)
            printed += len(process.stdout.read(len(BLOCK) * 20))
            subprocess.run(["fallocate", "-p", "-o", "0", "-l", str(printed), str(run.rank_log(0))], check=True)
        run.write_state(run.state().model_copy(update={"state": RunState.COMPLETED}))
        assert process.wait() == 0
    shutil.rmtree(home / "runs" / "live")
    return float(peak.read_text())


def measure_log(home: Path, size: int) -> None:
    """Measure the memory of a follower of a small and of a large log."""
    small, large = follow_log(home, 1), follow_log(home, size)
    print(f"\nlogs -f, peak memory: {small:.1f} MB for one block, {large:.1f} MB for {size / 1e9:.1f} GB")


def find_leftovers(home: Path, count: int) -> list[str]:
    """Run jobs one after the other; return what they leave outside their folders.

    Args:
        home: home folder; temporary folder and HOME are next to it.
        count: number of jobs.
    """
    user, temporary = home.with_name("user"), home.with_name("temporary")
    for folder in (user, temporary):
        folder.mkdir()
    os.environ.update(HOME=str(user), TMPDIR=str(temporary), XDG_CACHE_HOME=str(user / ".cache"))
    tempfile.tempdir = None
    orchestrator, names = Orchestrator(home=home, environ={}), []
    for number in range(count):
        names.append(run_script(home, "exit 0", **{"train.seed": number, "compute.processes_per_node": 1}))
        assert orchestrator.attach(names[-1]).wait().state == RunState.COMPLETED
    for name in names:
        wait_for_copy(RunFolder(home / "runs" / name))  # a separate process copies it to MLflow
    return _left(home, set(names), user, temporary)


def _left(home: Path, names: set[str], user: Path, temporary: Path) -> list[str]:
    expected = {home / "runs", home / "mlflow.db", home / "mlflow.lock", home / "cache", home / "token-stores"}
    expected |= {home / "artifacts"}  # of the MLflow store
    inside = [path for path in home.iterdir() if path not in expected]
    runs = [path for path in (home / "runs").iterdir() if path.name not in names]
    hidden = [path for name in names for path in (home / "runs" / name).rglob(".*.tmp")]
    return sorted(str(path) for path in [*inside, *runs, *hidden, *user.rglob("*"), *temporary.rglob("*")])


def measure_leftovers(home: Path, count: int) -> None:
    """Print what many jobs leave outside their folders."""
    left = find_leftovers(home, count)
    size = sum(path.stat().st_size for path in (home / "runs").rglob("*") if path.is_file())
    each = f"{size / count / 1e6:.1f} MB in the folder of each"
    print(f"\n{count} jobs: {each}; outside these folders {len(left)} files {left[:9]}")


MEASUREMENTS: dict[str, tuple[Callable[[Path, int], None], int]] = {
    "list": (measure_list, 5000),
    "sweep": (measure_sweep, 1000),
    "submits": (submit_concurrently, 50),
    "log": (measure_log, 5 * 1024**3),
    "leftovers": (measure_leftovers, 200),
}


def main() -> None:
    """Make the measurements that the arguments name; all of them without any."""
    print(describe("pydantic", "optuna"), flush=True)
    for word in sys.argv[1:] or MEASUREMENTS:
        name, _, given = word.partition("=")
        function, count = MEASUREMENTS[name]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            home = Path(folder, "home")
            home.mkdir()
            function(home, int(given or count))


if __name__ == "__main__":
    main()
