"""Scores of a run, of several seeds and of all of GLUE in one form, and their output in a status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.backends.folder.outputs import best_checkpoint
from orchestrator.backends.run_progress import Target
from orchestrator.cli.ui.render import status_text
from orchestrator.cli.ui.run_list import RunList
from orchestrator.runs.results import read_results
from orchestrator.runs.status import RunState, RunStatus


def no_sweep(_name: str) -> None:
    """Find no sweep."""


METRICS = {"loss": 0.4, "f1": 0.9, "score": 0.85, "collapsed": 0.0}
ONE = {"task": "MRPC", "seed": 42, "best_step": 230, "metrics": METRICS}
FIGURE = {"mean": 0.8, "sd": 0.05, "median": 0.81, "max": 0.86}
SEVERAL = {
    "task": "RTE",
    "metrics": {"loss": FIGURE, "accuracy": FIGURE, "collapsed": FIGURE},
    "collapsed": 2,
    "best_seed": 3,
    "seeds": [
        {"seed": 3, "best_step": 40, "metrics": {"loss": 0.5, "accuracy": 0.86, "collapsed": 0.0}},
        {"seed": 4, "best_step": 20, "metrics": {"loss": 0.9, "accuracy": 0.74, "collapsed": 0.0}},
    ],
}
CELL = {"task": "MRPC", "metric": "F1", "mean": 88.9, "sd": 1.5, "seeds": 5, "collapsed": 0}
GLUE = {
    "task": "glue",
    "table": {
        "cells": [{"name": "MRPC", **CELL}, {"name": "WNLI", **CELL, "sd": 0.0, "seeds": 1, "collapsed": 1}],
        "average": 79.6,
        "glue_score": 77.1,
    },
    "submission": "out/submission.zip",
}


def rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    found = read_results(result)
    assert found is not None
    return found.rows


def test_scores_of_a_run_have_best_step_and_no_loss() -> None:
    assert rows(ONE) == [("MRPC", "f1 0.9000, score 0.8500; best at step 230")]
    collapsed = {**ONE, "metrics": {**METRICS, "collapsed": 1.0}}
    assert rows(collapsed) == [("MRPC", "f1 0.9000, score 0.8500; 1 collapsed, best at step 230")]


def test_scores_of_seeds_are_mean_and_deviation() -> None:
    assert rows(SEVERAL) == [("RTE", "accuracy 0.8000 +- 0.0500; 2 seeds, 2 collapsed")]


def test_scores_of_glue_are_a_table_of_percentages() -> None:
    assert rows(GLUE) == [
        ("MRPC", "F1 0.8890 +- 0.0150; 5 seeds"),
        ("WNLI", "F1 0.8890; 1 collapsed"),
        ("average", "0.7960, of the cells that the paper on BERT averages"),
        ("GLUE score", "0.7710, the mean over tasks"),
        ("for GLUE", "out/submission.zip"),
    ]


def test_scores_of_glue_have_interval_and_base_rate() -> None:
    cell = {**CELL, "metric": "accuracy", "low": 87.0, "high": 90.25, "base_rate": 52.7, "sd": 0.0, "seeds": 1}
    result = {**GLUE, "table": {**GLUE["table"], "cells": [{"name": "RTE", **cell}]}}
    assert rows(result)[0] == ("RTE", "accuracy 0.8890 (95%: 0.8700 to 0.9025); most frequent label 0.5270")


def test_result_without_metrics_has_no_scores() -> None:
    assert read_results({}) is None
    assert read_results({"validation_loss": 3.0, "steps": 7}) is None


def status(**more: Any) -> RunStatus:
    kind = {"kind": "finetune", "state": RunState.RUNNING, "created": 0.0, "run_hash": "12345678", **more}
    return RunStatus(name="run-1", handle="local://run-1", **kind)


def test_status_shows_last_metrics_then_results() -> None:
    metrics = {"validation_f1": 0.5, "validation_loss": 0.7, "validation_score": 0.4, "sequences_per_second": 10.0}
    text = status_text(status(metrics=metrics, step=10, steps=40))
    assert "validation  f1 0.5000, score 0.4000\n" in text
    assert "speed       10 sequences/s" in text
    best = {"step": 30, "score": 0.85, "folder": "/there"}
    text = status_text(status(metrics=metrics, results=read_results(ONE), best_checkpoint=best))
    assert "checkpoint of step 30, score 0.8500" in text
    assert "MRPC       f1 0.9000, score 0.8500; best at step 230" in text
    assert "0.4000" not in text


def test_finetune_best_checkpoint_has_highest_score(tmp_path: Path) -> None:
    for step, lacking in ((3, -0.5), (6, -0.85), (9, -0.7)):
        folder = tmp_path / f"step-{step:08d}"
        folder.mkdir()
        (folder / "COMMIT.json").write_text(json.dumps({"step": step, "validation_loss": lacking}))
    best = best_checkpoint(tmp_path, scored=True)
    assert best is not None
    assert (best.step, best.score, best.validation_loss) == (6, 0.85, None)


def test_expected_end_counts_steps_or_rows() -> None:
    plan = {"job": {"train": {"global_batch_size": 32}}, "steps": 200, "counts": "steps"}
    last = {"step": 100, "time": 50.0, "metrics": {"sequences_per_second": 32.0, "rows_per_second": 10.0}}
    assert Target.from_plan(plan).eta(last) == 150.0
    assert Target.from_plan({**plan, "job": {}, "counts": "rows"}).eta(last) == 60.0
    assert Target.from_plan({**plan, "counts": "runs"}).eta(last) is None


def test_status_names_the_counted_unit() -> None:
    assert "runs       2 of 5 done" in status_text(status(step=2, steps=5, counts="runs"))
    assert "tasks      2 of 9 done" in status_text(status(step=2, steps=9, counts="tasks"))
    assert "step       2\n" in status_text(status(step=2)) + "\n"
    assert "2/5 runs" in RunList(no_sweep).text([status(step=2, steps=5, counts="runs")])
    assert "80/200 rows" in RunList(no_sweep).text([status(step=80, steps=200, counts="rows", kind="predict")])
