"""What a run came to: its key figures and its charts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.reports.charts.charts import Chart, Line, Reference, figure
from orchestrator.reports.charts.corridors import frequencies_alone, levels, published
from orchestrator.reports.charts.notation import number, percent
from orchestrator.reports.charts.series import Series, last_step
from orchestrator.reports.pages.parts import NONE_YET, key_figure, key_figures
from orchestrator.runs.status import RunState, RunStatus
from orchestrator.support.html import Markup, element

PAIRS = (  # what is measured in training and on held-out text: metric, title, in shares of one
    ("mlm_loss", "MLM loss (nats per token)", False),
    ("mlm_accuracy", "MLM accuracy", True),
    ("nsp_loss", "NSP loss (nats per pair)", False),
    ("nsp_accuracy", "NSP accuracy", True),
)
MEMORY = "peak_memory_gb"
SINGLES = (  # what only training has: metric, title, label, in shares of one
    ("learning_rate", "Learning rate", "learning rate", False),
    ("gradient_norm", "Gradient norm before clipping", "gradient norm", False),
    ("sequences_per_second", "Throughput (sequences per second)", "sequences/s", False),
    ("mfu", "Model FLOPs utilisation (MFU)", "of the peak of all devices", True),
    (MEMORY, "Peak memory of rank 0 (GB)", "peak", False),
    ("data_wait_share", "Waiting for data (share of the time)", "waiting", True),
)
PARTS = ("state_bytes", "activation_bytes", "library_bytes")  # of the estimate of a process's memory
GB = 1e9


def pretraining_figures(
    status: RunStatus, series: Mapping[str, Series], plan: Mapping[str, Any], result: Mapping[str, Any]
) -> Markup:
    """The figures that one looks for first, each with what it is to be compared with."""
    figures = [
        _mlm_loss(series, result),
        _entropy(series, result),
        _accuracy("MLM accuracy", "mlm_accuracy", series, result),
    ]
    objective = plan["job"]["objective"]
    if objective["next_sentence"] and ":" not in objective.get("name", ""):
        figures.append(_accuracy("NSP accuracy", "nsp_accuracy", series, result))
    figures += [throughput(series), _steps(status, series, plan, result)]
    return key_figures(figures)


def charts(
    status: RunStatus, series: Mapping[str, Series], plan: Mapping[str, Any], result: Mapping[str, Any]
) -> list[Chart]:
    """A chart of each metric that was reported."""
    drawn = [*_pairs(series, plan, result), *singles(series, plan)]
    return [chart for chart in drawn if chart.drawn or chart.left_out]


def figures_of(drawn: Sequence[Chart], series: Mapping[str, Series], status: RunStatus) -> Markup:
    """The charts as figures, or a sentence where there is none yet."""
    if not drawn and status.results is not None:
        return element("div")  # its table has them
    if not drawn:
        return element("p", no_metrics(status), class_="panel empty")
    return element("div", *(figure(chart, last_step=last_step(series)) for chart in drawn), class_="charts")


def _pairs(series: Mapping[str, Series], plan: Mapping[str, Any], result: Mapping[str, Any]) -> list[Chart]:
    """What is measured in training and on held-out text; where a loss was published, with it."""
    entropy, last = _known_entropy(series, result), last_step(series)
    corridor, ends = published(plan)
    found = [_pair(series, "loss", "Loss, MLM and NSP (nats)")] if corridor or ends else []
    found = [replace(chart, corridor=corridor, references=ends) for chart in found]
    for metric, title, shares in PAIRS:
        chart = _pair(series, metric, title, shares=shares)
        if metric == "mlm_loss":
            corridor = frequencies_alone(plan, entropy, last)
            chart = replace(chart, references=levels(plan, entropy), corridor=corridor)
        found.append(chart)
    return found


def _pair(series: Mapping[str, Series], metric: str, title: str, *, shares: bool = False) -> Chart:
    training, validation = (series.get(f"{split}_{metric}", Series()) for split in ("train", "validation"))
    lines = (Line("training", "training", training), Line("validation", "validation", validation))
    return Chart(title, lines, from_zero=shares, shares=shares)


def singles(series: Mapping[str, Series], plan: Mapping[str, Any]) -> Iterator[Chart]:
    """What only training has; memory with what the plan said of it."""
    for metric, title, label, shares in SINGLES:
        line = Line(label, "training", series.get(metric, Series()))
        references = (Reference("planned", planned_memory(plan)),) if metric == MEMORY else ()
        yield Chart(title, (line,), references=references, from_zero=True, shares=shares)


def planned_memory(plan: Mapping[str, Any]) -> float:
    """The estimate of a process's memory, in GB."""
    return float(sum(plan["estimates"][part] for part in PARTS)) / GB


def no_metrics(status: RunStatus) -> str:
    """What is said in place of charts."""
    if status.state.terminal:
        return f"No metrics: the run {_ended(status.state)} before its first report."
    return f"No metrics yet: the run is {status.state}. A report made once it trains has charts."


def _ended(state: RunState) -> str:
    return {RunState.CANCELLED: "was cancelled", RunState.PREEMPTED: "was preempted"}.get(state, state.value)


def _mlm_loss(series: Mapping[str, Series], result: Mapping[str, Any]) -> Markup:
    loss, where = _validation("mlm_loss", series, result)
    entropy = _known_entropy(series, result)
    lines = [f"nats, {where}" if loss is not None else where]
    if loss is not None and entropy is not None:
        lines.append(_verdict(loss, entropy))
    return key_figure("Validation MLM loss", number(loss) if loss is not None else NONE_YET, *lines)


def _verdict(loss: float, entropy: float) -> Markup:
    if loss < entropy:
        return element("dd", f"{number(entropy - loss)} below unigram entropy: it learned from context", class_="good")
    return element("dd", "not below unigram entropy: it only learned word frequencies", class_="bad")


def _known_entropy(series: Mapping[str, Series], result: Mapping[str, Any]) -> float | None:
    """Of the held-out text: as the job told in the end, or at its last validation."""
    last = series.get("validation_unigram_entropy", Series()).last
    found = result.get("validation_unigram_entropy", last[1] if last else None)
    return float(found) if found is not None else None


def _entropy(series: Mapping[str, Series], result: Mapping[str, Any]) -> Markup:
    entropy = _known_entropy(series, result)
    told = "nats, of the held-out text" if entropy is not None else "known once the run has validated"
    return key_figure("Unigram entropy", number(entropy) if entropy is not None else NONE_YET, told)


def _accuracy(label: str, metric: str, series: Mapping[str, Series], result: Mapping[str, Any]) -> Markup:
    share, where = _validation(metric, series, result)
    value = percent(share) if share is not None else NONE_YET
    return key_figure(label, value, where)


def throughput(series: Mapping[str, Series]) -> Markup:
    """How fast it trains."""
    speeds = [value for _, value in series.get("sequences_per_second", Series()).points]
    value = number(statistics.median(speeds)) if speeds else NONE_YET
    utilised = [value for _, value in series.get("mfu", Series()).points]
    lines = ["median of the run", *([f"MFU {percent(statistics.median(utilised))}"] if utilised else [])]
    return key_figure("Sequences/s", value, *lines)


def _steps(
    status: RunStatus, series: Mapping[str, Series], plan: Mapping[str, Any], result: Mapping[str, Any]
) -> Markup:
    done = result.get("steps", max(last_step(series), status.step or 0))
    train = plan["job"]["train"]
    lines = [f"of {train['steps']:,}", f"{done * train['global_batch_size']:,} sequences"]
    skipped = series.get("skipped_steps", Series()).last
    if skipped and skipped[1]:
        lines.append(f"{skipped[1]:,.0f} skipped for gradients that were not finite")
    return key_figure("Steps done", f"{done:,}", *lines)


def _validation(metric: str, series: Mapping[str, Series], result: Mapping[str, Any]) -> tuple[float | None, str]:
    """The final value on held-out text, or the last one so far; and when it was taken."""
    final = result.get(f"validation_{metric}")
    if final is not None:
        return (final, "on held-out text") if math.isfinite(final) else (None, "not finite on held-out text")
    last = series.get(f"validation_{metric}", Series()).last
    return (last[1], f"on held-out text, step {last[0]:,}") if last else (None, "not validated so far")
