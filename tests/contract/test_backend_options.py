"""Options of a backend from another package, set by every source of settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Console

DRY_RUN = ("submit", "pretrain", "-b", "polite", "--dry-run", "-o", "json")


@pytest.fixture
def shell(tmp_path: Path, packages: Path) -> Console:
    return Console(home=tmp_path / "home", cwd=tmp_path)


def planned_load(answer: str) -> object:
    return json.loads(answer)["plan"]["spec"]["polite"]["load"]


def test_option_on_command_line_reaches_plan(shell: Console) -> None:
    done = shell(*DRY_RUN, "--set", "polite.load=4")
    assert (done.code, planned_load(done.out)) == (0, 4.0)
    assert "polite.load" in json.loads(done.out)["plan"]["changes"]


def test_option_in_file_or_variable_reaches_plan(shell: Console) -> None:
    (shell.cwd / "job.yaml").write_text("recipe: tiny\npolite:\n  load: 3\n")
    assert planned_load(shell(*DRY_RUN, "-f", "job.yaml").out) == 3.0
    assert planned_load(shell(*DRY_RUN, "-f", "job.yaml", ORCHESTRATOR_POLITE__LOAD="2").out) == 2.0
    elsewhere = shell("submit", "pretrain", "-b", "local", "--dry-run", "-f", "job.yaml")
    assert "polite.load has no effect: it belongs to the polite backend, the run uses local" in elsewhere.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("recipe: tiny\npolite:\n  laod: 3\n", 'job.yaml:3: polite.laod: unknown key (did you mean "load"?)'),
        ("recipe: tiny\npolit:\n  load: 3\n", 'job.yaml:2: polit: unknown key (did you mean "polite"?)'),
        ("recipe: tiny\npolite:\n  load: -1\n", "job.yaml:3: polite.load: "),
    ],
)
def test_wrong_option_is_refused_with_its_line(shell: Console, text: str, problem: str) -> None:
    (shell.cwd / "job.yaml").write_text(text)
    done = shell(*DRY_RUN, "-f", "job.yaml")
    assert done.code == 2
    assert problem in done.out + done.err


def test_backend_reads_its_option_when_it_submits(shell: Console) -> None:
    done = shell("submit", "pretrain", "-b", "polite", "--set", "polite.load=0.0001")
    assert done.code == 4
    assert "0.0001 (polite.load)" in done.err
