"""The report of several runs: curves on the same axes, results, and the settings that differ; writing report files.

    html = render_comparison([report_of(side, reports), ...])

Runs that differ only in their seed are replicates: they share a colour, and a column with their mean and deviation.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.jobs.registry import run_kind
from orchestrator.reports.charts.axes import number, percent
from orchestrator.reports.charts.charts import Chart, Line, figure, last_step, write_charts
from orchestrator.reports.charts.style import COMPARISON_STYLE, KINDS
from orchestrator.reports.pages.page_parts import HELD_OUT, NONE_YET, PLUS_MINUS, badge, link_to, linked, wide_panel
from orchestrator.reports.pages.run_page import document, read_profile, render
from orchestrator.reports.pages.run_report import RunReport
from orchestrator.runs.differences import RunTable, tabulate
from orchestrator.runs.significance import score_tests
from orchestrator.support.errors import StorageError, UsageError
from orchestrator.support.formatting import counted, duration
from orchestrator.support.html import Markup, element, join
from train_jobs.artifacts.files import write_text

SEED = "train.seed"
TRAINING = "training"
SAME_TEXT = ("data.sha256", "data.vocabulary", "data.vocab_size", "data.sequence_length")
# Results that repeat others, or are settings
NOT_SHOWN = {
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
MAX_RUNS = len(KINDS)
NO_PAGES: Mapping[str, str] = {}


@dataclass(frozen=True)
class RunGroup:
    """Replicates, or a single run."""

    kind: str
    members: tuple[RunReport, ...]

    @property
    def label(self) -> str:
        """The name of the first run, and the number of its replicates."""
        first = self.members[0].name
        return first if len(self.members) == 1 else f"{first} and {counted(len(self.members) - 1, 'replicate')}"


def require_comparable(runs: Sequence[RunReport]) -> None:
    """Check that the runs have figures in common.

    Raises:
        UsageError: they have none, a run occurs twice, or there are too many runs.
    """
    what = {run.name: run_kind(run.status.kind).title(run.plan) for run in runs}
    if len(what) < len(runs):
        names_given = ", ".join(run.name for run in runs)
        raise UsageError("cannot compare a run with itself", facts={"runs": names_given}, fix="name each run once")
    if len(what) > MAX_RUNS:
        raise UsageError(
            f"cannot compare {len(what)} runs: a figure shows at most {MAX_RUNS}", fix="orchestrator report RUN RUN"
        )
    if without := [run for run in runs if not run_kind(run.status.kind).trains]:
        names = {run.name: f"a run of kind {run.status.kind}" for run in without}
        raise UsageError("cannot compare these runs: some of them have no curves", facts=names, fix=_fix(runs))
    if len(set(what.values())) > 1:
        raise UsageError("cannot compare these runs: they have no figures in common", facts=what, fix=_fix(runs))


def _fix(runs: Sequence[RunReport]) -> str:
    """Return the command that shows one of the runs."""
    with_page = (run for run in runs if (kind := run_kind(run.status.kind)).trains or kind.scored)
    run = next(with_page, None)
    return f"orchestrator status {runs[0].name}" if run is None else f"orchestrator report {run.name}"


def grouped(runs: Sequence[RunReport], table: RunTable) -> list[RunGroup]:
    """Return the runs grouped by all settings but the seed, a colour for each group."""
    keys = [key for key in table.settings if key not in {SEED, "name"}]
    found: dict[str, list[RunReport]] = {}
    for run in runs:
        settings = json.dumps([table.settings[key].get(run.name) for key in keys], sort_keys=True, default=str)
        found.setdefault(settings, []).append(run)
    return [RunGroup(kind, tuple(members)) for kind, members in zip(KINDS, found.values(), strict=False)]


def compared_charts(groups: Sequence[RunGroup]) -> list[Chart]:
    """Return the charts of all runs, each with a line for each run; training and held-out text are separate charts."""
    first: dict[str, Chart] = {}
    lines: dict[str, list[Line]] = {}
    for group in groups:
        for place, run in enumerate(group.members):
            for chart in run.charts():
                for line in chart.drawn:
                    title = _title(chart, line)
                    first.setdefault(title, replace(chart, title=title, corridor=None))
                    own = replace(line, label=_label(group, run), kind=group.kind, named=place == 0)
                    lines.setdefault(title, []).append(own)
    return [replace(chart, lines=tuple(lines[title])) for title, chart in first.items()]


def all_charts(runs: Sequence[RunReport]) -> list[Chart]:
    """Return the charts of the report of one run, or of a comparison."""
    if len(runs) == 1:
        return [*runs[0].charts(), *runs[0].seed_charts()]
    return compared_charts(grouped(runs, tabulate(runs)))


def _title(chart: Chart, line: Line) -> str:
    """Return the title of one line's chart; a chart with two lines becomes two."""
    if len(chart.lines) == 1:
        return chart.title
    return f"{chart.title}, {'training' if line.kind == TRAINING else 'held out'}"


def _label(group: RunGroup, run: RunReport) -> str:
    return group.label if run is group.members[0] else run.name


def render_comparison(runs: Sequence[RunReport], pages: Mapping[str, str] = NO_PAGES) -> str:
    """Return several runs as an HTML document.

    Args:
        runs: at least two runs that pass `require_comparable`.
        pages: name of a run -> address of its page, relative to this one.
    """
    table = tabulate(runs)
    groups = grouped(runs, table)
    title = f"{counted(len(runs), 'run')} compared"
    body = element(
        "body",
        element("header", element("h1", title), *_notes(table)),
        element(
            "main",
            _legend(groups, pages),
            element("h2", "What differs"),
            _settings(table),
            element("h2", "Results"),
            _results(groups, table),
            *_significance(runs),
            element("h2", "Curves"),
            _figures(groups),
        ),
    )
    return document(title, body, COMPARISON_STYLE)


def _notes(table: RunTable) -> Iterator[Markup]:
    if any(key in table.settings for key in SAME_TEXT):
        differing = ", ".join(key for key in SAME_TEXT if key in table.settings)
        note = f"These runs differ in {differing}: losses per token are of different tokens, and compare only roughly."
        yield element("p", note, class_="note")


def _legend(groups: Sequence[RunGroup], pages: Mapping[str, str]) -> Markup:
    items = [
        element(
            "li",
            element("i", class_=group.kind),
            " ",
            *(
                element(
                    "span",
                    linked(element("code", run.name), pages.get(run.name)),
                    " ",
                    badge(run.status.state),
                    class_="member",
                )
                for run in group.members
            ),
        )
        for group in groups
    ]
    return element("ul", *items, class_="runs")


def _figures(groups: Sequence[RunGroup]) -> Markup:
    drawn = compared_charts(groups)
    if not drawn:
        return element("p", "None of these runs has reported a metric yet.", class_="panel empty")
    last = max(last_step(run.series) for group in groups for run in group.members)
    return element("div", *(figure(chart, last_step=last) for chart in drawn), class_="charts")


def _results(groups: Sequence[RunGroup], table: RunTable) -> Markup:
    """Return a row for each figure, a column for each run; replicates have mean and deviation before them."""
    columns: list[tuple[str, str, list[str]]] = []
    for group in groups:
        names = [run.name for run in group.members]
        if len(names) > 1:
            columns.append((group.kind, f"mean {PLUS_MINUS} sd of {len(names)}", names))
        columns += [(group.kind, name, [name]) for name in names]
    header = ["", *(join([element("i", class_=kind), label]) for kind, label, _ in columns)]
    results = {**table.results, **_scores(groups)}
    rows = [
        [_named(key), *(_cell(key, values, names) for *_, names in columns)]
        for key, values in sorted(results.items(), key=lambda one: _rank(one[0]))
        if key not in NOT_SHOWN and all(isinstance(value, int | float | str) for value in values.values())
    ]
    return wide_panel("Results", header, rows)


def _significance(runs: Sequence[RunReport]) -> Iterator[Markup]:
    """Yield the tests of the scores against the first run, if the runs have scores."""
    found = score_tests(runs[0], runs[1:])
    if not found.notes:
        return
    yield element("h2", "Significance")
    if found.tests:
        adjusted = any(test.p_holm is not None for test in found.tests)
        header = ["", runs[0].name, "other run", "its score", "difference", "p", *(["p (Holm)"] if adjusted else [])]
        rows = [
            [
                f"{test.scored} {test.metric}, {test.rows:,} rows",
                number(test.score_a),
                element("code", test.b),
                number(test.score_b),
                f"{test.difference:+.4f}",
                f"{test.p:.4f}",
                *([] if test.p_holm is None else [f"{test.p_holm:.4f}"]),
                test.method,
            ]
            for test in found.tests
        ]
        yield wide_panel("Tests of the scores", [*header, "test"], rows)
    yield from (element("p", note, class_="note") for note in found.notes)


def _scores(groups: Sequence[RunGroup]) -> dict[str, dict[str, float]]:
    """Return the scores of fine-tunings: task and metric -> run -> mean over its seeds."""
    found: dict[str, dict[str, float]] = {}
    for run in (run for group in groups for run in group.members):
        results = run.status.results
        for scores in results.scores if results else ():
            for metric, one in scores.metrics.items():
                found.setdefault(f"{scores.task} {metric}", {})[run.name] = one.mean
    return found


def _rank(key: str) -> tuple[int, str]:
    """Return the sort key of a result: status first, then held-out text, then training."""
    first = ("state", "step", "steps", "seconds", "cost")
    if key in first:
        return first.index(key), key
    return (10 if key.startswith(HELD_OUT) else 20 if key.startswith("train") else 30), key


def _named(key: str) -> str:
    """Return the label of a result."""
    if key in LABELS:
        return LABELS[key]
    text = key.replace("_", " ").replace("mlm", "MLM").replace("nsp", "NSP")
    return text[0].upper() + text[1:]


def _cell(key: str, values: Mapping[str, Any], names: Sequence[str]) -> str:
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


def _settings(table: RunTable) -> Markup:
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


PAGE, COMPARISON = "report.html", "comparison.html"


def write_report(runs: Sequence[RunReport], to: Path | None = None) -> Path:
    """Write the page of a run, or of a comparison and of each of its runs; return its path.

    Args:
        runs: the runs.
        to: the file; None: report.html in the run's folder, or comparison.html here.

    Raises:
        UsageError: a run has no curves, or they have no figures in common.
        StorageError: it cannot be written there.
    """
    _require(runs)
    if len(runs) == 1:
        (run,) = runs
        return _write_run(run, to or Path(run.status.folder or Path.cwd()) / PAGE)
    page = to or Path.cwd() / COMPARISON
    pages: dict[str, str] = {}
    for run in runs:
        # a run of a cloud has no folder here: its page is put next to the comparison
        own = Path(run.status.folder) / PAGE if run.status.folder else page.with_name(f"{run.name}.html")
        with suppress(StorageError):  # the folder of another user's run; an earlier page of it is as good
            _write_run(run, own)
        if own.is_file():
            pages[run.name] = link_to(own, page.parent)
    return write_page(render_comparison(runs, pages), page)


def _write_run(run: RunReport, to: Path) -> Path:
    return write_page(render(run, read_profile(run.status.trace)), to)


def write_pictures(runs: Sequence[RunReport], folder: Path) -> list[Path]:
    """Write the figures of that page as PNGs; return their paths, none for runs without reports.

    Args:
        runs: the runs.
        folder: destination; created if it is missing.

    Raises:
        UsageError: see `write_report`.
        StorageError: a file cannot be written.
    """
    _require(runs)
    last = max(last_step(run.series) for run in runs)
    return write_charts(all_charts(runs), folder, last_step=last)


def write_page(text: str, path: Path) -> Path:
    """Write a page, complete or not at all; return its path.

    Raises:
        StorageError: it cannot be written there.
    """
    try:
        if path.exists() and not path.is_file():  # a rename would replace a pipe, or /dev/stdout, by a file
            path.write_text(text, encoding="utf-8")
        else:
            write_text(path.resolve(), text)
    except OSError as problem:
        raise StorageError(
            f"cannot write the report: {problem.strerror}", facts={"where": path}, fix="--to FILE"
        ) from problem
    return path


def _require(runs: Sequence[RunReport]) -> None:
    if len(runs) > 1:
        require_comparable(runs)
        return
    status = runs[0].status
    kind = run_kind(status.kind)
    if not (kind.trains or kind.scored):
        raise UsageError(
            f"cannot report run {status.name}: a run of kind {status.kind} has no curves",
            fix=f"orchestrator data show {status.store}" if status.store else f"orchestrator status {status.name}",
        )
