"""The page of a fine-tuning: scores of a task, of seeds, of all of GLUE, and without any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.jobs.resolve import make_plan, resolve_spec
from orchestrator.runs.results import read_results
from orchestrator.runs.status import RunState, RunStatus
from orchestrator.specs.resolved import Flag
from tests.conftest import write_bert
from tests.unit.orchestrator.test_scores import GLUE, ONE, SEVERAL
from tests.unit.reports.drawings import empty_figures, figures, overflowing_figures, render
from tests.unit.reports.test_report_run import Page


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_snapshot: None) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    write_bert(tmp_path / "bert")
    (tmp_path / "a.tsv").write_text("text\tlabel\nw1\tx\nw2\ty\n")
    given = {"init_from": "bert", "data.train": "a.tsv", "data.validation": "a.tsv", "data.max_length": 32}
    flags = {key: Flag(value, f"--{key}") for key, value in given.items()}
    return make_plan(resolve_spec("finetune", flags=flags, environ={}), home=tmp_path / "home").as_dict()


def page(
    plan: dict[str, Any],
    result: dict[str, Any],
    *,
    reports: Sequence[dict[str, Any]] = (),
    seeds: Mapping[int, Sequence[dict[str, Any]]] | None = None,
    **more: Any,
) -> str:
    status = RunStatus(
        name="demo",
        handle="local://demo",
        kind="finetune",
        created=0.0,
        run_hash=plan["run_hash"],
        results=read_results(result),
        **{"state": RunState.COMPLETED, "step": 6, "steps": 6, **more},
    )
    text = render(status, reports, plan, result, seeds=seeds)
    Page(text)  # every tag is closed
    return text


def report(step: int, **metrics: float) -> dict[str, Any]:
    return {"step": step, "time": float(step), "metrics": metrics}


def test_task_has_scores_charts_and_rows(plan: dict[str, Any]) -> None:
    reports = [
        report(2, train_loss=0.7, learning_rate=1e-5),
        report(3, validation_loss=0.6, validation_f1=0.5, validation_collapsed=0.0),
        report(6, validation_loss=0.5, validation_f1=0.9, validation_collapsed=0.0),
    ]
    text = page(plan, ONE, reports=reports)
    shown = Page(text).text
    for words in (
        "f1\n0.9000\nMRPC, step 230",
        "Loss",
        "F1",
        "Learning rate",
        "own: train 2, validation 2",
        "32 rows a step",
    ):
        assert words in shown, words
    assert "Collapsed" not in shown
    assert "MLM" not in shown


def test_seeds_have_mean_deviation_and_collapsed_runs(plan: dict[str, Any]) -> None:
    shown = Page(page(plan, SEVERAL, counts="runs", step=2, steps=2)).text
    assert "accuracy\n0.8000\n\u00b1 0.0500, 2 seeds" in shown
    assert "Collapsed\n2\nof 2 runs" in shown
    assert "RTE\naccuracy\n0.8000 \u00b1 0.0500\n0.8100\n0.8600\n2, 2 collapsed" in shown
    assert "Runs done\n2\nof 2" in shown
    assert "Seed\naccuracy\nbest step\n3 best\n0.8600\n40\n4\n0.7400\n20" in shown
    assert "No metrics" not in shown


def test_each_class_has_its_scores(plan: dict[str, Any]) -> None:
    figures = {"precision": 0.75, "recall": 0.6, "f1": 2 / 3, "rows": 1200.0}
    sets = {"dev": {"rows": 2000, "per_class": {"<b>ham</b>": figures, "spam": {**figures, "rows": 800.0}}}}
    text = page(plan, {**ONE, "sets": sets})
    table = "Class\nPrecision\nRecall\nF1\nRows with this label\n<b>ham</b>\n0.7500\n0.6000\n0.6667\n1,200\nspam\n"
    assert f"Each class of dev\n{table}" in Page(text).text
    assert "<b>ham" not in text, "labels are text of users"
    assert '<th scope="row">spam</th>' in text
    assert '<th scope="col">Precision</th>' in text
    several = {**SEVERAL, "seeds": [{**run, "sets": sets} for run in SEVERAL["seeds"]]}
    assert f"Each class of dev, seed 3\n{table}" in Page(page(plan, several, counts="runs")).text
    assert "Each class" not in page(plan, ONE)


def test_each_seed_has_its_curves(plan: dict[str, Any]) -> None:
    seeds = {
        seed: [
            report(step, train_loss=1 / (step + seed), validation_f1=0.1 * step, validation_collapsed=0.0)
            for step in (2, 4)
        ]
        for seed in (3, 4)
    }
    done = [report(1, validation_f1=0.4), report(2, validation_f1=0.4)]
    text = page(plan, SEVERAL, seeds=seeds, reports=done, counts="runs", step=2, steps=2)
    drawn = figures(text)
    assert len(drawn["Loss in training, each seed"]) == 4
    assert len(drawn["F1, each seed"]) == 2, "both seeds have the same score"
    assert "Loss on the dev set, each seed" not in drawn
    assert "Collapsed, each seed" not in drawn
    assert (empty_figures(text), overflowing_figures(text)) == ([], [])
    assert "seed 3 0.1429" in " ".join(Page(text).text.split()), "1 / (4 + 3), its last report"


def test_first_seed_is_drawn_during_training(plan: dict[str, Any]) -> None:
    seeds = {1: [report(50, train_loss=0.7), report(100, train_loss=0.5)], 2: []}
    text = page(plan, {}, seeds=seeds, state=RunState.RUNNING, counts="runs", step=None, steps=2)
    assert list(figures(text)) == ["Loss in training, each seed"]
    assert "No metrics" not in text
    assert (empty_figures(text), overflowing_figures(text)) == ([], [])


def test_glue_has_its_table(plan: dict[str, Any]) -> None:
    shown = Page(page(plan, GLUE, counts="tasks")).text
    assert "GLUE score\n0.7710\nmean over tasks" in shown
    assert "MRPC\nF1\n0.8890 \u00b1 0.0150" in shown
    assert "Average\nof the cells that the paper on BERT averages\n0.7960" in shown


def test_running_run_has_the_latest_metrics(plan: dict[str, Any]) -> None:
    reports = [report(3, validation_f1=0.5), report(6, validation_f1=0.75, validation_loss=0.1)]
    shown = Page(page(plan, {}, reports=reports, state=RunState.RUNNING, steps=None)).text
    assert "f1\n0.7500\nstep 6" in shown
    assert "Steps done\n6\ntotal not known" in shown
