"""Pain 13: a false status. Here the state of a run comes from the exit codes of all its ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.runs.status import RunState
from tests.conftest import Console
from tests.run_folders import make_run, run_script


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
