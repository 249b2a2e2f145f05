"""The zip that GLUE's server takes: eleven files, its own names of labels, numbers of STS-B from 0 to 5."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from train_jobs.config import DataError
from train_jobs.config.tasks import GLUE_SUITE, SentenceTask

HIGHEST_SIMILARITY = 5.0  # of STS-B; the server refuses what is not from 0 to this
FILES: Mapping[str, tuple[SentenceTask, int]] = {
    name: (task, task.files[split].rows or 0) for task in GLUE_SUITE.values() for split, name in task.predicted.items()
}
"""Name of a file without `.tsv` -> its task, and its rows."""


def submission_text(task: SentenceTask, predictions: Sequence[float]) -> str:
    """A file of predictions: ids of classes become the server's names, numbers have three decimals.

    Args:
        task: whose they are.
        predictions: ids, or numbers, in the order of the test file.
    """
    rows = (f"{number}\t{_written(task, value)}\n" for number, value in enumerate(predictions))
    return "index\tprediction\n" + "".join(rows)


def collected(output: Path) -> dict[str, list[float]]:
    """The predictions in a job's folders of tasks, by the names in FILES; those of AX are made by MNLI's model."""
    found = {}
    for name, (task, _) in FILES.items():
        path = output / ("MNLI" if task.name == "AX" else task.name) / "predictions" / f"{name}.tsv"
        if path.is_file():
            found[name] = read_predictions(task, path)
    return found


def read_predictions(task: SentenceTask, path: Path) -> list[float]:
    """Predictions of a file that `submission_text` made."""
    ids = {name: number for number, name in enumerate(task.labels)}
    written = (line.split("\t")[1] for line in path.read_text(encoding="utf-8").splitlines()[1:])
    return [float(value) if task.regression else ids[value] for value in written]


def write_submission(path: Path, predictions: Mapping[str, Sequence[float]]) -> None:
    """Writes the zip.

    Args:
        path: of the zip.
        predictions: name in FILES -> predictions in the order of the test file.

    Raises:
        DataError: a file is missing or unknown, or has a wrong number of predictions, or numbers that are none: the
            server would refuse it, and counts it as an attempt.
    """
    problems = [f"{name}.tsv: missing" for name in FILES if name not in predictions]
    problems += [f"{name}.tsv: GLUE's server knows no such file" for name in predictions if name not in FILES]
    for name, values in predictions.items():
        rows = FILES[name][1] if name in FILES else len(values)
        if len(values) != rows:
            problems.append(f"{name}.tsv: {len(values):,} predictions, need {rows:,}")
        if strange := [row for row, value in enumerate(values) if not math.isfinite(value)]:
            problems.append(f"{name}.tsv: row {strange[0]}: {values[strange[0]]} is no prediction")
    if problems:
        raise DataError(
            "GLUE's server would refuse these predictions",
            problems=problems,
            fix="predict every task's official test set, AX with the model of MNLI",
        )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (task, _) in FILES.items():
            archive.writestr(f"{name}.tsv", submission_text(task, predictions[name]))


def _written(task: SentenceTask, value: float) -> str:
    if task.regression:
        return f"{min(max(value, 0.0), HIGHEST_SIMILARITY):.3f}"
    return task.labels[int(value)]
