"""Pain 13: a status that claims what is not so. A run's state comes from the exit codes of all its ranks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.backends.local.backend import LocalBackend
from orchestrator.client import Orchestrator
from orchestrator.runs.status import RunState
from tests.conftest import Console
from tests.run_folders import make_run

NO_GPU = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": ""}


def run_ranks(console: Console, script: str) -> str:
    """A run of two ranks that do nothing but this, under launcher and supervisor as every run; returns its name."""
    orchestrator = Orchestrator(home=console.home, environ=NO_GPU)
    plan = orchestrator.plan(overrides={"compute.processes_per_node": 2, "train.micro_batch_size": 32})
    backend = LocalBackend(console.home)
    submission = backend.prepare(plan, run=plan.name)
    request = submission.request.model_copy(update={"command": ["/bin/sh", "-c", script]})
    documents = {**submission.documents, "request.json": request.model_dump_json()}
    return backend.submit(replace(submission, request=request, documents=documents)).name


@pytest.mark.parametrize(
    ("script", "code", "ranks", "reason"),
    [
        # the first rank ends well long before the other fails
        ("[ $RANK = 0 ] || { sleep 1; exit 3; }", 3, {"0": 0, "1": 3}, "rank 1 ended with exit code 3"),
        ("[ $RANK = 1 ] && sleep 60; sh -c 'kill -9 $PPID'", 137, {"0": 137}, "rank 0 was killed by signal SIGKILL"),
    ],
    ids=["one fails", "one is killed"],
)
def test_one_rank_of_two_is_enough_to_fail(
    console: Console, script: str, code: int, ranks: dict[str, int], reason: str
) -> None:
    name = run_ranks(console, script)
    waited = console("wait", name, "-o", "json", "--timeout", "2m")
    status = waited.json
    assert (status["state"], status["exit_code"]) == ("failed", code)
    assert waited.code == code  # the command's exit code is the job's
    assert {rank: status["ranks"].get(rank) for rank in ranks} == ranks
    assert status["reason"].startswith(reason)
    shown = console("status", name)
    assert shown.code == 0  # it was told, whatever there was to tell
    assert "  state      failed\n" in shown.out


@pytest.mark.parametrize("state", ["queued", "starting", "running"])
def test_a_run_that_nobody_watches_does_not_go_on(console: Console, state: str) -> None:
    """Its supervisor was killed, or the machine restarted: nobody was left to write it down."""
    make_run(console.home, "lost", RunState(state), age=3600)
    status = console("status", "lost", "-o", "json").json
    assert status["state"] == "failed"
    assert status["reason"].startswith("supervisor lost")
    assert [run["state"] for run in console("list", "-o", "json").json] == ["failed"]


def test_a_damaged_run_is_told_and_hides_nobody(console: Console, tmp_path: Path) -> None:
    make_run(console.home, "good", age=5)
    (make_run(console.home, "bad").path / "state.json").write_text("{")
    found = {run["name"]: run for run in console("list", "-o", "json").json}
    assert (found["good"]["state"], found["bad"]["state"]) == ("completed", "failed")
    assert "damaged" in found["bad"]["reason"]
