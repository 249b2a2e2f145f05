"""A run of milliseconds that reports numbers computed from its settings, like a job, and handles a cancel.

    python -S quick_trial.py RUN_FOLDER

Report k is 1000 x learning_rate + 1 / k + (last digit of the seed) / 1000, one every log_every milliseconds.
With the first report it writes a checkpoint and a model, reduced to the files that tests read.
With validation.max_sequences 13, the first attempt fails before its second report; with 14, the second report is NaN;
with 15, the input is invalid; with 19, each attempt fails before its second report. With 20, the supervisor of the
first three attempts is lost there, with 21 their disk is full. With 22, it reports another metric. With 23, the
supervisor of the first start is lost after it recorded that the attempt completed, before it writes the last state.
With 24, the first report is the best of the sweep and the others are the worst, and it writes no model.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

CRASHES, DIVERGES, WRONG, ALWAYS_CRASHES, LOST, FULL, SILENT, LOST_AT_END, FALLS_BEHIND = (
    13,
    14,
    15,
    19,
    20,
    21,
    22,
    23,
    24,
)
BAD_ATTEMPTS = 3


def run(folder: Path) -> None:
    """Run an attempt."""
    state = json.loads((folder / "state.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    with (folder / "started.log").open("a") as stream:
        stream.write(f"{state['attempt']}\n")

    def note(name: str, **more: Any) -> None:
        state.update(state=name, pid=os.getpid(), attempts=more.pop("attempts", state["attempts"]))
        if "ended" in more:
            state["attempts"][-1] |= {"state": name, "cause": more.pop("cause", None), **more, "step": step}
        state.update(more)
        (folder / "state.tmp").write_text(json.dumps(state))
        (folder / "state.tmp").replace(folder / "state.json")

    step = None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    clock = (boot, time.clock_gettime(time.CLOCK_BOOTTIME), time.time())
    note("running", started=time.time(), clock=clock, attempts=[*state["attempts"], {"started": time.time()}])
    path, odd = folder / "outputs" / "metrics.jsonl", config["validation"]["max_sequences"]
    done = len(path.read_text().splitlines()) if path.exists() else 0
    for report in range(done + 1, config["train"]["steps"] + 1):
        if (folder / "cancel").exists():
            return note("cancelled", ended=time.time(), exit_code=75, reason="cancelled")
        if odd == WRONG:
            return note("failed", ended=time.time(), exit_code=2, reason="wrong as asked")
        if report == 2 and (odd == ALWAYS_CRASHES or (odd == CRASHES and state["attempt"] == 1)):
            return note("failed", ended=time.time(), exit_code=1, reason="crashed as asked")
        if report == 2 and odd == FULL and state["attempt"] <= BAD_ATTEMPTS:
            return note("failed", ended=time.time(), exit_code=1, reason="the disk is full", cause="disk")
        if report == 2 and odd == LOST and state["attempt"] <= BAD_ATTEMPTS:
            os.kill(os.getpid(), signal.SIGKILL)
        value = 1000 * config["optimizer"]["learning_rate"] + 1 / report + config["train"]["seed"] % 10 / 1000
        if odd == FALLS_BEHIND:
            value += -10 if report == 1 else 10
        name = "train_loss" if odd == SILENT else "validation_loss"
        metrics = {name: float("nan") if report == 2 and odd == DIVERGES else value}
        with path.open("a") as stream:
            stream.write(json.dumps({"step": report, "time": time.time(), "metrics": metrics}) + "\n")
        step = report
        for name in ("checkpoints/step-1", *(["model"] if odd != FALLS_BEHIND else [])):
            (folder / "outputs" / name).mkdir(parents=True, exist_ok=True)
            (folder / "outputs" / name / "weights").write_text("some")
        time.sleep(config["train"]["log_every"] / 1000)
    if odd == LOST_AT_END and len((folder / "started.log").read_text().splitlines()) == 1:
        whole = {**state["attempts"][-1], "state": "completed", "ended": time.time(), "exit_code": 0, "step": step}
        note("running", attempts=[*state["attempts"][:-1], whole])
        os.kill(os.getpid(), signal.SIGKILL)
    return note("completed", ended=time.time(), exit_code=0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the sender has also created the cancel file
    with Path(sys.argv[1], "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(Path(sys.argv[1]))
