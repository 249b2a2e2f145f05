"""Results of fine-tunings and evaluations, from the job's result.json, in one form for all of them.

The job writes figures of one run; of several seeds their mean, standard deviation, median and maximum; and of all of
GLUE a table whose cells are in percent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from train_jobs.config.fields import Config

NOT_METRICS = ("loss", "collapsed")  # not metrics of the task
PLUS_MINUS = "+-"


class Figure(Config):
    """A metric over seeds."""

    mean: float
    """Mean over seeds."""
    sd: float | None = None
    """Sample standard deviation over seeds; None: there is one seed."""
    median: float | None = None
    """Median over seeds."""
    max: float | None = None
    """Best seed."""
    low: float | None = None
    """Lower end of the 95% interval over resamples of the rows; of several seeds its mean. None: not known."""
    high: float | None = None
    """Upper end."""

    @property
    def interval(self) -> str:
        """The 95% interval as `0.8412-0.9001`; empty if it is not known."""
        return "" if self.low is None or self.high is None else f"{self.low:.4f} to {self.high:.4f}"

    @property
    def text(self) -> str:
        """`0.8725 (95%: 0.8412 to 0.9001)`, `0.8725 +- 0.0103`."""
        spread = "" if self.sd is None else f" {PLUS_MINUS} {self.sd:.4f}"
        return f"{self.mean:.4f}{spread}" + (f" (95%: {self.interval})" if self.interval else "")


class Scores(Config):
    """Scores of a task on its dev set, or of a model on a file."""

    task: str
    """Name of the task, or of a cell of GLUE's table."""
    metrics: dict[str, Figure]
    """Name -> figure, as a fraction of 1."""
    seeds: int = 1
    """Number of runs with different seeds."""
    collapsed: int = 0
    """Number of those that learned nothing."""
    base_rate: float | None = None
    """Share of the most frequent label, the accuracy of a constant prediction. None: the task has no classes."""
    best_step: int | None = None
    """Optimizer step of the best checkpoint; None: there are several runs."""

    @property
    def text(self) -> str:
        """All metrics in one line."""
        parts = [f"{name} {figure.text}" for name, figure in self.metrics.items()]
        more = [f"most frequent label {self.base_rate:.4f}"] if self.base_rate is not None else []
        more += [f"{self.seeds} seeds"] if self.seeds > 1 else []
        more += [f"{self.collapsed} collapsed"] if self.collapsed else []
        more += [f"best at step {self.best_step}"] if self.best_step is not None else []
        return ", ".join(parts) + (f"; {', '.join(more)}" if more else "")


class Results(Config):
    """All scores of a run, and of GLUE their means."""

    scores: list[Scores] = Field(default=[])
    """One for each task; of all of GLUE the cells of the table in BERT's paper."""
    average: float | None = None
    """GLUE: mean of the cells that the paper averages, as a fraction of 1."""
    glue_score: float | None = None
    """GLUE: mean over tasks, as its server computes it, as a fraction of 1."""
    submission: str | None = None
    """GLUE: the zip file for its server, below the run's outputs."""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line."""
        rows = [(scores.task, scores.text) for scores in self.scores]
        if self.average is not None:
            rows.append(("average", f"{self.average:.4f}, of the cells that the paper on BERT averages"))
        if self.glue_score is not None:
            rows.append(("GLUE score", f"{self.glue_score:.4f}, the mean over tasks"))
        if self.submission is not None:
            rows.append(("for GLUE", self.submission))
        return rows


def read_results(result: Mapping[str, Any]) -> Results | None:
    """Return the scores in a job's result.json, None if it has none."""
    if "table" in result:
        return _glue(result)
    return Results(scores=[_task(result)]) if "metrics" in result else None


def _glue(result: Mapping[str, Any]) -> Results:
    """Return the cells of GLUE's table, whose figures are in percent."""
    table = result["table"]
    cells = []
    for cell in table["cells"]:
        # the table has percent, as the paper does; everywhere else scores are fractions of 1
        shares = {key: cell[key] / 100 for key in ("mean", "low", "high", "base_rate") if cell.get(key) is not None}
        rate = shares.pop("base_rate", None)
        figure = Figure(**shares, sd=cell["sd"] / 100 if cell["seeds"] > 1 else None)
        facts = {"seeds": cell["seeds"], "collapsed": cell["collapsed"], "base_rate": rate}
        cells.append(Scores(task=cell["name"], metrics={cell["metric"]: figure}, **facts))
    return Results(
        scores=cells,
        average=table["average"] / 100 if table["average"] is not None else None,
        glue_score=table["glue_score"] / 100,
        submission=result.get("submission"),
    )


def _task(result: Mapping[str, Any]) -> Scores:
    """Return the scores of one task or evaluation; a figure is a number, or a table of figures over seeds."""
    found, seeds = result["metrics"], result.get("seeds")
    figures = {name: dict(value) if isinstance(value, Mapping) else {"mean": value} for name, value in found.items()}
    for name, (low, high) in result.get("intervals", {}).items():
        if name in figures:
            figures[name] |= {"low": low, "high": high}
    sets = (seeds[0] if seeds else result).get("sets", {}).values()
    rates = [one["base_rate"] for one in sets if "base_rate" in one][:1]
    return Scores(
        task=str(result["task"]),
        metrics={name: Figure(**figure) for name, figure in figures.items() if name not in NOT_METRICS},
        seeds=len(seeds) if seeds else 1,
        collapsed=int(result["collapsed"] if seeds else found.get("collapsed", 0)),
        base_rate=sum(rates) / len(rates) if rates else None,
        best_step=result.get("best_step"),
    )
