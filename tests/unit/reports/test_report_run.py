"""The document: complete, self-contained and safe, whatever the run came to."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from orchestrator.plan import make_plan
from orchestrator.reports.run import render
from orchestrator.runs import RunState, RunStatus
from orchestrator.specs import Flag, resolve_spec

STARTED = 1763712000.0
HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"
VOID = {"meta"}
RESULT = {
    "steps": 40,
    "sequences": 1280,
    "seconds": 3725.0,
    "validation_loss": 6.0,
    "validation_mlm_loss": 5.4321,
    "validation_mlm_accuracy": 0.2345,
    "validation_nsp_loss": 0.61,
    "validation_nsp_accuracy": 0.6789,
    "validation_unigram_entropy": 6.4321,
    "model": "/runs/demo/outputs/model",
}


class Page(HTMLParser):
    """What a browser would see: tags with attributes, text, and whether every tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += data if self._open and self._open[-1] in {"b", "code", "span", "i"} else f"\n{data}"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("report")
    (folder / "corpus.txt").write_text("One sentence. Another one.\n\nA second document.\n", encoding="utf-8")
    resolved = resolve_spec(
        "pretrain",
        sets=["train.steps=40", "train.global_batch_size=32", "train.micro_batch_size=8", "train.precision=bf16"],
        flags={
            "recipe": Flag("small", "--recipe"),
            "data.text": Flag([str(folder / "corpus.txt")], "--data"),
            "environment.variables": Flag({"HUB_TOKEN": "hush-hush"}, "--env"),
        },
    )
    document: dict[str, Any] = json.loads(json.dumps(make_plan(resolved, home=folder).as_dict()))
    return document


def test_a_model_that_training_started_from_is_named(plan: dict[str, Any]) -> None:
    assert "Starts from" not in Page(render(_status(), [], plan, RESULT)).text
    page = Page(render(_status(), [], {**plan, "parent": {"name": HOSTILE, "hash": "0123abcd"}}, RESULT))
    assert "Starts from" in page.text
    assert HOSTILE in page.text
    assert "lineage 0123abcd" in page.text


def _status(state: RunState = RunState.COMPLETED, **more: Any) -> RunStatus:
    known = {"name": "demo-12345678", "handle": "local://demo-12345678", "created": STARTED - 5, "run_hash": "12345678"}
    times = {"started": STARTED, "ended": STARTED + 3725} if state.terminal else {"started": STARTED}
    return RunStatus.model_validate({**known, **times, "state": state, **more})


def _reports(steps: int = 40) -> list[dict[str, Any]]:
    train = [
        {
            "step": step,
            "time": STARTED + 2 * step,
            "metrics": {
                "train_loss": 10.5 - step / 10,
                "train_mlm_loss": 9.8 - step / 10,
                "train_mlm_accuracy": step / 200,
                "train_nsp_loss": 0.7,
                "train_nsp_accuracy": 0.5,
                "learning_rate": 1e-4 * step,
                "sequences_per_second": 100.0 + step if step > 1 else 1.0,  # the first steps of a job are slow
            },
        }
        for step in range(1, steps + 1)
    ]
    validation = {
        "step": steps,
        "time": STARTED + 2 * steps + 1,
        "metrics": {
            "validation_loss": 7.1,
            "validation_mlm_loss": 6.5,
            "validation_mlm_accuracy": 0.11,
            "validation_nsp_loss": 0.6,
            "validation_nsp_accuracy": 0.55,
        },
    }
    return [*train, validation]


def test_a_completed_run_has_its_figures_and_every_chart(plan: dict[str, Any]) -> None:
    page = Page(render(_status(), _reports(), plan, RESULT))

    for expected in (
        "demo-12345678",
        "completed",
        "local://demo-12345678",
        "2025-11-21 08:00 UTC",
        "1 h 02 min",
        "/runs/demo/outputs/model",
        "\n5.432\nnats, on held-out text\n1.000 below unigram entropy: it learned from context",
        "Unigram entropy\n6.432",
        "MLM accuracy\n23.4%",
        "NSP accuracy\n67.9%",
        "Sequences/s\n120.5\nmedian",
        "Steps done\n40\nof 40\n1,280 sequences",
    ):
        assert expected in page.text
    drawings = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert [(drawing["aria-label"] or "").split(" over steps")[0] for drawing in drawings] == [
        "MLM loss (nats per token)",
        "MLM accuracy",
        "NSP loss (nats per pair)",
        "NSP accuracy",
        "Learning rate",
        "Throughput (sequences per second)",
    ]
    lines = [(attributes["points"] or "").split() for tag, attributes in page.tags if tag == "polyline"]
    assert [len(points) for points in lines] == [40, 1, 40, 1, 40, 1, 40, 1, 40, 40]
    assert [tag for tag, attributes in page.tags if attributes.get("class") == "reference"] == ["i", "line"]


def test_the_plan_is_told_with_origins_and_without_secrets(plan: dict[str, Any]) -> None:
    html = render(_status(), _reports(), plan, RESULT)
    text = Page(html).text

    for expected in (
        "small (--recipe)",
        "train.steps\n40\n--set",
        "32 = 8 \u00d7 4 \u00d7 1 sequences a step: global = micro \u00d7 accumulation \u00d7 world",
        plan["data"]["sha256"],
        plan["snapshot"]["digest"],
        plan["run_hash"],
        "1 node \u00d7 1 process",
        f"python {plan['environment']['python']}, torch {plan['environment']['torch']}",
        "environment.variables.HUB_TOKEN\nnot shown\n--env",
    ):
        assert expected.replace("\n", "") in text.replace("\n", "")
    assert "hush-hush" not in html


def test_a_micro_batch_that_the_job_finds_is_told_as_such(plan: dict[str, Any]) -> None:
    job = {**plan["job"], "train": {**plan["job"]["train"], "micro_batch_size": "auto"}}
    page = Page(render(_status(), [], {**plan, "job": job, "accumulation_steps": None}, RESULT))
    assert "32 sequences a step on 1 process; micro batch: auto" in page.text


def test_a_loss_that_is_not_below_the_entropy_is_said_to_be_so(plan: dict[str, Any]) -> None:
    text = Page(render(_status(), _reports(), plan, {**RESULT, "validation_mlm_loss": 6.4321})).text
    assert "not below unigram entropy: it only learned word frequencies" in text


def test_the_page_needs_nothing_else(plan: dict[str, Any]) -> None:
    html = render(_status(), _reports(), plan, RESULT)
    assert not {tag for tag, _ in Page(html).tags} & {"script", "link", "img", "iframe", "object", "a"}
    assert not re.search(r"https?:|url\(|@import", html)
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_nothing_that_the_user_named_becomes_markup(plan: dict[str, Any]) -> None:
    status = _status(
        RunState.FAILED, name=HOSTILE, handle=f"local://{HOSTILE}", reason=HOSTILE, tags={HOSTILE: HOSTILE}
    )
    hostile = {
        **plan,
        "changes": {HOSTILE: {"value": HOSTILE, "from": HOSTILE}},
        "data": {**plan["data"], "name": HOSTILE},
        "warnings": [HOSTILE],
        "environment": {HOSTILE: HOSTILE},
    }
    page = Page(render(status, _reports(), hostile, {**RESULT, "model": HOSTILE}))

    assert not {tag for tag, _ in page.tags} & {"script", "img"}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert page.text.count(HOSTILE) >= 10


def test_a_command_with_an_odd_name_is_quoted(plan: dict[str, Any]) -> None:
    text = Page(render(_status(handle="local://a b;rm"), [], plan, {})).text
    assert "orchestrator logs 'local://a b;rm'" in text


@pytest.mark.parametrize(
    ("state", "verbs"),
    [
        (RunState.COMPLETED, ["logs", "status"]),
        (RunState.FAILED, ["resume", "logs", "status"]),
        (RunState.PREEMPTED, ["resume", "logs", "status"]),
        (RunState.RUNNING, ["logs", "status", "cancel"]),
    ],
)
def test_the_commands_are_those_that_make_sense(plan: dict[str, Any], state: RunState, verbs: list[str]) -> None:
    text = Page(render(_status(state), _reports(), plan, {})).text
    assert re.findall(r"orchestrator (\w+) local://demo-12345678", text) == verbs


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (RunState.QUEUED, "No metrics yet: the run is queued."),
        (RunState.RUNNING, "No metrics yet: the run is running."),
        (RunState.FAILED, "No metrics: the run failed before its first report."),
        (RunState.CANCELLED, "No metrics: the run was cancelled before its first report."),
    ],
)
def test_a_run_without_metrics_says_so(plan: dict[str, Any], state: RunState, sentence: str) -> None:
    page = Page(render(_status(state), [], plan, {}))
    assert sentence in page.text
    assert "not validated so far" in page.text
    assert "svg" not in {tag for tag, _ in page.tags}


def test_a_run_that_waits_tells_when_it_was_submitted(plan: dict[str, Any]) -> None:
    text = Page(render(_status(RunState.QUEUED, started=None), [], plan, {})).text
    assert "Submitted\n2025-11-21 07:59 UTC" in text
    assert "Duration" not in text


def test_a_run_that_goes_on_has_what_there_is(plan: dict[str, Any]) -> None:
    page = Page(render(_status(RunState.RUNNING), iter(_reports(30)), plan, {}))
    assert "1 min 01 s so far" in page.text
    assert "6.500\nnats, on held-out text, step 30" in page.text
    assert "known once the run completes" in page.text
    assert "Steps done\n30\nof 40" in page.text
    assert "reference" not in {attributes.get("class") for _, attributes in page.tags}


def test_the_best_checkpoint_is_told_where_there_is_one(plan: dict[str, Any]) -> None:
    best = {"step": 1200, "validation_loss": 5.43219, "folder": "/runs/demo/outputs/checkpoints/step-00001200"}
    assert (
        "Best checkpoint\nstep 1,200, validation loss 5.4322"
        in Page(render(_status(best_checkpoint=best), _reports(), plan, RESULT)).text
    )
    assert "Best checkpoint" not in Page(render(_status(), _reports(), plan, RESULT)).text


def test_a_failed_run_tells_why(plan: dict[str, Any]) -> None:
    reason = "error[training]: the loss is not finite\n  step  7"
    text = Page(render(_status(RunState.FAILED, reason=reason, exit_code=1, attempt=2), _reports(7), plan, {})).text
    assert reason in text
    assert "Exit code\n1" in text
    assert "Started (attempt 2)" in text


def test_values_that_are_not_finite_neither_stop_nor_spoil_the_page(plan: dict[str, Any]) -> None:
    reports = _reports()
    for report in reports[20:30]:
        report["metrics"]["train_mlm_loss"] = math.nan
    reports[35]["metrics"] |= {"sequences_per_second": math.inf, "loss_scale": 1024.0, "skipped_steps": 3.0}

    html = render(_status(), reports, plan, {**RESULT, "validation_mlm_loss": math.nan})
    text = Page(html).text

    assert "Left out: 10 values not finite." in text
    assert "not finite on held-out text" in text
    assert "3 skipped for gradients that were not finite" in text
    assert not re.search(r"\b(nan|inf)\b", html)


def test_without_next_sentence_prediction_there_is_none_of_it(plan: dict[str, Any]) -> None:
    job = {**plan["job"], "objective": {**plan["job"]["objective"], "next_sentence": False}}
    reports = [
        {**report, "metrics": {name: value for name, value in report["metrics"].items() if "nsp" not in name}}
        for report in _reports()
    ]
    result = {name: value for name, value in RESULT.items() if "nsp" not in name}
    text = Page(render(_status(), reports, {**plan, "job": job}, result)).text
    assert "MLM accuracy" in text
    assert "NSP" not in text


def test_the_same_run_gives_the_same_page(plan: dict[str, Any], tmp_path: Path) -> None:
    first = render(_status(), _reports(), plan, RESULT)
    (tmp_path / "report.html").write_text(first, encoding="utf-8")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render(_status(), _reports(), plan, RESULT)
