"""Jobs whose processes end with 0 before they are complete."""

from __future__ import annotations

import pytest

from tests.conftest import Console, write_corpus, write_spec

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("untracked")]

LEAVES = """\
import os


def constant(*, peak, **progress):
    os._exit(0)
"""
ENTRY = "import sys\n\nsys.exit(0)\n"


@pytest.mark.parametrize("processes", [1, 2])
def test_job_that_exits_0_before_its_end_has_failed(console: Console, processes: int) -> None:
    """Torchrun reports success: every process ended with 0."""
    corpus = write_corpus(console.cwd / "corpus.txt")
    (console.cwd / "project").mkdir()
    (console.cwd / "project/leaving.py").write_text(LEAVES)
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, compute={"processes_per_node": processes})
    own = ("--code", "project", "--set", "schedule=leaving:constant")
    done = console("submit", "pretrain", "-f", "job.yaml", *own, "-o", "json")
    assert done.code == 1, done.err
    assert (done.json["state"], done.json["exit_code"]) == ("failed", 1)
    assert "ended with exit code 0, but the job did not write result.json" in done.json["reason"]
    assert set(console("status", done.json["name"], "-o", "json").json["ranks"].values()) <= {0}


def test_entry_of_user_needs_no_result(console: Console) -> None:
    """A module that replaces the job, like a command, decides itself what it writes."""
    corpus = write_corpus(console.cwd / "corpus.txt")
    (console.cwd / "project").mkdir()
    (console.cwd / "project/mine.py").write_text(ENTRY)
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]})
    own = ("--code", "project", "--set", "code.entry=mine")
    assert console("submit", "pretrain", "-f", "job.yaml", *own, "-o", "json").json["state"] == "completed"
    assert console("submit", "command", "-o", "json", "--", "true").json["state"] == "completed"
