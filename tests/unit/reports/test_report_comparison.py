"""Several runs on one page: shared axes, a colour for each, differences, replicates, and refused comparisons."""

from __future__ import annotations

import copy
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator.reports.charts.style import KINDS
from orchestrator.reports.pages.comparison import (
    render_comparison,
    require_comparable,
    write_pictures,
    write_report,
)
from orchestrator.reports.pages.run_report import RunReport, report_of
from orchestrator.runs.differences import Side
from orchestrator.runs.results import read_results
from orchestrator.runs.status import RunState
from orchestrator.support.errors import StorageError, UsageError
from tests.conftest import tmpfs
from tests.unit.orchestrator.test_scores import ONE
from tests.unit.reports.drawings import empty_figures, figures, overflowing_figures, references
from tests.unit.reports.test_report_run import HOSTILE, RESULT, Page, reports_of, status_of


def subject(
    plan: dict[str, Any],
    name: str,
    *,
    reports: list[dict[str, Any]] | None = None,
    result: dict[str, Any] | None = None,
    state: RunState = RunState.COMPLETED,
    kind: str = "pretrain",
    **changes: Any,
) -> RunReport:
    """Return a run of a plan with changed spec values: `train__seed=2` is train.seed."""
    own = copy.deepcopy(plan)
    for path, value in changes.items():
        section, _, key = path.partition("__")
        own["spec"][section][key] = value
    found = RESULT if result is None else result
    status = status_of(state, name=name, kind=kind, results=read_results(found))
    return report_of(Side(status, own, found, None), reports_of() if reports is None else reports)


def test_two_runs_have_a_line_each_and_a_legend(plan: dict[str, Any]) -> None:
    runs = [subject(plan, "slow"), subject(plan, "fast", reports=reports_of(30), optimizer__learning_rate=1e-3)]
    page = render_comparison(runs)
    shown = figures(page)
    assert "MLM loss (nats per token), training" in shown
    assert "MLM loss (nats per token), held out" in shown
    assert empty_figures(page) == []
    assert overflowing_figures(page) == []
    loss = next(
        found for found in re.findall(r"<figure>.*?</figure>", page, re.DOTALL) if "per token), training" in found
    )
    assert [kind for kind in KINDS if f'<polyline class="{kind}"' in loss] == ["run-1", "run-2"]
    assert re.findall(r'<i class="(run-\d)"></i>(\w+) ', loss) == [("run-1", "slow"), ("run-2", "fast")]
    text = Page(page).text
    key, *values = re.findall(r"<code>(optimizer.learning_rate|0.0005|0.001)</code>", page)
    assert (key, values) == ("optimizer.learning_rate", ["0.0005", "0.001"])
    assert "Validation MLM loss\n5.432\n5.432" in text
    assert "train.seed" not in text


def test_runs_differing_in_seed_share_colour_and_mean(plan: dict[str, Any]) -> None:
    results = [{**RESULT, "validation_mlm_loss": loss} for loss in (5.0, 5.2)]
    runs = [subject(plan, f"seed-{seed}", result=result, train__seed=seed) for seed, result in enumerate(results)]
    page = render_comparison([*runs, subject(plan, "other", train__log_every=7)])
    text = Page(page).text
    assert "seed-0 and 1 replicate" in text
    assert "mean \u00b1 sd of 2" in text
    assert "Validation MLM loss\n5.100 \u00b1 0.1414\n5.000\n5.200\n5.432" in text
    assert {kind for kind in KINDS if f'class="{kind}"' in page} == {"run-1", "run-2"}


def test_different_texts_give_a_warning(plan: dict[str, Any]) -> None:
    other = {**plan, "data": {**plan["data"], "sha256": "ff" * 32}}
    assert "compare only roughly" in Page(render_comparison([subject(plan, "a"), subject(other, "b")])).text
    same = Page(render_comparison([subject(plan, "a"), subject(plan, "b")])).text
    assert "compare only roughly" not in same
    assert "Nothing: spec, compute, environment, data and code are the same." in same


def test_running_runs_are_drawn_queued_ones_are_not(plan: dict[str, Any]) -> None:
    waiting = subject(plan, "waiting", reports=[], result={}, state=RunState.QUEUED)
    also = subject(plan, "also", reports=[], result={}, state=RunState.QUEUED)
    assert "None of these runs has reported a metric yet." in render_comparison([waiting, also])
    going = subject(plan, "going", reports=reports_of(20), result={}, state=RunState.RUNNING)
    page = render_comparison([waiting, going])
    assert len(figures(page)["MLM loss (nats per token), training"]) == 20
    assert "badge running" in page


def test_page_is_self_contained_and_escapes(plan: dict[str, Any]) -> None:
    page = render_comparison([subject(plan, HOSTILE), subject(plan, "b", train__seed=9)])
    assert references(page) == []
    assert not {tag for tag, _ in Page(page).tags} & {"script", "img", "link"}


def test_incomparable_runs_are_refused_with_the_reason(plan: dict[str, Any]) -> None:
    one, two = subject(plan, "one"), subject(plan, "two")
    tuned = {**plan, "job": {**plan["job"], "task": "MRPC"}}
    mrpc = subject(tuned, "mrpc", kind="finetune", result=ONE)
    other = subject({**tuned, "job": {**tuned["job"], "task": "RTE"}}, "rte", kind="finetune", result=ONE)
    require_comparable([one, two])
    require_comparable([mrpc, subject(tuned, "mrpc-2", kind="finetune", result=ONE)])
    for runs, words in (
        ([one, one], "with itself"),
        ([one, mrpc], "no figures in common"),
        ([mrpc, other], "fine-tuning of RTE"),
        ([one, subject(plan, "words", kind="prepare", result={})], "a run of kind prepare"),
        ([subject(plan, f"r{number}") for number in range(len(KINDS) + 1)], "a figure shows at most"),
    ):
        with pytest.raises(UsageError) as refused:
            require_comparable(runs)
        assert words in str(refused.value)
        assert "orchestrator report" in str(refused.value) or "once" in str(refused.value)


def test_fix_names_a_run_that_has_a_report(plan: dict[str, Any]) -> None:
    words, one = subject(plan, "words", kind="prepare", result={}), subject(plan, "one")
    more = subject(plan, "more", kind="prepare", result={})
    for runs, fix in (([words, one], "orchestrator report one"), ([words, more], "orchestrator status words")):
        with pytest.raises(UsageError) as refused:
            require_comparable(runs)
        assert refused.value.fix == fix


def test_finetunings_of_a_task_are_compared_by_scores(plan: dict[str, Any]) -> None:
    tuned = {**plan, "job": {**plan["job"], "task": "MRPC"}}
    reports = [{"step": step, "time": float(step), "metrics": {"validation_f1": step / 10}} for step in (3, 6)]
    runs = [subject(tuned, name, kind="finetune", result=ONE, reports=reports) for name in ("a", "b")]
    text = Page(render_comparison(runs)).text
    assert "MRPC f1\n0.9000" in text
    assert "F1" in text


def test_pages_and_pictures_are_files(plan: dict[str, Any], tmp_path: Path) -> None:
    runs = [subject(plan, "one"), subject(plan, "two", train__seed=2)]
    assert write_report(runs, tmp_path / "both.html").read_text().startswith("<!doctype html>")
    paths = write_pictures(runs[:1], tmp_path / "figures")
    assert [path.name for path in paths][:2] == ["mlm-loss-nats-per-token.png", "mlm-accuracy.png"]
    assert all(path.read_bytes()[:4] == b"\x89PNG" and path.stat().st_size > 8000 for path in paths)
    assert write_pictures([subject(plan, "none", reports=[])], tmp_path / "nothing") == []
    with pytest.raises(StorageError):
        write_report(runs, tmp_path / "missing" / "both.html")


def test_page_that_cannot_be_completed_keeps_the_old(plan: dict[str, Any], tmp_path: Path) -> None:
    """A later comparison would link to a part of a page."""
    runs = [subject(plan, "one"), subject(plan, "two", train__seed=2)]
    with tmpfs(tmp_path / "disk", "20k") as disk:
        (disk / "both.html").write_text("old")
        with pytest.raises(StorageError):
            write_report(runs, disk / "both.html")
        assert {path.name: path.read_text() for path in disk.iterdir()} == {"both.html": "old"}


def test_page_is_written_to_a_pipe_as_it_is(plan: dict[str, Any], tmp_path: Path) -> None:
    """A rename would replace the pipe, or /dev/stdout, by a file."""
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit((tmp_path / "pipe").read_text)
        write_report([subject(plan, "one")], tmp_path / "pipe")
        assert reading.result().startswith("<!doctype html>")
    assert (tmp_path / "pipe").is_fifo()
