"""What runs with several seeds come to, and those of all tasks of GLUE: the table of the paper on BERT."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from train_jobs.config.tasks import GLUE_TASKS
from train_jobs.tasks.sentences.glue import glue_score


class Cell(NamedTuple):
    """A column of the table."""

    name: str
    task: str
    metric: str
    """As people call it."""
    key: str
    """As a result has it."""


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
OMITTED = Cell("WNLI", "WNLI", "accuracy", "accuracy")  # by the paper, since nothing beat the commoner label then


def together(task: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean, standard deviation (of a sample), median and maximum of each metric over the seeds."""
    figures = {
        name: {
            "mean": statistics.fmean(values),
            "sd": statistics.stdev(values) if len(values) > 1 else 0.0,
            "median": statistics.median(values),
            "max": max(values),
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


def glue_table(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of the paper's table, in percent.

    Args:
        results: task -> its result, of one seed or of several; those of GLUE_TASKS that exist.

    Returns:
        cells, each with name, task, metric, mean, sd, seeds, collapsed; average, of the paper's cells that there are,
        and average_of, how many these are; glue_score, the mean over tasks as GLUE takes it, and glue_score_of.
    """
    cells = [_filled(cell, results[cell.task]) for cell in (*PAPER, OMITTED) if cell.task in results]
    averaged = [cell["mean"] for cell in cells if cell["name"] != OMITTED.name]
    scores = {name: 100 * _figure(results[name], "score")[0] for name in GLUE_TASKS if name in results}
    return {
        "cells": cells,
        "average": statistics.fmean(averaged) if averaged else None,
        "average_of": len(averaged),
        "glue_score": glue_score(scores),
        "glue_score_of": len(scores),
    }


def table_text(table: Mapping[str, Any]) -> str:
    """The table for a terminal, a line for each cell."""
    lines = [
        "GLUE on its dev sets, in percent, mean +- standard deviation over seeds; metrics of BERT's paper (table 1)"
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
    return f"  {cell['name']:<10}{cell['mean']:6.1f} {spread:<8}{cell['metric']}, {seeds}{collapsed}"


def _filled(cell: Cell, result: Mapping[str, Any]) -> dict[str, Any]:
    mean, sd = _figure(result, cell.key)
    seeds = result.get("seeds")
    return {
        "name": cell.name,
        "task": cell.task,
        "metric": cell.metric,
        "mean": 100 * mean,
        "sd": 100 * sd,
        "seeds": len(seeds) if seeds else 1,
        "collapsed": int(result["collapsed"] if seeds else result["metrics"]["collapsed"]),
    }


def _figure(result: Mapping[str, Any], name: str) -> tuple[float, float]:
    """Mean and standard deviation of a metric."""
    found = result["metrics"][name]
    return (found["mean"], found["sd"]) if isinstance(found, Mapping) else (found, 0.0)
