"""The command report for a run, several runs and a sweep, running or failed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from orchestrator.jobs.resolve import make_plan, resolve_spec
from orchestrator.runs.status import RunState
from orchestrator.specs.resolved import Flag
from orchestrator.sweeps.design.sweep_record import SweepState
from tests.conftest import SMALL_TEXT
from tests.run_folders import live_run, make_run, report
from tests.unit.cli.conftest import Command
from tests.unit.reports.drawings import empty_figures, figures, references
from tests.unit.sweeps.test_sweep_table import add, make


@pytest.fixture
def plan(tmp_path: Path, small_snapshot: None) -> dict[str, Any]:
    (tmp_path / "corpus.txt").write_text(SMALL_TEXT)
    flags = {"recipe": Flag("tiny", "--recipe"), "data.text": Flag([str(tmp_path / "corpus.txt")], "--data")}
    made = make_plan(resolve_spec("pretrain", flags=flags, environ={}), home=tmp_path / "cache")
    document: dict[str, Any] = json.loads(json.dumps(made.as_dict()))
    return document


def report_steps(run: Any, *steps: int) -> None:
    for step in steps:
        report(run, step, at=1000.0 + step, train_mlm_loss=9.0 - step / 10, learning_rate=1e-4 * step)


def test_report_of_running_run_shows_its_progress(home: Path, orchestrator: Command, plan: dict[str, Any]) -> None:
    with live_run(home, "live", plan=plan, started=1000.0) as run:
        first = orchestrator("report", "live", "-o", "json")
        assert first.code == 0, first.err
        page = Path(first.json["report"])
        assert page == run.path / "report.html"
        assert "No metrics yet: the run is running." in page.read_text()
        report_steps(run, 1, 2, 3)
        with run.metrics.open("a") as stream:
            stream.write('{"step": 4, "time"')  # the job has written half a line
        assert orchestrator("report", "live").out == f"{page}\n"
        text = page.read_text()
        assert len(figures(text)["MLM loss (nats per token)"]) == 3
        assert empty_figures(text) == []
        assert "running" in text


def test_report_of_failed_run_has_reason_and_command(home: Path, orchestrator: Command, plan: dict[str, Any]) -> None:
    make_run(home, "bad", RunState.FAILED, plan=plan, reason="error[training]: the loss of step 2 is not finite")
    page = Path(orchestrator("report", "bad", "-o", "json").json["report"]).read_text()
    assert "error[training]: the loss of step 2 is not finite" in page
    assert page.index("orchestrator resume local://bad") < page.index("Validation MLM loss"), "above all figures"


def test_report_of_several_runs_compares_and_draws(home: Path, orchestrator: Command, plan: dict[str, Any]) -> None:
    for name, age in (("one", 9), ("two", 5)):
        report_steps(make_run(home, name, plan=plan, age=age), 1, 2, 3)
    done = orchestrator("report", "one", "two", "--png", "figures")
    assert done.code == 0, done.err
    page, *pictures = done.out.splitlines()
    assert Path(page) == Path.cwd() / "comparison.html"
    links = references(Path(page).read_text())
    assert [(Path(page).parent / unquote(link)).resolve() for link in links] == [
        (home / "runs" / name / "report.html").resolve() for name in ("one", "two")
    ]
    for link, name in zip(links, ("one", "two"), strict=True):
        assert f"<h1>{name}</h1>" in (Path(page).parent / unquote(link)).read_text()
    assert pictures == ["figures/mlm-loss-nats-per-token-training.png", "figures/learning-rate.png"]
    assert all(Path(picture).read_bytes()[:4] == b"\x89PNG" for picture in pictures)
    twice = orchestrator("report", "one", "one")
    assert (twice.code, "cannot compare a run with itself" in twice.err) == (2, True)


@pytest.mark.parametrize(
    "line", [b"\0" * 512, b"[1,2]", b'{"step": "x"}', b"NaN", b'"a"', b"[" * 100_000, b'{"step": 2, "time": 1e999}']
)
def test_report_leaves_out_lines_that_are_no_reports(
    home: Path, orchestrator: Command, plan: dict[str, Any], line: bytes
) -> None:
    run = make_run(home, "one", plan=plan)
    report_steps(run, 1)
    with run.metrics.open("ab") as stream:
        stream.write(line + b"\n")
    report_steps(run, 3)
    done = orchestrator("report", "one")
    assert done.code == 0, done.err
    assert len(figures((run.path / "report.html").read_text())["MLM loss (nats per token)"]) == 2


def test_report_accepts_a_sweep(home: Path, orchestrator: Command, plan: dict[str, Any]) -> None:
    found = make(home)
    for outcome in (3.0, 2.0, 1.0, 4.0, 5.0):
        add(found, [outcome + 1, outcome], "completed", outcome)
    found.folder.write_state(SweepState(state=RunState.COMPLETED))
    make_run(home, "one", plan=plan)
    done = orchestrator("report", found.name, "--to", "page.html", "--png", "figures", "-o", "json")
    assert done.json == {
        "report": "page.html",
        "pictures": ["figures/reports.png", "figures/optimizer.learning_rate.png"],
    }
    assert Path("page.html").read_text() == found.report(Path("other.html")).read_text(), (
        "the page equals that of `sweep report`"
    )
    assert empty_figures(Path("page.html").read_text()) == []
    assert orchestrator("report", found.name[:4], "--to", "again.html").out == "again.html\n"
    missing = orchestrator("report", "nothing")
    assert (missing.code, "unknown run 'nothing'" in missing.err) == (5, True)
    refused = orchestrator("report", found.name, "one")
    assert refused.code == 2
    assert f"orchestrator report {found.name}" in refused.err


def test_report_of_mixed_kinds_is_refused(home: Path, orchestrator: Command, plan: dict[str, Any]) -> None:
    make_run(home, "one", plan=plan)
    make_run(home, "words", plan={**plan, "spec": {**plan["spec"], "kind": "prepare"}})
    for names in (("one", "words"), ("words",)):
        refused = orchestrator("report", *names)
        assert refused.code == 2
        assert refused.err.startswith("error[usage]: ")
    assert list(Path().iterdir()) == []


def test_sweep_page_links_to_pages_of_its_trials(home: Path, orchestrator: Command, plan: dict[str, Any]) -> None:
    """A trial whose run was deleted has no link; the page of an ended one is written once."""
    found = make(home)
    for outcome in (3.0, 2.0, 4.0):
        add(found, [outcome + 1, outcome], "completed", outcome)
    found.folder.write_state(SweepState(state=RunState.COMPLETED))
    for name in ("r0", "r2"):
        report_steps(make_run(home, name, plan=plan), 1, 2, 3)
    done = orchestrator("report", found.name)
    assert done.code == 0, done.err
    page = Path(done.out.strip())
    links = references(page.read_text())
    assert links == ["../../runs/r0/report.html", "../../runs/r2/report.html"]
    shown = [(page.parent / link).read_text() for link in links]
    assert [f"<h1>{name}</h1>" in text for name, text in zip(("r0", "r2"), shown, strict=True)] == [True, True]
    later = time.time() + 600  # the trials of this test end in 90 seconds
    os.utime(page.parent / links[0], (later, later))
    (page.parent / links[1]).write_text("of an earlier moment")
    assert orchestrator("report", found.name).code == 0
    assert (page.parent / links[0]).stat().st_mtime == pytest.approx(later), "it has ended: the page stays"
    assert "<h1>r2</h1>" in (page.parent / links[1]).read_text(), "written before the end of its trial"
    assert references(found.report(Path("shared.html"), trial_pages=False).read_text()) == []


def test_pages_that_cannot_be_written_are_not_linked(home: Path, orchestrator: Command, plan: dict[str, Any]) -> None:
    """A member of a group may not write into the folders of others: a missing page costs the link, not the report."""
    for name, age in (("one", 9), ("two", 5)):
        report_steps(make_run(home, name, plan=plan, age=age), 1, 2, 3)
    (home / "runs" / "one" / "report.html").mkdir()  # also root cannot write a file there
    done = orchestrator("report", "one", "two")
    assert done.code == 0, done.err
    links = references(Path(done.out.strip()).read_text())
    assert [Path(unquote(link)).parent.name for link in links] == ["two"]
