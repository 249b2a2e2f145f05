"""Commands that meet: equal submissions at one moment, and a resume while the webhook of the run hangs."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from orchestrator.client import Orchestrator
from tests.conftest import Console, write_spec
from tests.run_folders import run_script

pytestmark = pytest.mark.usefixtures("untracked")


@pytest.mark.long
def test_simultaneous_equal_submits_return_one_run(console: Console, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]})
    started = [console.start("submit", "pretrain", "-f", "job.yaml", "-d", "-o", "json") for _ in range(3)]
    answers = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], [err for _, err in answers]
    (name,) = {json.loads(out)["name"] for out, _ in answers}
    assert [run["name"] for run in console("list", "-o", "json").json] == [name]
    assert console("wait", name).code == 0


def test_simultaneous_new_submits_return_own_runs(tmp_path: Path, corpus: Path) -> None:
    """Both chose the same free name, before either of them created its run."""
    orchestrator = Orchestrator(home=tmp_path / "home", environ={"CUDA_VISIBLE_DEVICES": ""})
    plan = orchestrator.plan(overrides={"data.text": [str(corpus)], "train.steps": 1})
    submissions = [orchestrator.prepare(plan, new=True) for _ in range(3)]
    runs = [orchestrator.submit(submission, new=True) for submission in submissions]
    try:
        assert {one.run for one in submissions} == {plan.name}
        assert [run.name for run in runs] == [plan.name, f"{plan.name}-2", f"{plan.name}-3"]
        assert all(run.created for run in runs)
        assert sorted(path.name for path in (tmp_path / "home" / "runs").iterdir()) == [run.name for run in runs]
        for run in runs:
            request = tmp_path / "home" / "runs" / run.name / "request.json"
            assert json.loads(request.read_text())["name"] == run.name
    finally:
        for run in runs:
            run.cancel()
            run.wait()


@pytest.mark.long
def test_hanging_webhook_does_not_block_resume(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server accepts connections and never answers: a message is given up after half a minute."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("ORCHESTRATOR_WEBHOOK", f"http://127.0.0.1:{server.getsockname()[1]}")
        name = run_script(console.home, "exit 3", **{"notify.on": ["failed"], "notify.allow_private": True})
        assert console("wait", name).code == 3
        ended = time.monotonic()
        resumed = console("resume", name, "-d")
        assert resumed.code == 0, resumed.err
        assert time.monotonic() - ended < 20
        assert console("wait", name).code == 3
