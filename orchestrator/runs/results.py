"""What fine-tunings and evaluations came to, out of the job's result.json, in one form for all of them.

The job writes figures of one run; of several seeds their mean, standard deviation, median and maximum; and of all of
GLUE a table whose cells are in percent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from train_jobs.config.base import Config

APART = ("loss", "collapsed")  # told beside the metrics
PLUS_MINUS = "+-"


class Figure(Config):
    """A metric over seeds."""

    mean: float
    """Of all seeds; of one its own."""
    sd: float | None = None
    """Standard deviation of a sample; None: there is one seed."""
    median: float | None = None
    """Of all seeds."""
    max: float | None = None
    """The best."""

    @property
    def text(self) -> str:
        """`0.8725`, `0.8725 +- 0.0103`."""
        return f"{self.mean:.4f}" + ("" if self.sd is None else f" {PLUS_MINUS} {self.sd:.4f}")


class Scores(Config):
    """What a task was scored with on its dev set, or a model on a file."""

    task: str
    """Its name, or that of a cell of GLUE's table."""
    metrics: dict[str, Figure]
    """Name -> figure, in shares of 1."""
    seeds: int = 1
    """Runs that they are of."""
    collapsed: int = 0
    """How many of those learned nothing."""
    best_step: int | None = None
    """Optimizer step of the best checkpoint, of a single run."""

    @property
    def text(self) -> str:
        """All metrics in a line."""
        parts = [f"{name} {figure.text}" for name, figure in self.metrics.items()]
        more = [f"{self.seeds} seeds"] if self.seeds > 1 else []
        more += [f"{self.collapsed} collapsed"] if self.collapsed else []
        more += [f"best at step {self.best_step}"] if self.best_step is not None else []
        return ", ".join(parts) + (f"; {', '.join(more)}" if more else "")


class Results(Config):
    """All scores of a run, and of GLUE their means."""

    scores: list[Scores] = Field(default=[])
    """One of each task; of all of GLUE the cells of the table in BERT's paper."""
    average: float | None = None
    """GLUE: mean of the cells that the paper averages, in shares of 1."""
    glue_score: float | None = None
    """GLUE: mean over tasks, as its server takes it, in shares of 1."""
    submission: str | None = None
    """GLUE: the zip for its server, below the run's outputs."""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Label and text, a line each."""
        rows = [(scores.task, scores.text) for scores in self.scores]
        if self.average is not None:
            rows.append(("average", f"{self.average:.4f}, of the cells that the paper on BERT averages"))
        if self.glue_score is not None:
            rows.append(("GLUE score", f"{self.glue_score:.4f}, the mean over tasks"))
        if self.submission is not None:
            rows.append(("for GLUE", self.submission))
        return rows


def read_results(result: Mapping[str, Any]) -> Results | None:
    """The scores in a job's result.json; None: it has none.

    Args:
        result: as the job wrote it.
    """
    if "table" in result:
        return _glue(result)
    return Results(scores=[_task(result)]) if "metrics" in result else None


def _glue(result: Mapping[str, Any]) -> Results:
    table = result["table"]
    cells = [
        Scores(
            task=cell["name"],
            metrics={
                cell["metric"]: Figure(mean=cell["mean"] / 100, sd=cell["sd"] / 100 if cell["seeds"] > 1 else None)
            },
            seeds=cell["seeds"],
            collapsed=cell["collapsed"],
        )
        for cell in table["cells"]
        for several in [cell["seeds"] > 1]
    ]
    average, score = table["average"], table["glue_score"]
    return Results(
        scores=cells,
        average=average / 100 if average is not None else None,
        glue_score=score / 100,
        submission=result.get("submission"),
    )


def _task(result: Mapping[str, Any]) -> Scores:
    """Of one task, or of an evaluation; a figure is a number, or one over seeds."""
    found, seeds = result["metrics"], result.get("seeds")
    metrics = {
        name: Figure(**value) if isinstance(value, Mapping) else Figure(mean=value)
        for name, value in found.items()
        if name not in APART
    }
    return Scores(
        task=str(result["task"]),
        metrics=metrics,
        seeds=len(seeds) if seeds else 1,
        collapsed=int(result["collapsed"] if seeds else found.get("collapsed", 0)),
        best_step=result.get("best_step"),
    )
