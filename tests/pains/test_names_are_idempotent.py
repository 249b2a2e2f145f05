"""Pain 11: names that change or mean nothing. Ours are a slug and a hash of everything that affects the result."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from orchestrator.runs.status import RunState
from tests.conftest import Console, write_spec
from tests.run_folders import live_run, make_run

pytestmark = pytest.mark.usefixtures("untracked")

SPEC = ("pretrain", "-f", "job.yaml")


def name_of(console: Console, *words: str, **more: str) -> str:
    done = console("validate", *SPEC, *words, "-o", "json", **more)
    assert done.code == 0, done.err
    return str(done.json["name"])


def test_same_job_has_same_name_in_any_form(console: Console, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 40, "seed": 7})
    name = name_of(console)
    assert re.fullmatch(r"micro-[0-9a-f]{8}", name)
    elsewhere = Console(home=console.cwd / "other-home", cwd=console.cwd / "other")
    elsewhere.cwd.mkdir()
    shutil.copy(corpus, elsewhere.cwd / corpus.name)
    write_spec(elsewhere.cwd / "job.yaml", data={"text": [corpus.name]})
    assert name_of(elsewhere, "--set", "train.seed=7", ORCHESTRATOR_TRAIN__STEPS="40") == name
    assert name_of(console, "--tag", "team=nlp", "--set", "compute.price_per_hour=3") == name
    assert name_of(console, "-n", "other") == name.replace("micro-", "other-")


def test_other_job_has_other_name(console: Console, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]})
    names = {name_of(console), name_of(console, "--set", "train.seed=8"), name_of(console, "--env", "A=1")}
    corpus.write_text(corpus.read_text() + "\n\nOne more.\n")
    assert len(names | {name_of(console)}) == 4


@pytest.mark.long
def test_submit_same_job_returns_running_or_completed_run(console: Console, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]})
    name = name_of(console)
    with live_run(console.home, name) as run:
        for _ in range(2):
            again = console("submit", *SPEC, "-d")
            assert (again.code, again.out) == (0, f"local://{name}\n")
            assert "already exists: running" in again.err
    assert run.state().state == RunState.COMPLETED
    completed = console("submit", *SPEC, "-o", "json")
    assert (completed.code, completed.json["name"]) == (0, name)
    assert [path.name for path in (console.home / "runs").iterdir()] == [name]


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED, RunState.PREEMPTED])
def test_submit_same_job_of_unfinished_run_is_refused(console: Console, corpus: Path, state: RunState) -> None:
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]})
    name = name_of(console)
    make_run(console.home, name, state)
    refused = console("submit", *SPEC, "-d")
    assert refused.code == 1
    assert f"orchestrator resume {name}" in refused.err
    assert "--new" in refused.err


def test_new_run_of_same_job_has_next_number(console: Console, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]})
    name = name_of(console)
    for taken in (name, f"{name}-2", f"{name}-4"):
        make_run(console.home, taken)
    assert console("plan", *SPEC, "--new", "-o", "json").json["request"]["name"] == f"{name}-3"
