"""Decisions about the labels of a column: can they be classes? The plan's check and the job both ask here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from train_jobs.config import SpecError, did_you_mean
from train_jobs.config.finetune import ColumnsConfig
from train_jobs.config.privacy import LONGEST_CLASS, MOST_RARE_CLASSES, classes_text
from train_jobs.readers.tables import WHOLE, are_fractions

SHORT_CLASS = 30  # characters on average: labels that are longer may be texts


@dataclass(frozen=True)
class LabelProblem:
    """The reason why labels cannot be classes."""

    what: str
    """Description, without values of the data."""
    fix: str
    """Command or imperative sentence that fixes it."""
    labels: frozenset[str] = frozenset()
    """Labels whose rows are wrong; empty: the column as a whole is."""
    texts: bool = False
    """Whether most labels are texts of their own."""


def label_problem(columns: ColumnsConfig, rows: Mapping[str, int], *, complete: bool = True) -> LabelProblem | None:
    """Return why the labels of a training table cannot be its classes; None: they can.

    Args:
        columns: name of the column of labels, and the label that F1 refers to.
        rows: label -> rows with it.
        complete: whether these are all rows. Off: only problems that further rows cannot solve are returned.
    """
    where, total = f"column {columns.label!r}", sum(rows.values())
    once = [name for name, count in rows.items() if count == 1]
    # Labels such as 3.5 are a regression whose switch was forgotten: as classes they would train without an error.
    if complete and are_fractions(rows):
        what = f"{where} has {len(rows):,} different numbers, each a class of its own"
        return LabelProblem(what, "--set data.regression=true")
    # At the beginning of a long table, short labels may be classes that further rows repeat.
    certain = complete or sum(len(name) * count for name, count in rows.items()) > SHORT_CLASS * total
    # Texts would appear as classes in logs, reports and the model.
    if certain and len(rows) > MOST_RARE_CLASSES and len(once) > total / 2:
        kind, fix = "texts", "--set data.label=NAME"
        if all(map(WHOLE.fullmatch, rows)):
            kind, fix = "numbers", f"--set data.regression=true, or {fix}"
        what = f"{where}: {len(once):,} of {total:,} labels occur once: {kind}, not classes"
        return LabelProblem(what, fix, texts=kind == "texts")
    if not complete:
        return None
    if long := frozenset(name for name in once if len(name) > LONGEST_CLASS):
        them = "1 label with" if len(long) == 1 else f"{len(long):,} labels with"
        occur = "occurs" if len(long) == 1 else "occur"
        what = f"{where}: {them} more than {LONGEST_CLASS} characters {occur} once: texts, not classes"
        return LabelProblem(what, "fix or delete these rows, or --set data.label=NAME", long)
    if len(rows) < 2:
        return LabelProblem(f"{where}: only one label: {classes_text(rows)}", "add rows of the other classes")
    if (reason := positive_problem(columns.positive_label, sorted(rows))) is not None:
        fix = "--set data.positive_label=LABEL, or null: the mean F1 of all labels is reported then"
        return LabelProblem(f"{where}: {reason}", fix)
    return None


def positive_problem(positive: str | None, labels: Sequence[str]) -> str | None:
    """Return why F1 cannot refer to a label; None: it can, or none is named.

    Args:
        positive: the label.
        labels: all labels.
    """
    if positive is None or (positive in labels and len(labels) == 2):
        return None
    if positive in labels:
        return f"data.positive_label {positive!r} needs two labels, there are {len(labels)}"
    what = f"data.positive_label {positive!r} is not a label{did_you_mean(positive, labels)}"
    return f"{what}; have {classes_text(labels)}"


def require_positive_label(positive: str | None, labels: Sequence[str]) -> None:
    """Check that F1 can refer to a label of a model.

    Args:
        positive: the label. None: none is named.
        labels: names of the model's classes.

    Raises:
        SpecError: the model has no such label, or not two labels.
    """
    if (what := positive_problem(positive, labels)) is not None:
        raise SpecError(f"cannot score: {what}", fix="--set data.positive_label=LABEL, or null")
