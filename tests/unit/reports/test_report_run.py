"""The report of a run: complete, self-contained and safe in every state."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from orchestrator.reports.pages.run_report import planned_memory
from orchestrator.runs.status import RunState, RunStatus
from tests.unit.reports.drawings import empty_figures, figures, overflowing_figures, references, render

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
    """Tags with attributes and text of a page; checks that every tag is closed in order."""

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


def test_initial_model_is_named(plan: dict[str, Any]) -> None:
    assert "Starts from" not in Page(render(status_of(), [], plan, RESULT)).text
    page = Page(render(status_of(), [], {**plan, "parent": {"name": HOSTILE, "hash": "0123abcd"}}, RESULT))
    assert "Starts from" in page.text
    assert HOSTILE in page.text
    assert "lineage 0123abcd" in page.text


def status_of(state: RunState = RunState.COMPLETED, **more: Any) -> RunStatus:
    known = {"name": "demo-12345678", "handle": "local://demo-12345678", "created": STARTED - 5, "run_hash": "12345678"}
    times = {"started": STARTED, "ended": STARTED + 3725} if state.terminal else {"started": STARTED}
    return RunStatus.model_validate({**known, **times, "state": state, **more})


def reports_of(steps: int = 40) -> list[dict[str, Any]]:
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
                "sequences_per_second": 100.0 + step if step > 1 else 1.0,  # the first steps are slow
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


def test_completed_run_has_its_figures_and_every_chart(plan: dict[str, Any]) -> None:
    page = Page(render(status_of(), reports_of(), plan, RESULT))

    for expected in (
        "demo-12345678",
        "completed",
        "local://demo-12345678",
        "2025-11-21 08:00 UTC",
        "1 h 02 min",
        "/runs/demo/outputs/model",
        "\n5.432\nnats, on held-out text\n1.0000 below unigram entropy: learned from context",
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
    levels = [tag for tag, attributes in page.tags if attributes.get("class") == "reference"]
    assert levels == ["i", "i", "line", "line"], "a uniform guess, and unigram entropy"


def test_no_figure_is_empty_or_overflows(plan: dict[str, Any]) -> None:
    more = {"mfu": 0.4, "peak_memory_gb": 0.9, "data_wait_share": 0.01, "gradient_norm": 1.5}
    reports = reports_of()
    for report in reports[:-1]:
        report["metrics"] |= {name: value * (1 + report["step"] / 100) for name, value in more.items()}
    page = render(status_of(), reports, plan, RESULT)
    assert len(figures(page)) == 10
    assert empty_figures(page) == []
    assert overflowing_figures(page) == []
    flat = [{**report, "metrics": {"train_mlm_loss": 5.0}} for report in reports_of(1)[:1]]
    assert empty_figures(render(status_of(), flat, plan, {})) == ["MLM loss (nats per token)"], "the check detects it"


def test_utilisation_memory_waiting_drawn_if_reported(plan: dict[str, Any]) -> None:
    reports = reports_of()
    reports[7]["metrics"] |= {"mfu": 0.25, "peak_memory_gb": 0.75, "data_wait_share": 0.5}
    text = Page(render(status_of(), reports, plan, RESULT)).text
    assert "median of the run\nMFU 25.0%" in text
    assert "of the peak of all devices 25.0%" in text
    assert "Peak memory of rank 0 (GB)\npeak 0.7500" in text
    assert f"planned {planned_memory(plan):.4g}"[:12] in text
    assert "waiting 50.0%" in text


def test_planned_values_are_shown_with_actual_ones(plan: dict[str, Any]) -> None:
    reports = reports_of(30)
    reports[3]["metrics"]["peak_memory_gb"] = 2 * planned_memory(plan)
    attempts = [{"started": STARTED, "ended": STARTED + 60}, {"started": STARTED + 100, "ended": STARTED + 160}]
    dear = {**plan, "estimates": {**plan["estimates"], "seconds": 240.0, "cost": 2.0, "span": None}}
    status = status_of(attempts=attempts, step=30, steps=40, cost=1.5)
    text = Page(render(status, reports, dear, RESULT)).text
    assert "Planned and actual\nPlanned\nActual\nActual / planned" in text
    assert "Steps\n40\n30\n75%" in text
    assert "Time of all attempts\n4 min 00 s\n2 min 00 s\n50%" in text
    assert re.search(r"Memory of a process\n\S+ [MG]B\n\S+ [MG]B\n200%", text)
    assert "Cost\n$2.00\n$1.50\n75%" in text
    assert "Arithmetic\n\u2014\n" in text
    going = status_of(RunState.RUNNING, attempts=[{"started": STARTED}], step=30, steps=40)
    assert "Time of all attempts\n4 min 00 s\n1 min 01 s\n25%" in Page(render(going, reports, dear, {})).text
    span = {"seconds_least": 60.0, "seconds_most": 300.0, "cost_least": 0.5, "cost_most": 2.5, "basis": "rates"}
    between = {**plan, "estimates": {**plan["estimates"], "span": span}}
    text = Page(render(status, reports, between, RESULT)).text
    assert "Time of all attempts\n1 min 00 s to 5 min 00 s\n2 min 00 s\n" in text
    assert "Cost\n$0.50 to $2.50\n$1.50\n" in text
    assert "Cost" not in Page(render(status_of(), reports, plan, RESULT)).text


def test_plan_is_shown_with_origins_and_without_secrets(plan: dict[str, Any]) -> None:
    html = render(status_of(), reports_of(), plan, RESULT)
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
    assert "hush!" not in html


def test_auto_micro_batch_is_shown_as_auto(plan: dict[str, Any]) -> None:
    job = {**plan["job"], "train": {**plan["job"]["train"], "micro_batch_size": "auto"}}
    page = Page(render(status_of(), [], {**plan, "job": job, "accumulation_steps": None}, RESULT))
    assert "32 sequences a step on 1 process; micro batch: auto" in page.text
    why = {"job": job, "accumulation_steps": None, "micro_batch_reason": "the default on GPUs"}
    page = Page(render(status_of(), [], {**plan, **why}, {**RESULT, "micro_batch_size": 16}))
    assert "micro batch: auto, the default on GPUs, found: 16" in page.text


def test_loss_above_unigram_entropy_is_reported(plan: dict[str, Any]) -> None:
    text = Page(render(status_of(), reports_of(), plan, {**RESULT, "validation_mlm_loss": 6.4321})).text
    assert "0.0000 above unigram entropy: no better than word frequencies" in text


def test_verdict_has_error_bar_and_sources(plan: dict[str, Any]) -> None:
    """A loss within two standard errors of the entropy shows nothing; each source has its own figures."""
    found = {
        **RESULT,
        "validation_mlm_loss": 6.4021,
        "validation_unigram_margin_error": 0.02,
        "validation_mlm_loss.books": 6.0,
        "validation_unigram_entropy.books": 6.1,
    }
    text = Page(render(status_of(), reports_of(), plan, found)).text
    assert "0.0300 ± 0.0400 below unigram entropy: no better than word frequencies" in text
    assert "books: 6.000, unigram entropy 6.100" in text
    worse = Page(render(status_of(), reports_of(), plan, {**found, "validation_mlm_loss": 6.5321})).text
    assert "0.1000 ± 0.0400 above unigram entropy: worse than word frequencies" in worse


def test_page_is_self_contained(plan: dict[str, Any]) -> None:
    html = render(status_of(), reports_of(), plan, RESULT)
    assert not {tag for tag, _ in Page(html).tags} & {"script", "link", "img", "iframe", "object", "a"}
    assert references(html) == []
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_user_text_never_becomes_markup(plan: dict[str, Any]) -> None:
    status = status_of(
        RunState.FAILED, name=HOSTILE, handle=f"local://{HOSTILE}", reason=HOSTILE, tags={HOSTILE: HOSTILE}
    )
    hostile = {
        **plan,
        "changes": {HOSTILE: {"value": HOSTILE, "from": HOSTILE}},
        "data": {**plan["data"], "name": HOSTILE},
        "warnings": [HOSTILE],
        "environment": {HOSTILE: HOSTILE},
    }
    page = Page(render(status, reports_of(), hostile, {**RESULT, "model": HOSTILE}))

    assert not {tag for tag, _ in page.tags} & {"script", "img"}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert page.text.count(HOSTILE) >= 10


def test_command_with_special_characters_is_quoted(plan: dict[str, Any]) -> None:
    text = Page(render(status_of(handle="local://a b;rm"), [], plan, {})).text
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
def test_commands_fit_the_state_of_the_run(plan: dict[str, Any], state: RunState, verbs: list[str]) -> None:
    text = Page(render(status_of(state), reports_of(), plan, {})).text
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
def test_run_without_metrics_is_reported(plan: dict[str, Any], state: RunState, sentence: str) -> None:
    page = Page(render(status_of(state), [], plan, {}))
    assert sentence in page.text
    assert "not validated so far" in page.text
    assert "svg" not in {tag for tag, _ in page.tags}


def test_queued_run_shows_its_submission_time(plan: dict[str, Any]) -> None:
    text = Page(render(status_of(RunState.QUEUED, started=None), [], plan, {})).text
    assert "Submitted\n2025-11-21 07:59 UTC" in text
    assert "Duration" not in text


def test_running_run_has_partial_figures(plan: dict[str, Any]) -> None:
    page = Page(render(status_of(RunState.RUNNING), iter(reports_of(30)), plan, {}))
    assert "1 min 01 s so far" in page.text
    assert "6.500\nnats, on held-out text, step 30" in page.text
    assert "Steps done\n30\nof 40" in page.text
    assert "known once the run has validated" in page.text
    assert "unigram entropy" not in page.text
    reports = [*reports_of(30), {"step": 30, "time": STARTED + 62, "metrics": {"validation_unigram_entropy": 6.9}}]
    page = Page(render(status_of(RunState.RUNNING), reports, plan, {}))
    assert "0.4000 below unigram entropy: learned from context" in page.text


def test_best_checkpoint_is_shown_if_known(plan: dict[str, Any]) -> None:
    best = {"step": 1200, "validation_loss": 5.43219, "folder": "/runs/demo/outputs/checkpoints/step-00001200"}
    assert (
        "Best checkpoint\nstep 1,200, validation loss 5.4322"
        in Page(render(status_of(best_checkpoint=best), reports_of(), plan, RESULT)).text
    )
    assert "Best checkpoint" not in Page(render(status_of(), reports_of(), plan, RESULT)).text


def test_failed_run_shows_the_reason(plan: dict[str, Any]) -> None:
    reason = "error[training]: the loss is not finite\n  step  7"
    text = Page(render(status_of(RunState.FAILED, reason=reason, exit_code=1, attempt=2), reports_of(7), plan, {})).text
    assert reason in text
    assert "Exit code\n1" in text
    assert "Started (attempt 2)" in text


def test_non_finite_values_do_not_break_page(plan: dict[str, Any]) -> None:
    reports = reports_of()
    for report in reports[20:30]:
        report["metrics"]["train_mlm_loss"] = math.nan
    reports[35]["metrics"] |= {"sequences_per_second": math.inf, "loss_scale": 1024.0, "skipped_steps": 3.0}

    html = render(status_of(), reports, plan, {**RESULT, "validation_mlm_loss": math.nan})
    text = Page(html).text

    assert "Left out: 10 values not finite." in text
    assert "not finite on held-out text" in text
    assert "3 skipped for gradients that were not finite" in text
    assert not re.search(r"\b(nan|inf)\b", html)


def test_run_without_nsp_has_no_nsp_figures(plan: dict[str, Any]) -> None:
    job = {**plan["job"], "objective": {**plan["job"]["objective"], "next_sentence": False}}
    reports = [
        {**report, "metrics": {name: value for name, value in report["metrics"].items() if "nsp" not in name}}
        for report in reports_of()
    ]
    result = {name: value for name, value in RESULT.items() if "nsp" not in name}
    text = Page(render(status_of(), reports, {**plan, "job": job}, result)).text
    assert "MLM accuracy" in text
    assert "NSP" not in text


def test_same_run_gives_an_identical_page(plan: dict[str, Any], tmp_path: Path) -> None:
    first = render(status_of(), reports_of(), plan, RESULT)
    (tmp_path / "report.html").write_text(first, encoding="utf-8")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render(status_of(), reports_of(), plan, RESULT)
