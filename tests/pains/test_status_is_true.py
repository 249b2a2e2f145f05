"""Pain 13: a false status. Here the state of a run comes from the exit codes of all its ranks."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest

from orchestrator.runs.status import RunState
from tests.conftest import Console, wait_for
from tests.run_folders import make_run, run_script
from train_jobs.artifacts.host import boot_id


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "code", "ranks", "reason"),
    [
        # the first rank succeeds long before the other fails
        ("[ $RANK = 0 ] || { sleep 1; exit 3; }", 3, {"0": 0, "1": 3}, "rank 1 ended with exit code 3"),
        ("[ $RANK = 1 ] && sleep 60; sh -c 'kill -9 $PPID'", 137, {"0": 137}, "rank 0 was killed by signal SIGKILL"),
    ],
    ids=["one fails", "one is killed"],
)
def test_one_failed_rank_of_two_fails_run(
    console: Console, untracked: None, script: str, code: int, ranks: dict[str, int], reason: str
) -> None:
    name = run_script(console.home, script)
    waited = console("wait", name, "-o", "json", "--timeout", "2m")
    status = waited.json
    assert (status["state"], status["exit_code"]) == ("failed", code)
    assert waited.code == code  # the exit code of the command is that of the job
    assert {rank: status["ranks"].get(rank) for rank in ranks} == ranks
    assert status["reason"].startswith(reason)
    shown = console("status", name)
    assert shown.code == 0  # the command itself succeeded
    assert "  state      failed\n" in shown.out


@pytest.mark.parametrize("state", ["queued", "starting", "running"])
def test_run_without_supervisor_is_failed(console: Console, state: str) -> None:
    """The supervisor was killed or the machine restarted, so no process recorded the end."""
    make_run(console.home, "lost", RunState(state), age=3600)
    status = console("status", "lost", "-o", "json").json
    assert status["state"] == "failed"
    assert status["reason"].startswith("supervisor lost")
    assert [run["state"] for run in console("list", "-o", "json").json] == ["failed"]


def test_damaged_run_is_reported_and_hides_no_other(console: Console, tmp_path: Path) -> None:
    make_run(console.home, "good", age=5)
    (make_run(console.home, "bad").path / "state.json").write_text("{")
    found = {run["name"]: run for run in console("list", "-o", "json").json}
    assert (found["good"]["state"], found["bad"]["state"]) == ("completed", "failed")
    assert "damaged" in found["bad"]["reason"]


@pytest.mark.parametrize(
    ("boot", "cause", "reason"),
    [
        (None, "supervisor", "supervisor lost: its process was killed"),
        ("an earlier boot", "machine", "supervisor lost: the machine restarted"),
    ],
    ids=["supervisor", "machine"],
)
def test_lost_supervisor_is_no_lost_machine(console: Console, boot: str | None, cause: str, reason: str) -> None:
    attempts = [{"started": 100.0}]
    make_run(console.home, "lost", RunState.RUNNING, age=3600, attempts=attempts, boot_id=boot or boot_id())
    (attempt,) = console("status", "lost", "-o", "json").json["attempts"]
    assert (attempt["state"], attempt["cause"]) == ("failed", cause)
    shown = console("status", "lost").out
    assert f"reason     {reason}" in shown
    assert ("a machine of the run was lost or restarted" in shown) == (cause == "machine")


@pytest.mark.long
def test_running_attempt_has_no_reason_of_the_one_before(console: Console, untracked: None) -> None:
    script = '[ -e "$ORCHESTRATOR_RUN/again" ] || { touch "$ORCHESTRATOR_RUN/again"; exit 3; }\n'
    script += 'while [ ! -e "$ORCHESTRATOR_RUN/end" ]; do sleep 0.1; done'
    name = run_script(console.home, script, **{"compute.processes_per_node": 1, "max_restarts": 1})
    second = wait_for(
        lambda: (found := console("status", name, "-o", "json").json)["attempt"] == 2 and found, what="a restart"
    )
    assert (second["state"], second["reason"], second["ranks"]) == ("running", None, {})
    assert second["attempts"][0]["reason"].startswith("rank 0 ended with exit code 3")
    shown = console("status", name).out
    assert "\n  reason " not in shown
    assert "1: failed" in shown
    (console.folder(name) / "end").touch()
    assert console("wait", name, "--timeout", "2m").code == 0


@pytest.mark.long
def test_warning_of_a_running_job_is_the_newest_truth(console: Console, untracked: None) -> None:
    """A rank that recovers is no longer slow, and does not hide a later problem of the loss."""
    name = run_script(console.home, 'while [ ! -e "$ORCHESTRATOR_RUN/end" ]; do sleep 0.1; done')
    metrics = console.folder(name) / "outputs" / "metrics.jsonl"
    wait_for(lambda: console("status", name, "-o", "json").json["state"] == "running", what="the job")
    begun = time.time()

    def report(moment: float, ratio: float, loss: float) -> None:
        moment += begun
        values = {"train_loss": loss, "slowest_rank": 1.0, "slowest_rank_ratio": ratio}
        with metrics.open("a") as stream:
            stream.write(json.dumps({"step": int(moment - begun), "time": moment, "metrics": values}) + "\n")

    def named(text: str) -> tuple[bool, bool]:
        return "rank 1 is slow" in text, "the loss of step 250 is inf" in text

    def shows(*, slow: bool, diverging: bool = False) -> None:
        wait_for(
            lambda: named(str(console("status", name, "-o", "json").json["warning"])) == (slow, diverging),
            what=f"slow: {slow}, diverging: {diverging}",
        )
        assert named(Path(console("report", name).out.splitlines()[0]).read_text()) == (slow, diverging)

    report(100, 4.0, 5.0)
    report(160, 4.0, 5.0)
    shows(slow=True)
    report(170, 1.0, 5.0)
    shows(slow=False)
    report(180, 4.0, 5.0)
    report(240, 4.0, 5.0)
    shows(slow=True)
    report(250, 4.0, math.inf)
    shows(slow=True, diverging=True)
    report(260, 1.0, 5.0)
    shows(slow=False)
    (console.folder(name) / "end").touch()
    assert console("wait", name, "--timeout", "2m").code == 0
