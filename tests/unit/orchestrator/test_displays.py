"""HTML representations in notebooks: every kind of plan and spec, and a planned sweep."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Protocol

import pytest

from orchestrator.client import Orchestrator
from orchestrator.reports.pages.run_page import run_html
from orchestrator.reports.pages.run_report import report_of
from orchestrator.runs.differences import Side
from orchestrator.runs.status import RunState, RunStatus
from tests.conftest import write_bert, write_corpus

VOID = {"br", "img", "link", "meta"}


class Displayable(Protocol):
    def _repr_html_(self) -> str: ...


class Words(HTMLParser):
    """Text of a page whose elements are closed in the order in which they were opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)


def displayed_text(what: Displayable) -> str:
    return " ".join(Words(what._repr_html_()).words)


@pytest.fixture
def orchestrator(tmp_path: Path, small_snapshot: None, monkeypatch: pytest.MonkeyPatch) -> Orchestrator:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "notes.txt")
    write_bert(tmp_path / "model")
    write_bert(tmp_path / "tuned", architectures=["BertForSequenceClassification"], id2label={"0": "no", "1": "yes"})
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "w1 w2\tyes\nw3\tno\n" * 8)
    return Orchestrator(home=tmp_path / "home", environ={})


TABLES = {"task": "own", "init_from": "model", "data.train": "train.tsv", "data.validation": "dev.tsv"}
JOBS: dict[str, dict[str, Any]] = {
    "prepare": {"data.text": ["notes.txt"]},
    "pretrain": {"data.text": ["notes.txt"]},
    "finetune": {**TABLES, "data.max_length": 32, "train.global_batch_size": 8, "train.micro_batch_size": 8},
    "evaluate": {"model": "tuned", "input": ["dev.tsv"]},
    "predict": {"model": "tuned", "input": ["dev.tsv"]},
}


@pytest.mark.parametrize("kind", JOBS)
def test_plan_and_spec_have_html(orchestrator: Orchestrator, kind: str) -> None:
    more = {
        "name": "mine",
        "tags": {"note": "<b>bold</b>"},
        "environment.variables": {"HF_TOKEN": "s3cr!", "A": "shown"},
    }
    plan = orchestrator.plan(kind, overrides={**JOBS[kind], **more})
    words = displayed_text(plan)
    assert plan.name in words
    assert "snapshot" in words
    assert "<b>bold</b>" in words, "text is escaped"
    spec = displayed_text(plan.spec)
    assert f"{kind} mine" in spec
    assert "A: shown" in spec
    assert "s3cr!" not in words + spec


@pytest.mark.parametrize("kind", ["prepare", "pretrain"])
def test_running_run_shows_its_progress(orchestrator: Orchestrator, kind: str) -> None:
    plan = orchestrator.plan(kind, overrides=JOBS[kind])
    known = {"name": plan.name, "handle": f"local://{plan.name}", "kind": kind, "run_hash": plan.run_hash}

    def page(state: RunState, step: int | None, steps: int | None) -> str:
        status = RunStatus(**known, state=state, created=0.0, attempt=1, step=step, steps=steps)
        return run_html(report_of(Side(status, plan.as_dict(), {}, None)))

    assert 'value="10" max="40"' in page(RunState.RUNNING, 10, 40)
    assert 'value="0" max="40"' in page(RunState.QUEUED, None, 40)
    assert "<progress" not in page(RunState.RUNNING, 10, None), "progress is unknown"
    assert "<progress" not in page(RunState.COMPLETED, 40, 40)


def test_planned_sweep_shows_first_trials(orchestrator: Orchestrator) -> None:
    trial = {"recipe": "tiny", "data.text": "[notes.txt]", "model.hidden_size": 32, "model.num_attention_heads": 2}
    sweep = [
        "space.optimizer.learning_rate={low: 1.0e-4, high: 1.0e-2, log: true}",
        "limits.trials=5",
        "sampling=sobol",
    ]
    planned = orchestrator.sweeps.plan(sets=[*sweep, *(f"trial.{key}={value}" for key, value in trial.items())])
    words = displayed_text(planned)
    assert planned.record.name in words
    assert "5, 1 at a time, on local" in words
    assert words.count("learning_rate=") == 3, "the first trials"
    assert planned.plan.name in words
    assert "optimizer.learning_rate: {low: 0.0001, high: 0.01, log: true}" in displayed_text(planned.record.spec)
