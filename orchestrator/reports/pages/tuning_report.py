"""The report of a fine-tuning: its scores, their table over tasks and seeds, and its charts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from itertools import cycle

from orchestrator.reports.charts.axes import number
from orchestrator.reports.charts.charts import STEP, Chart, Line, Reference, Series, collect, last_step
from orchestrator.reports.charts.style import KINDS
from orchestrator.reports.pages.class_sections import class_tables
from orchestrator.reports.pages.page_parts import HELD_OUT, NONE_YET, PLUS_MINUS, figures_panel, key_figure, key_figures
from orchestrator.reports.pages.run_report import RunReport, reported
from orchestrator.reports.pages.scored_sections import scored_sections
from orchestrator.runs.results import NOT_METRICS, Figure, Results, Scores
from orchestrator.support.formatting import counted
from orchestrator.support.html import Markup, element

SCORED = ("Task", "Metric", "Dev set", "95% interval", "Median", "Best", "Seeds")


class TuningReport(RunReport):
    """The report of a fine-tuning."""

    def results(self) -> Iterator[Markup]:
        """Yield the scores, or the latest measurements; progress and speed; the tables of tasks and of seeds."""
        status = self.status
        if status.results is not None:
            figures = list(_result_figures(status.results))
        else:
            last = {name: self.series[name].last for name in measured(self.series)}
            figures = [
                key_figure(name.removeprefix(HELD_OUT), number(point[1]), f"step {point[0]:,}")
                for name, point in last.items()
                if point
            ]
        done = f"{status.step:,}" if status.step is not None else NONE_YET
        total = f"of {status.steps:,}" if status.steps is not None else "total not known"
        figures.append(key_figure(f"{status.counts.capitalize()} done", done, total))
        if status.counts == "steps":
            figures.append(self.throughput())
        yield key_figures(figures)
        if status.results is not None:
            yield score_table(status.results)
            yield element("p", _selection(status.results), class_="note")
            yield from self._seed_table()
            yield from self._class_tables()

    def charts(self) -> list[Chart]:
        """Return losses, each metric of the dev set, rate and speed; a dot for each run or task of several."""
        if self.status.counts == "tasks":
            return []  # each task has its own metric, so they have no common axis: see the table of scores
        across = self.status.counts.removesuffix("s")
        dev = Line("validation", "validation", self.series.get(f"{HELD_OUT}loss", Series()), joined=across == STEP)
        training = Line("training", "training", self.series.get("train_loss", Series()))
        metrics = (_measured_chart(name, self.series[name], across) for name in measured(self.series))
        return reported([Chart("Loss", (training, dev), across=across), *metrics, *self.training_charts()])

    def seed_charts(self) -> list[Chart]:
        """Return charts of the training loss and of each metric of the dev set, with a line for each seed."""
        found = {seed: collect(reports) for seed, reports in self.seeds.items()}
        last = max((last_step(series) for series in found.values()), default=0)
        names = dict.fromkeys(name for series in found.values() for name in series)
        titles = {"train_loss": "Loss in training", f"{HELD_OUT}loss": "Loss on the dev set"}
        drawn = []
        for name in titles | dict.fromkeys(measured(names)):
            lines = tuple(
                Line(f"seed {seed}", kind, series[name])
                for kind, (seed, series) in zip(cycle(KINDS), found.items(), strict=False)
                if name in series
            )
            drawn.append(Chart(f"{titles.get(name) or _title(name)}, each seed", lines, until=last))
        return reported(drawn)

    def plan_rows(self) -> Iterator[tuple[str, list[str]]]:
        """Yield task, rows and batch."""
        job, train = self.plan["job"], self.plan["job"]["train"]
        yield "Task", [f"{job['task']}, {counted(len(job['seeds']), 'seed')}, {counted(train['epochs'], 'epoch')}"]
        splits = {
            task: ", ".join(f"{split} {count:,}" for split, count in rows.items() if count)
            for task, rows in self.plan["rows"].items()
        }
        if splits:
            yield "Rows", [element("div", f"{task}: {text}") for task, text in splits.items()]
        processes = counted(self.plan["world_size"], "process", "processes")
        yield "Batch", [f"{train['global_batch_size']:,} rows a step on {processes}"]

    def _seed_table(self) -> Iterator[Markup]:
        """Yield a table with a row for each seed, of a task that was trained with several."""
        runs = self.result.get("seeds") or []
        names = [name for name in (runs[0]["metrics"] if runs else ()) if name not in NOT_METRICS]
        if not names:
            return
        rows = (
            (
                f"{run['seed']}{' best' if run['seed'] == self.result.get('best_seed') else ''}",
                *(number(run["metrics"][name]) for name in names),
                f"{run['best_step']:,}" if run.get("best_step") is not None else NONE_YET,
            )
            for run in runs
        )
        yield figures_panel(("Seed", *names, "best step"), rows)

    def _class_tables(self) -> Iterator[Markup]:
        """Yield tables and figures of the classes of each scored set of one task; of several seeds of the best."""
        best = self.result.get("best_seed")
        runs = [run for run in self.result.get("seeds") or [] if run["seed"] == best] or [self.result]
        yield from class_tables(runs[0].get("sets", {}), best)
        yield from scored_sections(self.scored.get("", b""))  # of several seeds the rows of the best


def _selection(results: Results) -> str:
    """Return what the dev set chose, and which scores are of other rows."""
    if any(name.startswith("test_") for scores in results.scores for name in scores.metrics):
        return "The dev set chose checkpoint and seed. Metrics test_... are of held-back rows, which chose nothing."
    return "Scores are those of the dev set, which also chose checkpoint and seed, so they are optimistic."


def measured(series: Mapping[str, object]) -> list[str]:
    """Return the names of the metrics of the dev set among those of a job."""
    return [name for name in series if name.startswith(HELD_OUT) and name.removeprefix(HELD_OUT) not in NOT_METRICS]


def score_table(results: Results) -> Markup:
    """Return a table with a row for each task, or cell of GLUE's table, and metric."""
    rows = [_score_row(scores, name, found) for scores in results.scores for name, found in scores.metrics.items()]
    if results.average is not None:
        rows.append(
            ("Average", "of the cells that the paper on BERT averages", number(results.average), "", "", "", "")
        )
    if results.glue_score is not None:
        rows.append(("GLUE score", "mean over tasks", number(results.glue_score), "", "", "", ""))
    return figures_panel(SCORED, rows)


def _measured_chart(name: str, found: Series, across: str) -> Chart:
    """Return the chart of a metric of the dev set; of several runs with their mean."""
    values = [value for _, value in found.points]
    mean = (Reference("mean", statistics.fmean(values)),) if across != STEP and len(values) > 1 else ()
    line = Line("dev set", "validation", found, joined=across == STEP)
    return Chart(_title(name), (line,), references=mean, across=across)


def _result_figures(results: Results) -> Iterator[Markup]:
    """Yield GLUE's means, or the metrics of the one task."""
    if results.glue_score is not None:
        if results.average is not None:
            yield key_figure("Average", number(results.average), "of the paper's cells")
        yield key_figure("GLUE score", number(results.glue_score), "mean over tasks")
        return
    for scores in results.scores:
        for name, found in scores.metrics.items():
            yield key_figure(name, number(found.mean), _of(scores, found))
        if scores.collapsed:
            yield key_figure("Collapsed", str(scores.collapsed), f"of {counted(scores.seeds, 'run')}")


def _of(scores: Scores, found: Figure) -> str:
    if found.sd is None:
        return f"{scores.task}, step {scores.best_step:,}" if scores.best_step is not None else scores.task
    return f"{PLUS_MINUS} {number(found.sd)}, {counted(scores.seeds, 'seed')}"


def _score_row(scores: Scores, name: str, found: Figure) -> tuple[str, ...]:
    spread = f" {PLUS_MINUS} {number(found.sd)}" if found.sd is not None else ""
    rest = [number(value) if value is not None else "" for value in (found.median, found.max)]
    seeds = str(scores.seeds) + (f", {scores.collapsed} collapsed" if scores.collapsed else "")
    rate = f" (most frequent label {number(scores.base_rate)})" if name == "accuracy" and scores.base_rate else ""
    ends = "" if found.low is None or found.high is None else f"{number(found.low)} to {number(found.high)}"
    return (scores.task, f"{name}{rate}", f"{number(found.mean)}{spread}", ends, *rest, seeds)


def _title(name: str) -> str:
    return name.removeprefix(HELD_OUT).replace("_", " ").capitalize()
