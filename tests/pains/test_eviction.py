"""Pain 7: a low-priority node is evicted, the job fails and its output is lost.

Here the checkpoints are kept, the run restarts automatically, and eviction can be simulated locally.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import Console, last_step, rank_pid, wait_for, write_spec

pytestmark = pytest.mark.usefixtures("untracked")


@pytest.mark.long
def test_evicted_or_crashed_run_resumes_automatically(console: Console, corpus: Path) -> None:
    """Two restarts are allowed: a simulated eviction uses one, a killed rank the other."""
    write_spec(
        console.cwd / "job.yaml",
        data={"text": [str(corpus)]},
        train={"steps": 400},
        checkpoint={"every": 50},
        validation={"every": 400},
    )
    done = console("submit", "pretrain", "-f", "job.yaml", "--max-restarts", "2", "-d", "-o", "json")
    name = done.json["name"]
    folder = console.folder(name)
    wait_for(lambda: last_step(folder) >= 6, what="step 6")
    assert console("preempt", name).out == f"local://{name}\n"
    wait_for(lambda: console("status", name, "-o", "json").json["attempt"] == 2, what="the second attempt")
    os.kill(wait_for(lambda: rank_pid(folder, 0), what="its rank"), signal.SIGKILL)
    attached = console("attach", name, "-o", "json")
    assert attached.code == 0, attached.err
    assert attached.json["state"] == "completed"
    attempts = json.loads((folder / "state.json").read_text())["attempts"]
    assert [(attempt["state"], attempt["exit_code"]) for attempt in attempts] == [
        ("preempted", 75),
        ("failed", 137),
        ("completed", 0),
    ]
    assert attached.json["attempt"] == 3
    steps = [attempt["step"] for attempt in attempts]
    assert steps[0] >= 6
    assert steps[2] == 400
    assert (folder / "logs" / "rank-0.log").read_text().count("resumed at step") >= 1
    assert console("preempt", name).code == 1
