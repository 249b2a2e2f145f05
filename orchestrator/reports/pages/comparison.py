"""The report of several runs: curves on the same axes, results, and the settings that differ.

    html = render_comparison([Subject(side, reports), ...])

Runs that differ only in their seed are replicates: they share a colour, and have a column of mean and deviation.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.jobs.registry import run_kind
from orchestrator.reports.charts.charts import Chart, Line, figure
from orchestrator.reports.charts.notation import counted, duration, number, percent
from orchestrator.reports.charts.palette import KINDS
from orchestrator.reports.charts.series import Series, collect, last_step
from orchestrator.reports.charts.style import COMPARISON_STYLE
from orchestrator.reports.pages.parts import HELD_OUT, NONE_YET, PLUS_MINUS, badge, wide_panel
from orchestrator.reports.pages.run_page import charts_of, document
from orchestrator.reports.pages.tuning import seed_charts
from orchestrator.runs.differences import Side, Table, tabulate
from orchestrator.support.errors import UsageError
from orchestrator.support.html import Markup, element, join

SEED = "train.seed"
TRAINING = "training"
SAME_TEXT = ("data.sha256", "data.vocabulary", "data.vocab_size", "data.sequence_length")
# Of results: the same in other words, or what is no result
NOT_TOLD = {
    *("steps", "sequences", "exit_code", "attempts", "learning_rate"),
    *("checkpoint_seconds", "checkpoint_wait_seconds"),
}
LABELS = {
    "seconds": "Time",
    "mfu": "MFU",
    "peak_memory_gb": "Peak memory (GB)",
    "data_wait_share": "Waiting for data",
    "sequences_per_second": "Sequences/s",
    "tokens_per_second": "Tokens/s",
}
MOST = len(KINDS)


@dataclass(frozen=True)
class Subject:
    """A run and its reports."""

    side: Side
    reports: Sequence[dict[str, Any]]
    seeds: Mapping[int, Sequence[dict[str, Any]]] = field(default_factory=dict)
    """Reports by seed, of a fine-tuning with several."""

    @property
    def name(self) -> str:
        """The run's name."""
        return self.side.status.name

    @property
    def series(self) -> dict[str, Series]:
        """Its metrics."""
        return collect(self.reports)

    @property
    def charts(self) -> list[Chart]:
        """Charts of its own report, without those of its seeds."""
        return charts_of(self.side.status, self.series, self.side.plan, self.side.result)


@dataclass(frozen=True)
class RunGroup:
    """Replicates, or a single run."""

    kind: str
    members: tuple[Subject, ...]

    @property
    def label(self) -> str:
        """The name of the first run, and the number of its replicates."""
        first = self.members[0].name
        return first if len(self.members) == 1 else f"{first} and {counted(len(self.members) - 1, 'replicate')}"


def require_comparable(subjects: Sequence[Subject]) -> None:
    """Check that the runs have figures in common.

    Raises:
        UsageError: with the runs, and what they are.
    """
    what = {subject.name: _what(subject.side) for subject in subjects}
    if len(what) < len(subjects):
        raise UsageError(
            "a run is named twice", facts={"runs": ", ".join(s.name for s in subjects)}, fix="name it once"
        )
    if len(what) > MOST:
        raise UsageError(
            f"{len(what)} runs are more than a figure can show", facts={"most": MOST}, fix="orchestrator report RUN RUN"
        )
    if without := [subject for subject in subjects if not run_kind(subject.side.status.kind).trains]:
        names = {subject.name: f"a run of kind {subject.side.status.kind}" for subject in without}
        raise UsageError("not all of these runs train: there are no curves to compare", facts=names, fix=_fix(subjects))
    if len(set(what.values())) > 1:
        raise UsageError("these runs have no figures in common", facts=what, fix=_fix(subjects))


def _what(side: Side) -> str:
    return run_kind(side.status.kind).title(side.plan)


def _fix(subjects: Sequence[Subject]) -> str:
    return f"orchestrator report {subjects[0].name}"


def grouped(subjects: Sequence[Subject], table: Table) -> list[RunGroup]:
    """Return the runs grouped by all settings but the seed, a colour for each group."""
    keys = [key for key in table.settings if key not in {SEED, "name"}]
    found: dict[str, list[Subject]] = {}
    for subject in subjects:
        told = json.dumps([table.settings[key].get(subject.name) for key in keys], sort_keys=True, default=str)
        found.setdefault(told, []).append(subject)
    return [RunGroup(kind, tuple(members)) for kind, members in zip(KINDS, found.values(), strict=False)]


def compared_charts(groups: Sequence[RunGroup]) -> list[Chart]:
    """Return every chart of any run, with a line for each run; training and held-out text are separate charts."""
    first: dict[str, Chart] = {}
    lines: dict[str, list[Line]] = {}
    for group in groups:
        for place, subject in enumerate(group.members):
            for chart in subject.charts:
                for line in chart.drawn:
                    title = _title(chart, line)
                    first.setdefault(title, replace(chart, title=title, corridor=None))
                    own = replace(line, label=_label(group, subject), kind=group.kind, named=place == 0)
                    lines.setdefault(title, []).append(own)
    return [replace(chart, lines=tuple(lines[title])) for title, chart in first.items()]


def all_charts(subjects: Sequence[Subject]) -> list[Chart]:
    """Return the charts of the report of one run, or of a comparison."""
    if len(subjects) == 1:
        return [*subjects[0].charts, *seed_charts(subjects[0].seeds)]
    return compared_charts(grouped(subjects, tabulate([subject.side for subject in subjects])))


def _title(chart: Chart, line: Line) -> str:
    """Of a chart with two lines each is one of its own."""
    if len(chart.lines) == 1:
        return chart.title
    return f"{chart.title}, {'training' if line.kind == TRAINING else 'held out'}"


def _label(group: RunGroup, subject: Subject) -> str:
    return group.label if subject is group.members[0] else subject.name


def render_comparison(subjects: Sequence[Subject]) -> str:
    """Return several runs as an HTML document.

    Args:
        subjects: at least two, which `require_comparable` takes.
    """
    table = tabulate([subject.side for subject in subjects])
    groups = grouped(subjects, table)
    title = f"{counted(len(subjects), 'run')} compared"
    body = element(
        "body",
        element("header", element("h1", title), *_notes(table)),
        element(
            "main",
            _legend(groups),
            element("h2", "What differs"),
            _settings(table),
            element("h2", "Results"),
            _results(groups, table),
            element("h2", "Curves"),
            _figures(groups),
        ),
    )
    return document(title, body, COMPARISON_STYLE)


def _notes(table: Table) -> Iterator[Markup]:
    if any(key in table.settings for key in SAME_TEXT):
        differing = ", ".join(key for key in SAME_TEXT if key in table.settings)
        told = f"These runs differ in {differing}: losses per token are of different tokens, and compare only roughly."
        yield element("p", told, class_="note")


def _legend(groups: Sequence[RunGroup]) -> Markup:
    items = [
        element(
            "li",
            element("i", class_=group.kind),
            " ",
            *(
                element("span", element("code", subject.name), " ", badge(subject.side.status.state), class_="member")
                for subject in group.members
            ),
        )
        for group in groups
    ]
    return element("ul", *items, class_="runs")


def _figures(groups: Sequence[RunGroup]) -> Markup:
    drawn = compared_charts(groups)
    if not drawn:
        return element("p", "None of these runs has reported a metric yet.", class_="panel empty")
    last = max(last_step(subject.series) for group in groups for subject in group.members)
    return element("div", *(figure(chart, last_step=last) for chart in drawn), class_="charts")


def _results(groups: Sequence[RunGroup], table: Table) -> Markup:
    """Return a row for each figure, a column for each run; replicates have mean and deviation before them."""
    columns: list[tuple[str, str, list[str]]] = []
    for group in groups:
        names = [subject.name for subject in group.members]
        if len(names) > 1:
            columns.append((group.kind, f"mean {PLUS_MINUS} sd of {len(names)}", names))
        columns += [(group.kind, name, [name]) for name in names]
    header = ["", *(join([element("i", class_=kind), label]) for kind, label, _ in columns)]
    results = {**table.results, **_scores(groups)}
    rows = [
        [_named(key), *(_told(key, values, names) for *_, names in columns)]
        for key, values in sorted(results.items(), key=lambda one: _rank(one[0]))
        if key not in NOT_TOLD and all(isinstance(value, int | float | str) for value in values.values())
    ]
    return wide_panel("Results", header, rows)


def _scores(groups: Sequence[RunGroup]) -> dict[str, dict[str, float]]:
    """What fine-tunings came to: task and metric -> run -> mean over its seeds."""
    found: dict[str, dict[str, float]] = {}
    for subject in (subject for group in groups for subject in group.members):
        results = subject.side.status.results
        for scores in results.scores if results else ():
            for metric, one in scores.metrics.items():
                found.setdefault(f"{scores.task} {metric}", {})[subject.name] = one.mean
    return found


def _rank(key: str) -> tuple[int, str]:
    """How it stands first, then what was held out, then training."""
    first = ("state", "step", "steps", "seconds", "cost")
    if key in first:
        return first.index(key), key
    return (10 if key.startswith(HELD_OUT) else 20 if key.startswith("train") else 30), key


def _named(key: str) -> str:
    """`validation_mlm_loss` as people say it."""
    if key in LABELS:
        return LABELS[key]
    text = key.replace("_", " ").replace("mlm", "MLM").replace("nsp", "NSP")
    return text[0].upper() + text[1:]


def _told(key: str, values: Mapping[str, Any], names: Sequence[str]) -> str:
    given = [values[name] for name in names if name in values]
    if not given:
        return NONE_YET
    if len(names) == 1:
        return _text(key, given[0])
    numbers = [float(value) for value in given if isinstance(value, int | float)]
    if len(numbers) < 2 or len(set(numbers)) == 1:
        return _text(key, given[0]) if len({*given}) == 1 else NONE_YET
    return f"{_text(key, statistics.fmean(numbers))} {PLUS_MINUS} {_text(key, statistics.stdev(numbers))}"


def _text(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if key == "seconds":
        return duration(value)
    if key == "cost":
        return f"${value:,.2f}"
    if key.endswith(("_share", "mlm_accuracy", "nsp_accuracy")) or key == "mfu":
        return percent(value)
    return f"{value:,}" if isinstance(value, int) else number(value)


def _settings(table: Table) -> Markup:
    if not table.settings:
        return element("p", "Nothing: spec, compute, environment, data and code are the same.", class_="panel empty")
    rows = [
        [element("code", key), *(element("code", _setting(values, name)) for name in table.names)]
        for key, values in table.settings.items()
        if key != "name"
    ]
    return wide_panel("Settings that differ", ["", *table.names], rows)


def _setting(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return NONE_YET
    value = values[name]
    return value if isinstance(value, str) else json.dumps(value)
