"""Sections about scored classes: confusion matrix, calibration, ROC and precision-recall curves, confident mistakes.

They are computed from the job's scored_rows.json, which has labels, predictions and their probabilities, and no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from orchestrator.reports.charts.axes import Axis, number, percent
from orchestrator.reports.charts.charts import decimate
from orchestrator.reports.charts.drawing import Drawing, LegendEntry
from orchestrator.reports.pages.page_parts import figures_panel, wide_panel
from orchestrator.support.formatting import counted
from orchestrator.support.html import Markup, element

if TYPE_CHECKING:
    from train_jobs.evaluation.scored_rows import ScoredRows

BINS = 10  # of the calibration, each a tenth of the probabilities
MISTAKES = 20
MAX_CLASSES = 30  # a larger confusion matrix is not readable
PER_CLASS = ("Class", "Precision", "Recall", "F1", "Rows with this label")
CONFIDENCE = "confidence"  # column of scored rows: probability of the predicted class


@dataclass(frozen=True)
class ClassifiedRows:
    """The rows of one scored set whose labels are classes.

    Attributes:
        name: of the set, such as dev.
        classes: their names, by id.
        labels: id of the label of each row.
        predictions: id of the predicted class of each row.
        confidences: probability of the predicted class of each row; empty in files of earlier versions.
        positive: id of the positive class, if there are two.
    """

    name: str
    classes: Sequence[str]
    labels: Sequence[int]
    predictions: Sequence[int]
    confidences: Sequence[float]
    positive: int

    def sections(self) -> Iterator[Markup]:
        """Yield the sections of the page."""
        if len(self.classes) <= MAX_CLASSES:
            yield element("h2", f"Confusion matrix of {self.name}")
            yield self.confusion_matrix()
        if not self.confidences:
            return
        drawings = [self._calibration()]
        if len(self.classes) == 2 and len(set(self.labels)) == 2:
            drawings += self._curves()
        yield element("h2", f"Probabilities of {self.name}")
        yield element("div", *(drawing.html() for drawing in drawings), class_="charts")
        yield from self._mistakes()

    def confusion_matrix(self) -> Markup:
        """Return the number of rows by label and prediction."""
        count = [[0] * len(self.classes) for _ in self.classes]
        for label, prediction in zip(self.labels, self.predictions, strict=True):
            count[label][prediction] += 1
        rows = ((name, *(f"{cell:,}" for cell in row)) for name, row in zip(self.classes, count, strict=True))
        header = ("Label \\ predicted", *self.classes)
        return wide_panel(f"Confusion matrix of {self.name}", header, rows)

    def _calibration(self) -> Drawing:
        """Draw the share of correct predictions by their probability; that of a calibrated model is the diagonal."""
        right = [label == found for label, found in zip(self.labels, self.predictions, strict=True)]
        bins: dict[int, list[tuple[float, bool]]] = {}
        for probability, is_right in zip(self.confidences, right, strict=True):
            bins.setdefault(min(int(probability * BINS), BINS - 1), []).append((probability, is_right))
        points, error = [], 0.0
        for _, some in sorted(bins.items()):
            mean = sum(probability for probability, _ in some) / len(some)
            share = sum(is_right for _, is_right in some) / len(some)
            points.append((mean, share, len(some)))
            error += abs(mean - share) * len(some) / len(right)
        plain = _square(
            "Calibration",
            "probability of the prediction",
            "correct",
            f"expected calibration error {number(error)}",
            (LegendEntry("validation", "correct predictions"), LegendEntry("reference", "calibrated")),
            note=f"Expected calibration error {number(error)} over {BINS} bins, a dot for each bin with rows.",
        )
        dots = (
            plain.dot(x, y, "validation", f"{percent(y)} of {counted(rows, 'row')} at {percent(x)}")
            for x, y, rows in points
        )
        line = [(x, y) for x, y, _ in points]
        return plain.with_layers(
            plain.line([(0.0, 0.0), (1.0, 1.0)], "reference"), plain.line(line, "validation"), *dots
        )

    def _curves(self) -> Iterator[Drawing]:
        """Yield the ROC and the precision-recall curve of the positive class."""
        name = self.classes[self.positive]
        likely = [
            probability if found == self.positive else 1 - probability
            for probability, found in zip(self.confidences, self.predictions, strict=True)
        ]
        wanted = [label == self.positive for label in self.labels]
        positives, negatives = sum(wanted), len(wanted) - sum(wanted)
        roc, recalls, hits, alarms = [(0.0, 0.0)], [(0.0, 1.0)], 0, 0
        order = sorted(range(len(likely)), key=lambda row: -likely[row])
        for place, row in enumerate(order):
            hits, alarms = hits + wanted[row], alarms + (not wanted[row])
            if place + 1 < len(order) and likely[order[place + 1]] == likely[row]:
                continue  # rows of equal probability are one point
            roc.append((alarms / negatives, hits / positives))
            recalls.append((hits / positives, hits / (hits + alarms)))
        area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(roc))
        precision = sum((b[0] - a[0]) * b[1] for a, b in pairwise(recalls))
        legend = (LegendEntry("training", name), LegendEntry("reference", "chance"))
        first = _square("ROC", "false positive rate", "recall", f"area {number(area)}", legend, f"Area {number(area)}.")
        yield first.with_layers(
            first.line([(0.0, 0.0), (1.0, 1.0)], "reference"), first.line(_thinned(roc), "training")
        )
        text = f"Average precision {number(precision)}."
        second = _square("Precision and recall", "recall", "precision", text, legend, text)
        chance = positives / len(wanted)
        yield second.with_layers(second.rule(chance, "reference"), second.line(_thinned(recalls), "training"))

    def _mistakes(self) -> Iterator[Markup]:
        """Yield the table of the mistakes with the highest probability."""
        rows = zip(self.labels, self.predictions, self.confidences, strict=True)
        wrong = [(sure, row, label, found) for row, (label, found, sure) in enumerate(rows, 1) if label != found]
        if not wrong:
            return
        yield element("h2", f"Most confident mistakes of {self.name}")
        note = f"{counted(len(wrong), 'mistake')} in {counted(len(self.labels), 'row')}. Row 1 is the first of the set."
        yield element("p", note, class_="note")
        shown = sorted(wrong, key=lambda one: (-one[0], one[1]))[:MISTAKES]
        yield figures_panel(
            ("Row", "Label", "Predicted", "Probability"),
            (
                (f"{row:,}", self.classes[label], self.classes[found], percent(sure))
                for sure, row, label, found in shown
            ),
        )


def class_sections(name: str, rows: ScoredRows) -> Iterator[Markup]:
    """Yield the sections of a scored set; nothing if its labels are not classes."""
    if _is_classified(rows):
        yield from _classified(name, rows).sections()


def _is_classified(rows: ScoredRows) -> bool:
    ids: set[Any] = set()
    for name in ("label", "prediction"):
        ids |= set(rows.columns.get(name, (-1,)))  # type: ignore[arg-type]
    return bool(rows.classes) and ids <= set(range(len(rows.classes)))


def _classified(name: str, rows: ScoredRows) -> ClassifiedRows:
    columns: Mapping[str, Any] = rows.columns
    positive = next((int(one["positive"]) for one in rows.metrics.values() if "positive" in one), 1)
    labels, predictions = ([int(value) for value in columns[key]] for key in ("label", "prediction"))
    return ClassifiedRows(name, rows.classes, labels, predictions, columns.get(CONFIDENCE, ()), positive)


def class_tables(sets: Mapping[str, Mapping[str, Any]], seed: int | None = None) -> Iterator[Markup]:
    """Yield a table with a row for each class, for each scored set.

    Args:
        sets: `sets` of a job's result.
        seed: of the best of several runs, shown in the heading.
    """
    for name, facts in sets.items():
        if classes := facts.get("per_class"):
            yield element("h2", f"Each class of {name}" + (f", seed {seed}" if seed is not None else ""))
            rows = (
                (label, *(number(one[key]) for key in ("precision", "recall", "f1")), f"{one['rows']:,.0f}")
                for label, one in classes.items()
            )
            yield figures_panel(PER_CLASS, rows)


def _square(title: str, across: str, up: str, words: str, legend: tuple[LegendEntry, ...], note: str = "") -> Drawing:
    x_axis, y_axis = (Axis(label, 0.0, 1.0, shares=True) for label in (across, up))
    notes = (note,) if note else ()
    return Drawing(title, x_axis, y_axis, words=f"{title}: {words}", legend=legend, notes=notes)


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    return decimate(points)  # type: ignore[arg-type]
