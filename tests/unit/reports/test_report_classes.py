"""Pages of scored classes: confusion matrix, calibration, curves and mistakes, of evaluations and fine-tunings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, confusion_matrix, roc_auc_score

from orchestrator.run import Run
from tests.conftest import write_bert
from tests.unit.reports.drawings import empty_figures, figures, overflowing_figures
from tests.unit.reports.evaluations import make_evaluation
from tests.unit.reports.test_report_run import Page
from train_jobs.config.tasks import own_metrics
from train_jobs.evaluation.scored_rows import scored_rows_text
from train_jobs.tasks.sentences.metrics import class_details, class_rows, class_scores

CLASSES = ("<b>ham</b>", "spam")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_snapshot: None) -> Path:
    monkeypatch.chdir(tmp_path)
    write_bert(tmp_path / "bert")
    (tmp_path / "a.tsv").write_text("text\tlabel\nw1\tx\nw2\ty\n")
    return tmp_path / "home"


def evaluation(
    home: Path, likely: np.ndarray, labels: np.ndarray, *, classes: tuple[str, ...] = CLASSES, sure: bool = True
) -> Run:
    """Return a finished evaluation; `likely` is [rows, classes]."""
    found, two = likely.argmax(1), len(classes) == 2
    metrics = own_metrics(classes, None)
    margins = np.log(likely[:, 1] / likely[:, 0]) if two else None
    result = {
        "task": "classes",
        "metrics": {"loss": 0.5, **class_scores(metrics, labels, found, margins)},
        "sets": {"input": class_details(classes, labels, found)},
    }
    rows = class_rows(metrics, labels, found, margins, confidences=likely.max(1) if sure else None, classes=classes)
    return make_evaluation(home, result, scored_rows_text({"input": rows}))


def two_classes(rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    likely = np.round(draw.uniform(0.01, 0.99, rows), 3)
    labels = (draw.uniform(size=rows) < likely).astype(int)
    return np.stack([1 - likely, likely], 1), labels


def test_evaluation_has_a_report_with_all_sections(home: Path) -> None:
    likely, labels = two_classes()
    found = likely.argmax(1)
    text = evaluation(home, likely, labels).report().read_text()
    shown = Page(text).text
    for heading in ("Each class of input", "Confusion matrix of input", "Probabilities of input", "Planned and actual"):
        assert heading in shown, heading
    cells = confusion_matrix(labels, found)
    for name, row in zip(CLASSES, cells, strict=True):
        assert "\n".join([name, *map(str, row)]) in shown
    assert f"Area {roc_auc_score(labels, likely[:, 1]):.4f}." in shown
    assert f"Average precision {average_precision_score(labels, likely[:, 1]):.4f}." in shown
    assert {"Calibration", "ROC", "Precision and recall"} <= figures(text).keys()
    assert (empty_figures(text), overflowing_figures(text)) == ([], [])
    assert "<b>ham" not in text, "labels are text of users"
    wrong = sorted(np.flatnonzero(found != labels), key=lambda row: (-likely[row].max(), row))[:20]
    assert f"{(found != labels).sum()} mistakes in 200 rows" in shown
    listed = re.findall(r"\n(\d+)\n(?:<b>ham</b>|spam)\n(?:<b>ham</b>|spam)\n[\d.]+%", shown)
    assert listed == [str(row + 1) for row in wrong], "row numbers, from 1, the most confident first"


def test_calibrated_model_has_small_calibration_error(home: Path) -> None:
    likely = np.tile([0.25, 0.75], (400, 1))
    labels = np.array([0, 1, 1, 1] * 100)
    shown = Page(evaluation(home, likely, labels).report().read_text()).text
    assert "Expected calibration error 0 over 10 bins" in shown


def test_many_classes_have_neither_curves_nor_matrix(home: Path) -> None:
    """Three classes have no ROC; 31 no matrix, which would not be readable."""
    for number, has_matrix in ((3, True), (31, False)):
        names = tuple(f"c{one}" for one in range(number))
        likely = np.full((number, number), 0.5 / (number - 1))
        np.fill_diagonal(likely, 0.5)
        folder = home / str(number)
        text = evaluation(folder, likely, np.roll(np.arange(number), 1), classes=names).report().read_text()
        assert figures(text).keys() == {"Calibration"}
        assert ("Confusion matrix" in Page(text).text) == has_matrix
        assert f"{number} mistakes in {number} rows" in Page(text).text


def test_rows_of_earlier_versions_have_only_the_matrix(home: Path) -> None:
    likely, labels = two_classes(20)
    run = evaluation(home, likely, labels, sure=False)
    shown = Page(run.report().read_text()).text
    assert "Confusion matrix of input" in shown
    assert "Probabilities" not in shown
    path = home / "runs/scored/outputs/scored_rows.json"
    for content in ("", "{", json.dumps({"version": 1, "sets": {"input": {"columns": {"label": [7]}}}})):
        path.write_text(content)
        assert "Confusion matrix" not in Page(run.report().read_text()).text, "damaged rows hide no other result"


def test_single_metric_is_shown_once(home: Path) -> None:
    run = evaluation(home, *two_classes(20))
    path = home / "runs/scored/outputs/result.json"
    result: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps({**result, "metrics": {"loss": 1.0, "accuracy": 0.5, "score": 0.5}}))
    shown = Page(run.report().read_text()).text
    assert "accuracy\n0.5000" in shown
    assert "score\n0.5000" not in shown
