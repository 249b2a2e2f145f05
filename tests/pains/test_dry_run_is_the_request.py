"""Pain 2: a dry run that is missing or differs from the submission."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.base import Submission
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.cli.main import main
from orchestrator.client import Orchestrator
from orchestrator.jobs import base
from orchestrator.runs.status import RunState
from tests.conftest import Console, block_mlflow, write_spec
from tests.run_folders import make_run


def test_submit_sends_request_of_dry_run(console: Console, untracked: None, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 2000})
    words = ("pretrain", "-f", "job.yaml", "--processes", "2", "--env", "FLAVOUR=vanilla", "--max-restarts", "1")
    shown = console("submit", *words, "--dry-run", "-o", "json").json
    assert console("plan", *words, "-o", "json").json == shown
    assert not (console.home / "runs").exists()
    again = console("submit", *words, "--new", "--dryrun", "-o", "json").json
    assert again["request"] == shown["request"]  # no other run exists yet
    name = console("submit", *words, "-d", "-o", "json").json["name"]
    assert json.loads((console.folder(name) / "request.json").read_text()) == shown["request"]
    assert json.loads((console.folder(name) / "plan.json").read_text()) == shown["plan"]
    second = console("submit", *words, "--new", "--dry-run", "-o", "json").json
    assert second["request"]["name"] == f"{name}-2"
    assert console("cancel", name, "-o", "json").json[0]["state"] == "cancelled"


@pytest.mark.long
def test_submit_builds_plan_and_submission_once(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block_mlflow(tmp_path / "home")
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 2})
    built: dict[str, list[object]] = {"plan": [], "submission": [], "snapshot": []}
    for what, owner, name in (
        ("plan", Orchestrator, "plan_phases"),
        ("submission", LocalBackend, "prepare"),
        ("snapshot", base, "take_snapshot"),
    ):
        monkeypatch.setattr(owner, name, _counted(getattr(owner, name), built[what]))
    words = ["pretrain", "-f", "job.yaml"]
    assert main(["submit", *words, "--dry-run", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {what: len(made) for what, made in built.items()} == {"plan": 1, "submission": 1, "snapshot": 1}
    assert main(["submit", *words, "-o", "json"]) == 0
    assert {what: len(made) for what, made in built.items()} == {"plan": 2, "submission": 2, "snapshot": 2}
    (run,) = (tmp_path / "home" / "runs").glob("[!.]*")
    assert json.loads((run / "plan.json").read_text()) == shown["plan"]
    assert json.loads((run / "request.json").read_text()) == shown["request"]
    sent = built["submission"][1]
    assert isinstance(sent, Submission)
    assert sent.as_dict() == shown
    assert {name: (run / name).read_text() for name in sent.documents} == dict(sent.documents)


def _counted(function: Callable[..., Any], made: list[object]) -> Callable[..., Any]:
    """Return the function wrapped to append its results to a list."""

    def counted(*words: Any, **more: Any) -> Any:
        made.append(function(*words, **more))
        return made[-1]

    return counted


def test_dry_run_is_printed_to_stdout(console: Console) -> None:
    done = console("submit", "pretrain", "--dry-run")
    name = console("validate", "pretrain").out.strip().removeprefix("valid: ")
    assert done.out.splitlines()[0] == name
    assert f"  name: {name}" in done.out.splitlines()
    assert done.err == ""


@pytest.mark.parametrize("rule", [("--keep-last", "1"), ("--older-than", "1d"), ("--state", "failed")])
def test_prune_deletes_what_its_dry_run_listed(console: Console, rule: tuple[str, str]) -> None:
    now = time.time()
    for age, state in enumerate([RunState.COMPLETED, RunState.FAILED, RunState.COMPLETED, RunState.FAILED]):
        make_run(console.home, f"run-{age}", state, age=age, ended=now - age * 86400 - 60)
    shown = console("prune", *rule, "--dry-run", "-o", "json").json
    assert len(list((console.home / "runs").iterdir())) == 4
    done = console("prune", *rule, "--yes", "-o", "json").json
    assert done["deleted"] == shown["runs"] != []
    left = {path.name for path in (console.home / "runs").iterdir()}
    assert left == {f"run-{age}" for age in range(4)} - {item["name"] for item in shown["runs"]}
