"""The status of a sweep with all of its trials, one row each.

The rows of an ended sweep are kept in its folder: to load Optuna and read the study would take as long as all the rest
of `sweep show`. The file is only a cache, which may be deleted at any time.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from orchestrator.backends import load_backend
from orchestrator.runs.status import RunState, RunStatus, attempt_seconds
from orchestrator.specs.space import all_parameters
from orchestrator.specs.sweep_spec import trial_count
from orchestrator.support.errors import NotFoundError, UserError
from orchestrator.support.home import SETTLED
from orchestrator.sweeps.design.sweep_record import EarlierSweep, SweepRecord, SweepState
from orchestrator.sweeps.driver.sweep_folder import RESUMED, SweepFolder
from orchestrator.sweeps.policy.termination import best, ranked_trials
from train_jobs.artifacts.files import write_text
from train_jobs.config.fields import Config

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

    from orchestrator.backends.base import Backend

INTERRUPTED = "interrupted"  # state of an unfinished trial without a driver and without a live run
UNFINISHED = (RunState.RUNNING, RunState.CANCELLED, INTERRUPTED)  # continued when the sweep is resumed

ReadRun = Callable[[str], RunStatus | None]
"""Returns the status of a run. None: it does not exist.

Raises:
    UserError: the status is unknown, because its backend does not answer.
"""


class TrialRow(Config):
    """A trial in the table of a sweep."""

    trial: int
    """Its number, from 0."""
    state: str
    """running, cancelled (with the sweep), interrupted (its runs have finished, without a driver), completed,
    stopped (by the policy), timed out, ended early (by a limit of the sweep), or failed."""
    settings: dict[str, Any]
    """Dotted setting -> value."""
    runs: list[str]
    """Names of its runs, one for each seed."""
    last: float | None = None
    """Its last report."""
    best: float | None = None
    """The best of its reports."""
    outcome: float | None = None
    """Its result."""
    reports: int = 0
    """Number of reports of the metric."""
    values: list[float] = Field(default=[])
    """Its finite reports."""
    started: float = 0.0
    """Start, seconds since the epoch."""
    seconds: float = 0.0
    """Duration, so far if it is running; without the time while it was cancelled or had failed."""
    ended: float | None = None
    """End, seconds since the epoch; None: it is running."""
    cost: float = 0.0
    """USD, if machines have a price."""
    why: str | None = None
    """The decision that stopped it, or the reason of its failure."""
    incumbent: bool = False
    """Whether it is the best trial."""

    @property
    def until(self) -> float:
        """The moment up to which it is shown: its end, or now."""
        return self.started + self.seconds if self.ended is None else self.ended


class SweepStatus(Config):
    """The status of a sweep, with all trials."""

    name: str
    """Its name."""
    state: RunState
    """Its state."""
    reason: str | None = None
    """Reason of the state."""
    metric: str
    """Metric that trials are compared by."""
    goal: str
    """minimize or maximize."""
    trials: int
    """Total number of trials."""
    ended: int
    """Number of finished trials."""
    created: float
    """Submission, seconds since the epoch."""
    folder: str
    """Path of its folder."""
    mlflow_run_id: str | None = None
    """The parent of its trials in MLflow."""
    earlier: list[EarlierSweep] = Field(default=[])
    """Sweeps whose trials it starts with."""
    keep: int | None = None
    """Number of trials that keep their checkpoints and models; None: all."""
    log_settings: list[str] = Field(default=[])
    """Dotted settings whose logarithm is searched (`log: true`)."""
    rows: list[TrialRow] = Field(default=[])
    """Trials that have started, in the order of their numbers."""

    @property
    def best(self) -> TrialRow | None:
        """The best completed trial, or the best finished one if none completed; None: no trial has a result."""
        return next((row for row in self.rows if row.incumbent), None)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-safe values."""
        return self.model_dump(mode="json")


class _KeptRows(Config):
    """The rows of an ended sweep, and the stamp of the files they come from."""

    stamp: str
    rows: list[TrialRow]


def run_reader(folder: SweepFolder, home: Path) -> ReadRun:
    """Return the function that reads the status of a sweep's run.

    Args:
        folder: of the sweep.
        home: the home folder.
    """

    @cache
    def backend() -> Backend:
        return load_backend(folder.record().trial["backend"], home)

    def read(name: str) -> RunStatus | None:
        try:
            return backend().describe(name)
        except NotFoundError:
            return None

    return read


def sweep_status(
    folder: SweepFolder, study: Callable[[], Study] | None = None, read_run: ReadRun | None = None
) -> SweepStatus:
    """Return the current status of a sweep that a process of this machine drives.

    Args:
        folder: the folder of the sweep.
        study: returns its open study, for callers that poll: it reads only the new lines of the journal. None: open it.
        read_run: shows whether the trials of a lost or stopped driver still run. None: they count as running.
    """
    record, state = folder.record(), folder.state()
    stamp = _stamp(folder)
    rows = _kept(folder, stamp)
    if rows is None:
        maximize = record.spec.objective.goal == "maximize"
        stored = (study or folder.study)().get_trials(deepcopy=False)
        rows = [_row(trial, state, maximize=maximize) for trial in stored]
        # The duration of a trial that has not ended depends on the time, except in a cancelled sweep.
        if state.ended is not None and not any(row.state == RunState.RUNNING for row in rows):
            _keep(folder, stamp, rows)
    if state.state.resumable and read_run is not None:
        rows = [_without_driver(row, read_run) if row.state == RunState.RUNNING else row for row in rows]
        state = state.model_copy(update={"reason": _reason(state, rows)})
    return status_of(folder, record, state, rows)


def _without_driver(row: TrialRow, read_run: ReadRun) -> TrialRow:
    """Return the row of an unfinished trial that has no driver, from the states of its runs."""
    try:
        runs = [status for name in row.runs if (status := read_run(name)) is not None]
    except UserError:  # the driver is lost, but the trial may run
        return row
    seconds = max((attempt_seconds(status.attempts, status.now) for status in runs), default=0.0)
    if any(not status.state.terminal for status in runs):
        return row.model_copy(update={"seconds": seconds})
    ends = [f"{status.name} {status.state}" + (f": {status.reason}" if status.reason else "") for status in runs]
    ended = max((status.ended or row.started for status in runs), default=row.started)
    return row.model_copy(
        update={
            "state": INTERRUPTED,
            "seconds": seconds,
            "ended": ended,
            "why": "; ".join(ends) or "its runs do not exist",
        }
    )


def _reason(state: SweepState, rows: Sequence[TrialRow]) -> str | None:
    """Return the reason of a sweep's end, with the numbers of trials that still run and of interrupted ones."""
    counts = {
        text: sum(row.state == one for row in rows)
        for one, text in ((RunState.RUNNING, "still running"), (INTERRUPTED, INTERRUPTED))
    }
    left = [f"{number} trial{'s' if number > 1 else ''} {text}" for text, number in counts.items() if number]
    return "; ".join(filter(None, (state.reason, ", ".join(left)))) or None


def _stamp(folder: SweepFolder) -> str:
    """Return what changes with the files that rows are read from, and with the fields of a row."""
    found = [f"{zlib.crc32(repr(TrialRow.model_fields).encode()):08x}"]
    for file in (folder.journal, folder.state_file):
        with suppress(OSError):
            read = file.stat()
            found.append(f"{read.st_ino}.{read.st_size}.{read.st_mtime_ns}")
    return " ".join(found)


def _kept(folder: SweepFolder, stamp: str) -> list[TrialRow] | None:
    """Return the kept rows; None: no rows are kept, or a file has changed since."""
    with suppress(OSError, ValidationError):
        kept = _KeptRows.model_validate_json(folder.rows.read_bytes())
        return kept.rows if kept.stamp == stamp else None
    return None


def _keep(folder: SweepFolder, stamp: str, rows: list[TrialRow]) -> None:
    """Keep rows that were read after the stamp, unless a change may hide behind it."""
    with suppress(OSError):  # a full disk, or the folder of another user: the next command reads the study again
        changed = max(folder.journal.stat().st_mtime, folder.state_file.stat().st_mtime)
        if time.time() - changed > SETTLED and _stamp(folder) == stamp:
            write_text(folder.rows, _KeptRows(stamp=stamp, rows=rows).model_dump_json())


def status_of(
    folder: SweepFolder, record: SweepRecord, state: SweepState, rows: list[TrialRow], incumbent: int | None = None
) -> SweepStatus:
    """Return the status of a sweep, with its incumbent marked.

    Args:
        folder, record, state: the sweep.
        rows: its trials, none of them marked as incumbent.
        incumbent: number of the best trial according to a service. It counts only if it completed, or if no trial
            with a result did. None: the first of `ranked_trials`.
    """
    spec = record.spec
    outcomes = {row.trial: row.outcome for row in rows}
    completed = {row.trial for row in rows if row.state == RunState.COMPLETED}
    ranking = ranked_trials(outcomes, completed, maximize=spec.objective.goal == "maximize")
    # A service may name a trial without a result, or one that it stopped, which has no model.
    if incumbent not in ranking or (incumbent not in completed and ranking[0] in completed):
        incumbent = ranking[0] if ranking else None
    return SweepStatus(
        name=record.name,
        state=state.state,
        reason=state.reason,
        metric=spec.objective.metric,
        goal=spec.objective.goal,
        trials=trial_count(spec),
        ended=sum(row.state not in UNFINISHED for row in rows),
        created=record.created,
        folder=str(folder.path),
        mlflow_run_id=folder.mlflow_run_id or state.mlflow_run_id,
        earlier=record.earlier,
        keep=record.keep,
        log_settings=list(dict.fromkeys(path for _, path, one in all_parameters(spec.space) if one.log)),
        rows=[row.model_copy(update={"incumbent": True}) if row.trial == incumbent else row for row in rows],
    )


def row_of(reports: Sequence[float], *, maximize: bool, **known: Any) -> TrialRow:
    """Return the row of a trial.

    Args:
        reports: all reports of the trial, including those that are not finite.
        maximize: whether more is better.
        known: the other fields of the row.
    """
    values = [value for value in reports if math.isfinite(value)]
    return TrialRow(
        last=reports[-1] if reports and math.isfinite(reports[-1]) else None,
        best=best(values, maximize=maximize) if values else None,
        reports=len(reports),
        values=values,
        **known,
    )


def _row(trial: FrozenTrial, sweep: SweepState, *, maximize: bool) -> TrialRow:
    stored = trial.user_attrs
    end = stored.get("end", {}) if trial.state.is_finished() else {}
    # In the study the trials of a cancelled sweep are still running, so that a resumed sweep continues them.
    cancelled = sweep.state == RunState.CANCELLED
    ended = end.get("ended") or (sweep.ended if cancelled else None)
    resumed = stored.get(RESUMED, {"at": stored["started"], "seconds": 0.0})
    so_far = resumed["seconds"] + max((ended or sweep.now()) - resumed["at"], 0.0)
    return row_of(
        list(trial.intermediate_values.values()),
        maximize=maximize,
        trial=trial.number,
        state=end.get("state", (sweep.state if cancelled else RunState.RUNNING).value),
        settings=stored["settings"],
        runs=stored["runs"],
        outcome=end.get("outcome"),
        started=stored["started"],
        seconds=end.get("seconds", so_far),
        ended=ended,
        cost=end.get("cost") or 0.0,
        why=end.get("why"),
    )
