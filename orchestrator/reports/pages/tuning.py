"""What a fine-tuning came to: its scores, their table over tasks and seeds, and its charts."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from itertools import cycle
from typing import Any

from orchestrator.reports.charts.charts import STEP, Chart, Line, Reference
from orchestrator.reports.charts.notation import counted, number
from orchestrator.reports.charts.palette import KINDS
from orchestrator.reports.charts.series import Series, collect, last_step
from orchestrator.reports.pages.key_figures import singles, throughput
from orchestrator.reports.pages.parts import HELD_OUT, NONE_YET, PLUS_MINUS, figures_panel, key_figure, key_figures
from orchestrator.runs.results import APART, Figure, Results, Scores
from orchestrator.runs.status import RunStatus
from orchestrator.support.html import Markup, element

SCORED = ("Task", "Metric", "Dev set", "Median", "Best", "Seeds")


def tuning_figures(status: RunStatus, series: Mapping[str, Series]) -> Markup:
    """The scores, or what was measured last; how far it is; how fast."""
    if status.results is not None:
        figures = list(_result_figures(status.results))
    else:
        figures = [key_figure(name, number(value), f"step {step:,}") for name, step, value in _last(series)]
    done = f"{status.step:,}" if status.step is not None else NONE_YET
    total = f"of {status.steps:,}" if status.steps is not None else "of as many as the rows make"
    figures.append(key_figure(f"{status.counts.capitalize()} done", done, total))
    if status.counts == "steps":
        figures.append(throughput(series))
    return key_figures(figures)


def score_table(results: Results) -> Markup:
    """A row for each task, or cell of GLUE's table, and metric."""
    rows = [_score_row(scores, name, found) for scores in results.scores for name, found in scores.metrics.items()]
    if results.average is not None:
        rows.append(("Average", "of the cells that the paper on BERT averages", number(results.average), "", "", ""))
    if results.glue_score is not None:
        rows.append(("GLUE score", "mean over tasks", number(results.glue_score), "", "", ""))
    return figures_panel(SCORED, rows)


def seed_table(result: Mapping[str, Any]) -> Iterator[Markup]:
    """A row for each seed of a task that was trained with several."""
    runs = result.get("seeds") or []
    names = [name for name in (runs[0]["metrics"] if runs else ()) if name not in APART]
    if not names:
        return
    rows = (
        (
            f"{run['seed']}{' best' if run['seed'] == result.get('best_seed') else ''}",
            *(number(run["metrics"][name]) for name in names),
            f"{run['best_step']:,}" if run.get("best_step") is not None else NONE_YET,
        )
        for run in runs
    )
    yield figures_panel(("Seed", *names, "best step"), rows)


def tuning_charts(status: RunStatus, series: Mapping[str, Series], plan: Mapping[str, Any]) -> list[Chart]:
    """Losses, each metric of the dev set, rate and speed; a dot for each run or task where there are several."""
    if status.counts == "tasks":
        return []  # each is another metric: the table tells them
    across = status.counts.removesuffix("s")
    each = across != STEP
    losses = Chart(
        "Loss",
        (
            Line("training", "training", series.get("train_loss", Series())),
            Line("validation", "validation", series.get(f"{HELD_OUT}loss", Series()), joined=not each),
        ),
        across=across,
    )
    measured = [name for name in series if name.startswith(HELD_OUT) and name.removeprefix(HELD_OUT) not in APART]
    drawn = [losses, *(_measured(name, series[name], across) for name in measured), *singles(series, plan)]
    return [chart for chart in drawn if chart.drawn or chart.left_out]


def seed_charts(seeds: Mapping[int, Iterable[Mapping[str, Any]]]) -> list[Chart]:
    """The loss in training and each metric of the dev set over steps, a line for each seed that has reported."""
    found = {seed: collect(reports) for seed, reports in seeds.items()}
    last = max((last_step(series) for series in found.values()), default=0)
    names = dict.fromkeys(name for series in found.values() for name in series)
    measured = [name for name in names if name.startswith(HELD_OUT) and name.removeprefix(HELD_OUT) not in APART]
    titles = {"train_loss": "Loss in training", f"{HELD_OUT}loss": "Loss on the dev set"}
    drawn = []
    for name in titles | dict.fromkeys(measured):
        lines = [
            Line(f"seed {seed}", kind, series[name])
            for kind, (seed, series) in zip(cycle(KINDS), found.items(), strict=False)
            if name in series
        ]
        drawn.append(Chart(f"{titles.get(name) or _title(name)}, each seed", tuple(lines), until=last))
    return [chart for chart in drawn if chart.drawn or chart.left_out]


def _measured(name: str, found: Series, across: str) -> Chart:
    """A metric of the dev set; of several runs with their mean."""
    values = [value for _, value in found.points]
    mean = (Reference("mean", statistics.fmean(values)),) if across != STEP and len(values) > 1 else ()
    line = Line("dev set", "validation", found, joined=across == STEP)
    return Chart(_title(name), (line,), references=mean, across=across)


def tuning_rows(plan: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Task, rows and batch of a plan."""
    job, train = plan["job"], plan["job"]["train"]
    yield "Task", [f"{job['task']}, {counted(len(job['seeds']), 'seed')}, {counted(train['epochs'], 'epoch')}"]
    rows = [element("div", f"{task}: {_split_text(found)}") for task, found in plan["rows"].items()]
    if rows:
        yield "Rows", list(rows)
    batch = f"{train['global_batch_size']:,} rows a step on {counted(plan['world_size'], 'process', 'processes')}"
    yield "Batch", [batch]


def _split_text(rows: Mapping[str, int | None]) -> str:
    return ", ".join(f"{split} {count:,}" for split, count in rows.items() if count)


def _result_figures(results: Results) -> Iterator[Markup]:
    """GLUE's means, or the metrics of the one task."""
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


def _last(series: Mapping[str, Series]) -> Iterator[tuple[str, int, float]]:
    for name, found in series.items():
        short = name.removeprefix(HELD_OUT)
        if name.startswith(HELD_OUT) and short not in APART and found.last:
            yield short, *found.last


def _score_row(scores: Scores, name: str, found: Figure) -> tuple[str, ...]:
    spread = f" {PLUS_MINUS} {number(found.sd)}" if found.sd is not None else ""
    rest = [number(value) if value is not None else "" for value in (found.median, found.max)]
    seeds = str(scores.seeds) + (f", {scores.collapsed} collapsed" if scores.collapsed else "")
    return (scores.task, name, f"{number(found.mean)}{spread}", *rest, seeds)


def _title(name: str) -> str:
    return name.removeprefix(HELD_OUT).replace("_", " ").capitalize()
