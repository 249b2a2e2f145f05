"""Training with the copy to MLflow and without it: step times of pairs of jobs, and the CPU time of the copying thread.

    python -m benchmarks.mlflow_copy [MINUTES STEPS]

The job is the tiny recipe on all cores, a process of its own that reports every 5 steps. With the copy it writes to
the SQLite store that runs have by default; a server would do that work elsewhere. Pairs in alternating order start
until the minutes have passed. A step time is the median of the reports after the first three. The thread is measured
in this process, by its own CPU clock, with two reports a second.

Expected before the first run, on 2 cores that other work also uses: importing MLflow takes 2 s of CPU once. After that
a copy takes 20 ms every 5 s, which is 0.4% of a core and 0.2% of both. So the median step stays the same, with ratios
of single pairs between 0.9 and 1.1 because of the other work, and the job takes 2 to 4 s more of CPU in total.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from mlflow.tracking import MlflowClient

from benchmarks.machine import describe, spread
from train_jobs.artifacts.tracking.mlflow_store import prepare
from train_jobs.engine.reporting.metrics import MetricsLog
from train_jobs.tools.mirror import FILE_VARIABLE, MirrorThread

LOG_EVERY, WARM_UP, SEQUENCES = 5, 3, 64
SETS = ("validation.every=100000", "checkpoint.every=100000", f"train.log_every={LOG_EVERY}")
FIRST_SECONDS, COPY_SECONDS = 10, 40  # before the measurement, with the first copy; of the measurement


@dataclass(frozen=True)
class Trained:
    """Times of one job."""

    step: float
    """Median of a step, in seconds."""
    cpu: float
    """CPU seconds of the process."""
    copied: int
    """Reports in MLflow."""


def tracked_run(folder: Path) -> Path:
    """Create a store and a run in it; return the file that names both, for the variable of the job."""
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    prepare(folder / "mlflow.db")
    run_id = MlflowClient(tracking_uri=uri).create_run("0").info.run_id
    file = folder / "tracking.json"
    file.write_text(json.dumps({"tracking_uri": uri, "run_id": run_id}))
    return file


def copied_steps(file: Path) -> int:
    """Return the number of reports of the loss in MLflow."""
    found = json.loads(file.read_text())
    return len(MlflowClient(tracking_uri=found["tracking_uri"]).get_metric_history(found["run_id"], "train_loss"))


def train(folder: Path, stores: Path, steps: int, *, copy: bool) -> Trained:
    """Train once."""
    folder.mkdir()
    sets = [word for text in (*SETS, f"train.steps={steps}") for word in ("--set", text)]
    output = folder / "output"
    command = [sys.executable, "-m", "train_jobs.pretrain", "--config", "tiny", "--device", "cpu", *sets]
    environ = {key: value for key, value in os.environ.items() if key != FILE_VARIABLE}
    environ |= {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), "OMP_WAIT_POLICY": "PASSIVE"}
    tracking = tracked_run(folder) if copy else None
    environ |= {FILE_VARIABLE: str(tracking)} if tracking else {}
    with (folder / "log").open("wb") as log:
        words = [*command, "--output", str(output), "--cache", str(stores)]
        process = subprocess.Popen(words, env=environ, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, (folder / "log").read_text()
    reports = [json.loads(line)["metrics"] for line in (output / "metrics.jsonl").read_text().splitlines()]
    seconds = [SEQUENCES / report["sequences_per_second"] for report in reports if "sequences_per_second" in report]
    copied = copied_steps(tracking) if tracking else 0
    assert copied in (0, len(seconds)), f"{copied} of {len(seconds)} reports were copied"
    return Trained(statistics.median(seconds[WARM_UP:]), usage.ru_utime + usage.ru_stime, copied)


def thread_share(folder: Path) -> float:
    """Return the share of a core that the copying thread takes after its first copy."""
    folder.mkdir()
    os.environ[FILE_VARIABLE] = str(tracked_run(folder))
    mirror, log = MirrorThread(folder / "metrics.jsonl"), MetricsLog(folder / "metrics.jsonl")
    log.open(from_step=0)
    mirror.start()
    clock = time.pthread_getcpuclockid(mirror._thread.ident or 0)
    spent = begun = 0.0
    for step in range((FIRST_SECONDS + COPY_SECONDS) * 2):
        if step == FIRST_SECONDS * 2:
            spent, begun = time.clock_gettime(clock), time.monotonic()
        log.report(step, dict.fromkeys(("train_loss", "learning_rate", "gradient_norm", "sequences_per_second"), 0.5))
        time.sleep(0.5)
    share = (time.clock_gettime(clock) - spent) / (time.monotonic() - begun)
    log.close()
    mirror.close()
    del os.environ[FILE_VARIABLE]
    return share


def main() -> None:
    """Print each pair, and the medians."""
    minutes, steps = (int(word) for word in (sys.argv[1:] or ["12", "100"]))
    until = time.monotonic() + 60 * minutes
    print(f"{describe('torch', 'mlflow')}, load {os.getloadavg()[0]:.1f}\n", flush=True)
    ratios, extra = [], []
    with tempfile.TemporaryDirectory() as place:
        root, stores = Path(place), Path(place, "stores")
        print(f"copying thread: {thread_share(root / 'thread'):.2%} of a core\n", flush=True)
        train(root / "unmeasured", stores, steps, copy=True)  # prepares the token store
        print("| pair | step without copy, ms | with copy, ms | ratio | CPU without, s | CPU with, s |", flush=True)
        print("|---|---|---|---|---|---|", flush=True)
        while time.monotonic() < until:
            pair = len(ratios)
            order = (False, True) if pair % 2 else (True, False)
            done = {copy: train(root / f"{pair}-{copy}", stores, steps, copy=copy) for copy in order}
            off, on = done[False], done[True]
            ratios.append(on.step / off.step)
            extra.append(on.cpu - off.cpu)
            cells = (f"{off.step * 1000:.1f}", f"{on.step * 1000:.1f}", f"{ratios[-1]:.3f}", f"{off.cpu:.1f}")
            print(f"| {pair + 1} | {' | '.join(cells)} | {on.cpu:.1f} |", flush=True)
    print(f"\nstep with / without: {spread(ratios, digits=3)}; CPU of the whole job: {spread(extra)} s more with it")


if __name__ == "__main__":
    main()
