"""Trivial trial of benchmarks.sweep_overhead: it reports its metric twice and ends.

python -S benchmarks/sweep_trial.py RUN_FOLDER
"""

import fcntl
import json
import os
import sys
import time
from pathlib import Path


def run(folder: Path) -> None:
    """Run the only attempt."""
    state = json.loads((folder / "state.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    attempt = {"started": time.time()}

    def note(name: str, **more: object) -> None:
        state.update(state=name, pid=os.getpid(), attempts=[attempt], **more)
        (folder / "state.tmp").write_text(json.dumps(state))
        (folder / "state.tmp").replace(folder / "state.json")

    note("running", started=attempt["started"])
    with (folder / "outputs" / "metrics.jsonl").open("w") as stream:
        for step in (1, 2):
            value = config["optimizer"]["learning_rate"] + 1 / step
            stream.write(json.dumps({"step": step, "time": time.time(), "metrics": {"validation_loss": value}}) + "\n")
    attempt["ended"] = time.time()
    note("completed", ended=attempt["ended"], exit_code=0)


if __name__ == "__main__":
    # The driver takes a run for alive while this lock is held, as it does with a real supervisor.
    with Path(sys.argv[1], "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(Path(sys.argv[1]))
