"""Tables over seeds and over GLUE, prediction files, and the zip file for GLUE's server."""

from __future__ import annotations

import math
import statistics
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from train_jobs.artifacts.csv_tables import tsv_text
from train_jobs.artifacts.files import NewFile
from train_jobs.config import DataError
from train_jobs.config.tasks import GLUE_SUITE, GLUE_TASKS, SentenceTask
from train_jobs.engine.runtime.storage import storage_errors

HIGHEST_SIMILARITY = 5.0  # of STS-B; the server refuses numbers outside 0 to 5
FILES: Mapping[str, tuple[SentenceTask, int]] = {
    name: (task, task.files[split].rows or 0) for task in GLUE_SUITE.values() for split, name in task.predicted.items()
}
"""Name of a file without `.tsv` -> its task, and its rows."""


class Cell(NamedTuple):
    """A column of the table."""

    name: str
    task: str
    metric: str
    """Name for people."""
    key: str
    """Key in a result."""


PAPER = (
    Cell("MNLI-m", "MNLI", "accuracy", "dev_matched_score"),
    Cell("MNLI-mm", "MNLI", "accuracy", "dev_mismatched_score"),
    Cell("QQP", "QQP", "F1", "f1"),
    Cell("QNLI", "QNLI", "accuracy", "accuracy"),
    Cell("SST-2", "SST-2", "accuracy", "accuracy"),
    Cell("CoLA", "CoLA", "Matthews", "matthews"),
    Cell("STS-B", "STS-B", "Spearman", "spearman"),
    Cell("MRPC", "MRPC", "F1", "f1"),
    Cell("RTE", "RTE", "accuracy", "accuracy"),
)
"""Table 1 of Devlin et al. 2019. Its average is the mean of these nine: without WNLI, MNLI counted twice."""
ONE_SET = Cell("MNLI", "MNLI", "accuracy", "accuracy")  # in place of both with a dev file of the user's own
OMITTED = Cell("WNLI", "WNLI", "accuracy", "accuracy")  # by the paper, since no model beat the more frequent label then


def summarise_seeds(task: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise the results of several seeds.

    Args:
        task: name of the task.
        runs: results of the seeds, each with seed and metrics.

    Returns:
        task; metrics: name -> mean, sd (of a sample), median, max, low and high (95% interval); collapsed: number of
        collapsed runs; best_seed: the one with the highest score on dev; seeds: the results.
    """
    figures = {
        name: {
            "mean": statistics.fmean(values),
            "sd": statistics.stdev(values) if len(values) > 1 else 0.0,
            "median": statistics.median(values),
            "max": max(values),
            **_mean_interval(name, runs),
        }
        for name in runs[0]["metrics"]
        if (values := [run["metrics"][name] for run in runs])
    }
    best = max(runs, key=lambda run: run["metrics"]["score"])
    return {
        "task": task,
        "metrics": figures,
        "collapsed": sum(run["metrics"]["collapsed"] > 0 for run in runs),
        "best_seed": best["seed"],
        "seeds": list(runs),
    }


def _mean_interval(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean ends of a metric's interval over seeds, or nothing if a run has no interval."""
    # All seeds are scored on the same rows, so the interval of their mean is about as wide as that of one.
    ends = [run["intervals"][name] for run in runs if name in run.get("intervals", {})]
    if len(ends) < len(runs):
        return {}
    low, high = map(statistics.fmean, zip(*ends, strict=True))
    return {"low": low, "high": high}


def glue_score(scores: Mapping[str, float]) -> float:
    """Return the GLUE score: the mean over tasks, where two metrics or two dev sets of a task count by their mean.

    Args:
        scores: task -> its score; those of GLUE_TASKS that exist are averaged, and AX is not.
    """
    return fmean(scores[name] for name in GLUE_TASKS if name in scores)


def glue_table(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of the paper's table, in percent.

    Args:
        results: task -> its result, of one seed or of several; those of GLUE_TASKS that exist.

    Returns:
        cells, each with name, task, metric, mean, sd, low and high (95% interval), base_rate (share of the most
        frequent label, for accuracy), seeds, collapsed; average of the existing cells of the paper, and their number,
        average_of; glue_score, the mean over tasks as GLUE defines it, and glue_score_of.
    """
    cells = [_filled(cell, results[cell.task]) for cell in _columns(results)]
    averaged = [cell["mean"] for cell in cells if cell["name"] != OMITTED.name]
    # The paper's columns use one metric for each task; GLUE's score averages all metrics of a task first.
    scores = {name: 100 * _figure(results[name], "score")[0] for name in GLUE_TASKS if name in results}
    return {
        "cells": cells,
        "average": statistics.fmean(averaged) if averaged else None,
        "average_of": len(averaged),
        "glue_score": glue_score(scores),
        "glue_score_of": len(scores),
    }


def _columns(results: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
    """Return the columns that results have figures for."""
    found = [cell for cell in (*PAPER, OMITTED) if cell.key in results.get(cell.task, {}).get("metrics", {})]
    return [ONE_SET, *found] if "MNLI" in results and all(cell.task != "MNLI" for cell in found) else found


def table_text(table: Mapping[str, Any]) -> str:
    """Return the table for a terminal, a line for each cell."""
    lines = [
        "GLUE on its dev sets, in percent, mean +- standard deviation over seeds; metrics of BERT's paper (table 1)",
        "dev also chose checkpoint and seed, so its scores are optimistic; 95%: interval over resamples of the rows",
    ]
    rows = [(cell, _cell_text(cell)) for cell in table["cells"]]
    lines += [text for cell, text in rows if cell["name"] != OMITTED.name]
    if table["average"] is not None:
        part = "" if table["average_of"] == len(PAPER) else f" of {len(PAPER)}"
        lines.append(f"  {'average':<10}{table['average']:6.1f}         of the {table['average_of']}{part} above")
    lines += [f"{text}; not in the paper" for cell, text in rows if cell["name"] == OMITTED.name]
    lines.append(
        f"  {'GLUE score':<10}{table['glue_score']:6.1f}         of {table['glue_score_of']} of {len(GLUE_TASKS)}"
        " tasks, one with two metrics or two sets by their mean"
    )
    return "\n".join(lines)


def _cell_text(cell: Mapping[str, Any]) -> str:
    collapsed = f", {cell['collapsed']} collapsed" if cell["collapsed"] else ""
    seeds = f"{cell['seeds']} seed{'s' if cell['seeds'] > 1 else ''}"
    spread = f"+- {cell['sd']:4.1f}" if cell["seeds"] > 1 else ""
    ends = f", 95% {cell['low']:.1f} to {cell['high']:.1f}" if cell["low"] is not None else ""
    rate = f", most frequent label {cell['base_rate']:.1f}" if cell["base_rate"] is not None else ""
    return f"  {cell['name']:<10}{cell['mean']:6.1f} {spread:<8}{cell['metric']}{ends}{rate}, {seeds}{collapsed}"


def _filled(cell: Cell, result: Mapping[str, Any]) -> dict[str, Any]:
    mean, sd = _figure(result, cell.key)
    seeds = result.get("seeds")
    low, high = _interval(result, cell.key)
    rate = _base_rate((seeds[0] if seeds else result).get("sets", {}), cell)
    return {
        "name": cell.name,
        "task": cell.task,
        "metric": cell.metric,
        "mean": 100 * mean,
        "sd": 100 * sd,
        "low": None if low is None else 100 * low,
        "high": None if high is None else 100 * high,
        "base_rate": None if rate is None else 100 * rate,
        "seeds": len(seeds) if seeds else 1,
        "collapsed": int(result["collapsed"] if seeds else result["metrics"]["collapsed"]),
    }


def _figure(result: Mapping[str, Any], name: str) -> tuple[float, float]:
    """Return mean and standard deviation of a metric."""
    found = result["metrics"][name]
    return (found["mean"], found["sd"]) if isinstance(found, Mapping) else (found, 0.0)


def _interval(result: Mapping[str, Any], name: str) -> tuple[float | None, float | None]:
    """Return the ends of a metric's 95% interval, of several seeds their means; None if they are not known."""
    found = result["metrics"][name]
    if isinstance(found, Mapping):
        return found.get("low"), found.get("high")
    low, high = result.get("intervals", {}).get(name, (None, None))
    return low, high


def _base_rate(sets: Mapping[str, Mapping[str, Any]], cell: Cell) -> float | None:
    """Return the accuracy of always predicting the most frequent label; None for other metrics than accuracy."""
    facts = sets.get(cell.key.removesuffix("_score")) or next(iter(sets.values()), {})
    return facts.get("base_rate") if cell.metric == "accuracy" else None


def predictions_text(task: SentenceTask, predictions: Sequence[float]) -> str:
    """Return the text of a prediction file: class names (see `tsv_text`), or numbers, for GLUE with three decimals.

    Args:
        task: task of the predictions.
        predictions: ids of classes, or numbers, in the order of the test file.
    """
    rows = (f"{number}\t{_written(task, value)}\n" for number, value in enumerate(predictions))
    return "index\tprediction\n" + "".join(rows)


def collect_predictions(output: Path) -> dict[str, list[float]]:
    """Return the predictions of a job's tasks, by the names in FILES; MNLI's model makes those of AX."""
    found = {}
    for name, (task, _) in FILES.items():
        path = output / ("MNLI" if task.name == "AX" else task.name) / "predictions" / f"{name}.tsv"
        if path.is_file():
            found[name] = read_predictions(task, path)
    return found


def read_predictions(task: SentenceTask, path: Path) -> list[float]:
    """Read a prediction file that `predictions_text` created."""
    ids = {tsv_text(name): number for number, name in enumerate(task.labels)}
    written = (line.split("\t")[1] for line in path.read_text(encoding="utf-8").splitlines()[1:])
    return [float(value) if task.regression else ids[value] for value in written]


def write_submission(path: Path, predictions: Mapping[str, Sequence[float]]) -> None:
    """Write the zip file that GLUE's server accepts.

    Args:
        path: path of the zip file.
        predictions: name in FILES -> predictions in the order of the test file.

    Raises:
        DataError: a file is missing or unknown, or has a wrong number of predictions, or invalid numbers: the server
            would refuse it, and count it as an attempt.
        StorageError: the folder cannot be written; no partial file is left.
    """
    # Checked before anything is written: the server limits attempts and counts those that it rejects.
    problems = [f"{name}.tsv: missing" for name in FILES if name not in predictions]
    problems += [f"{name}.tsv: unknown to GLUE's server" for name in predictions if name not in FILES]
    for name, values in predictions.items():
        rows = FILES[name][1] if name in FILES else len(values)
        if len(values) != rows:
            problems.append(f"{name}.tsv: {len(values):,} predictions, need {rows:,}")
        if strange := [row for row, value in enumerate(values) if not math.isfinite(value)]:
            problems.append(f"{name}.tsv: row {strange[0]}: {values[strange[0]]} is not a finite number")
    if problems:
        raise DataError(
            "GLUE's server would reject these predictions",
            problems=problems,
            fix="predict every task's official test set, AX with the model of MNLI",
        )
    # Complete and synced: result.json, which names the zip file, may otherwise reach the disk before its content.
    with storage_errors(path.parent, path.name):
        new = NewFile(path)
        try:
            with zipfile.ZipFile(new.stream, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, (task, _) in FILES.items():
                    archive.writestr(f"{name}.tsv", predictions_text(task, predictions[name]))
            new.commit()
        except BaseException:
            new.discard()
            raise


def _written(task: SentenceTask, value: float) -> str:
    if not task.regression:
        return tsv_text(task.labels[int(value)])
    return f"{min(max(value, 0.0), HIGHEST_SIMILARITY):.3f}" if task.suite else repr(float(value))
