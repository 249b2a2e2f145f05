"""The table of `orchestrator list`: runs with kind and score, a sweep in place of its trials."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

from orchestrator.cli.ui.terminal import Terminal, table
from orchestrator.jobs.registry import job_kind
from orchestrator.runs.results import NOT_METRICS
from orchestrator.runs.status import SWEEP_TAG, TRIAL_TAG, RunState, RunStatus, first_items
from orchestrator.support.errors import StorageError
from orchestrator.support.formatting import ago, count, duration, money, score_text

if TYPE_CHECKING:
    from orchestrator.sweep import Sweep

VALIDATION = "validation_"  # prefix of metrics measured on held-out text
PRETRAINING_LOSS = "mlm_loss"
STOPPED = "stopped early"
DEFAULT_LIMIT = 200  # rows; more would push the newest off the screen
HEADER = ("RUN", "STATE", "KIND", "STEP", "SCORE", "TIME", "COST", "SUBMITTED")
OPTIONAL = ("SCORE", "COST")  # columns that are left out if all their cells are empty

Row = Mapping[str, str]
"""Column -> text."""


class RunList:
    """The rows of the list.

    Args:
        find: returns the sweep of a name; None: there is no such sweep.
        trials: show the runs of sweeps, not the sweeps.
    """

    def __init__(self, find: Callable[[str], Sweep | None], *, trials: bool = False) -> None:
        self.complete = True
        """Whether the last table had all rows."""
        self._trials = trials
        self._sweep = cache(find)  # one look at a sweep's folder, however many trials it has
        self._stopped = cache(self._stopped_trials)

    def text(self, runs: Iterable[RunStatus], limit: int = DEFAULT_LIMIT, terminal: Terminal | None = None) -> str:
        """Return the table, empty without runs.

        Args:
            runs: newest first; only as many are read as the table needs.
            limit: maximum number of rows.
            terminal: width and colours; None: those of stdout.
        """
        found = self._rows(runs)
        rows = first_items(found, limit)
        self.complete = next(found, None) is None
        columns = [name for name in HEADER if name not in OPTIONAL or any(row[name] for row in rows)]
        return table([[row[name] for name in columns] for row in rows], columns, terminal) if rows else ""

    def _rows(self, runs: Iterable[RunStatus]) -> Iterator[Row]:
        seen = set()
        for status in runs:
            name = status.tags.get(SWEEP_TAG)
            sweep = self._sweep(name) if name and not self._trials else None
            if name is None or sweep is None:
                yield self._run(status)
            elif name not in seen:
                seen.add(name)
                yield sweep_row(sweep)

    def _run(self, status: RunStatus) -> Row:
        return {
            "RUN": status.name,
            "STATE": STOPPED if self._is_stopped(status) else status.state.value,
            "KIND": status.kind,
            "STEP": progress(status),
            "SCORE": score(status),
            "TIME": elapsed(status),
            "COST": "" if status.cost is None else money(status.cost),
            "SUBMITTED": ago(status.created),
        }

    def _is_stopped(self, status: RunStatus) -> bool:
        """Return whether the policy of its sweep, not a user, ended a run."""
        name, trial = status.tags.get(SWEEP_TAG), status.tags.get(TRIAL_TAG)
        return status.state == RunState.CANCELLED and name is not None and trial in self._stopped(name)

    def _stopped_trials(self, name: str) -> frozenset[str]:
        sweep = self._sweep(name)
        decisions = {} if sweep is None else sweep.folder.decisions()
        return frozenset(str(trial) for (trial, _), decision in decisions.items() if decision.stop)


def sweep_row(sweep: Sweep) -> Row:
    """Return the row of a sweep, from its small files alone: its study takes a second to open."""
    from orchestrator.specs.sweep_spec import trial_count

    try:
        record, state = sweep.folder.record(), sweep.folder.state()
    except StorageError:  # a row, not an error: one damaged sweep must not hide all others, and all runs
        return {**dict.fromkeys(HEADER, ""), "RUN": sweep.name, "STATE": "damaged", "KIND": "sweep"}
    path = sweep.folder.metrics
    scored = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    best = f"{record.spec.objective.metric.removeprefix(VALIDATION)} {_best(scored[-1])}" if scored else ""
    return {
        "RUN": record.name,
        "STATE": state.state.value,
        "KIND": f"sweep of {record.kind}",
        "STEP": f"{count(len(scored))}/{count(trial_count(record.spec))} trials",
        "SCORE": best,
        "TIME": duration((state.ended or state.now()) - record.created),
        "COST": "",
        "SUBMITTED": ago(record.created),
    }


def _best(line: str) -> str:
    try:
        return score_text(json.loads(line)["metrics"]["best"])
    except (ValueError, KeyError):  # the driver is writing it
        return ""


def score(status: RunStatus) -> str:
    """Return the main result of a run with its name: a score, or the loss of a pretraining on held-out text."""
    results = status.results
    if results is not None and results.glue_score is not None:
        return f"GLUE {results.glue_score:.4f}"
    if results is not None and results.scores:
        found = {name: figure.mean for name, figure in results.scores[0].metrics.items()}
    else:
        found = {
            name.removeprefix(VALIDATION): value
            for name, value in status.metrics.items()
            if name.startswith(VALIDATION)
        }
    if PRETRAINING_LOSS in found:
        return f"MLM loss {score_text(found[PRETRAINING_LOSS])}"
    measured = [name for name in found if name not in NOT_METRICS]
    named = [name for name in measured if name != "score"] or measured
    return f"{named[0]} {score_text(found[named[0]])}" if named and job_kind(status.kind).scored else ""


def progress(status: RunStatus) -> str:
    """Return the steps done, `50/100` or `3 parts`."""
    if status.steps is None:
        return "" if status.step is None else f"{count(status.step)} {status.counts}"
    unit = f" {status.counts}" if status.counts != "steps" else ""
    return f"{count(status.step or 0)}/{count(status.steps)}{unit}"


def elapsed(status: RunStatus) -> str:
    """Return the duration of the last attempt; empty if none has started."""
    return "" if status.started is None else duration((status.ended or status.now) - status.started)
