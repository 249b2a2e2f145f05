"""Commands of the user's own that are stopped or end with the code of a signal: state, reason and exit code."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.conftest import Console, wait_for

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("untracked")]

JOB = """\
import signal
import sys
import time

signal.signal(signal.SIGTERM, lambda *received: sys.exit(int(sys.argv[1])))
print("ready", flush=True)
time.sleep(600)
"""


def stopped_by(console: Console, verb: str, code: int) -> str:
    """Submit a job that ends with an exit code when it is stopped, stop it, and return the name of the run."""
    (console.cwd / "job.py").write_text(JOB)
    words = ("submit", "command", "-d", "-o", "json", "--", "python", "job.py", str(code))
    name: str = console(*words).json["name"]
    log = console.folder(name) / "logs" / "rank-0.log"
    wait_for(lambda: log.exists() and "ready" in log.read_text(), what="the handler of SIGTERM")
    assert console(verb, name).code == 0
    return name


@pytest.mark.parametrize(
    ("verb", "state", "reason"), [("cancel", "cancelled", "cancelled"), ("preempt", "preempted", "stopped by SIGTERM")]
)
def test_graceful_end_after_stop_is_not_completed(console: Console, verb: str, state: str, reason: str) -> None:
    name = stopped_by(console, verb, 0)
    waited = console("wait", name, "-o", "json")
    assert (waited.code, waited.json["state"], waited.json["reason"]) == (75, state, reason)
    assert console("resume", name, "-d").code == 0
    assert console("cancel", name).code == 0


def test_resumed_run_does_not_keep_its_earlier_end(console: Console) -> None:
    name = stopped_by(console, "cancel", 0)
    assert console("wait", name).code == 75
    earlier = console("status", name, "-o", "json").json
    assert earlier["ended"] > earlier["started"]
    assert console("resume", name, "-d").code == 0
    log = console.folder(name) / "logs" / "rank-0.log"
    wait_for(lambda: log.read_text().count("ready") == 2, what="the second attempt")
    status = console("status", name, "-o", "json").json
    assert (status["state"], status["ended"]) == ("running", None)
    os.kill(json.loads((console.folder(name) / "state.json").read_text())["pid"], signal.SIGKILL)
    lost = wait_for(lambda: (found := console("status", name, "-o", "json").json)["ended"] and found, what="the loss")
    assert (lost["state"], lost["attempts"][0]["ended"]) == ("failed", earlier["attempts"][0]["ended"])
    assert lost["ended"] >= lost["started"] > earlier["ended"]
    assert console("cancel", name).code == 0, "ends the job, which outlived its supervisor"


FLAKY = """\
import os
import pathlib

starts = pathlib.Path(os.environ["ORCHESTRATOR_OUTPUTS"], "starts")
done = starts.stat().st_size if starts.exists() else 0
starts.write_text("x" * (done + 1))
if done < 2:
    raise (ConnectionError("no licence"), ValueError("no batch"))[done]
"""


def test_different_exceptions_are_not_the_same_failure(console: Console) -> None:
    (console.cwd / "job.py").write_text(FLAKY)
    words = ("submit", "command", "--max-restarts", "3", "-o", "json", "--", "python", "job.py")
    done = console(*words)
    assert (done.json["state"], done.json["attempt"]) == ("completed", 3)


@pytest.mark.parametrize("verb", ["cancel", "preempt"])
def test_failed_save_after_stop_is_reported(console: Console, verb: str) -> None:
    waited = console("wait", stopped_by(console, verb, 5), "-o", "json")
    assert waited.code == 5
    assert waited.json["state"] in {"cancelled", "preempted"}
    assert "; rank 0 ended with exit code 5; see " in waited.json["reason"]


@pytest.mark.parametrize(
    ("code", "state", "reason"),
    [
        (75, "preempted", "rank 0 ended with exit code 75: preempted; see "),
        (137, "failed", "rank 0 ended with exit code 137 (a shell's code for SIGKILL); see "),
    ],
)
def test_exit_code_is_not_reported_as_signal(console: Console, code: int, state: str, reason: str) -> None:
    (console.cwd / "job.py").write_text(f"raise SystemExit({code})\n")
    done = console("submit", "command", "-o", "json", "--", "python", "job.py")
    assert (done.code, done.json["state"], done.json["ranks"]) == (code, state, {"0": code})
    assert done.json["reason"].startswith(reason)
