"""The MLflow run of a sweep, which is the parent of its trials' runs.

The driver starts the process that syncs it and never waits for it: trials are expensive, and MLflow is a copy.

    python -m orchestrator.sweeps.driver.parent SWEEP_FOLDER HOME
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.backends import load_backend
from orchestrator.runs.run_artifacts import PICTURES, REPORT_FILE, public_text
from orchestrator.runs.run_records import SOURCE_JOB, owner
from orchestrator.runs.status import SWEEP_TAG
from orchestrator.runs.tracked_run import (
    BEST_TAG,
    DECISION_TAG,
    RUNNING,
    STATUS,
    TRIAL_STATE_TAG,
    PrimaryMetric,
    Synced,
    TrackingRequest,
    default_uri,
    exit_code_of,
    is_copied,
    run_lock,
    start,
    submitted_tag,
    sync,
)
from orchestrator.support.errors import UserError
from orchestrator.support.plugins import imported
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.driver.sweep_status import SweepStatus, TrialRow, run_reader, sweep_status
from train_jobs.artifacts.files import link_or_copy
from train_jobs.artifacts.redaction import redact_output
from train_jobs.artifacts.tracking.mlflow_copy import as_parameter, flatten
from train_jobs.artifacts.tracking.run_files import TABLES

RECORD_FILE = "sweep.json"
WAIT_SECONDS = 0.5
MAX_TAG = 1000  # characters of a tag's value on Azure
LOGGED_BY_TRIALS = ("trial", "recipe", "kind")  # keys of the sweep that its runs log themselves


class ParentRun:
    """The parent of a sweep's runs; not used if the backend itself creates MLflow runs.

    Args:
        folder: the sweep's folder.
        home: the home folder.
    """

    def __init__(self, folder: SweepFolder, home: Path) -> None:
        self._folder, self._record, self._home = folder, folder.record(), home

    def tags(self) -> dict[str, str]:
        """Return the tags of each trial's run; by the first of them it finds its parent."""
        earlier = "; ".join(sweep.text for sweep in self._record.earlier)[:MAX_TAG]
        return {SWEEP_TAG: self._record.name, **({"orchestrator.warm_start": earlier} if earlier else {})}

    def sync(self, to: str | None = None) -> Synced:
        """Make the MLflow run equal to the sweep's folder, and nest its trials below it.

        Args:
            to: tracking URI. None: the sweep's own.

        Raises:
            ServiceError: MLflow or its store refused, or another process syncs the same sweep.
        """
        with run_lock(self._folder.path):
            return sync(self.request().to(to))

    def start_sync(self) -> None:
        """Start a process that syncs it; the caller does not wait for it."""
        command = ["-m", "orchestrator.sweeps.driver.parent", str(self._folder.path), str(self._home)]
        start(command, self._folder.path / "driver.log")

    def is_behind(self, known: Callable[[str], frozenset[str] | None]) -> bool:
        """Return whether MLflow lacks something of the ended sweep.

        Args:
            known: returns the ids of the MLflow runs in a store; None: unknown.
        """
        folder, state = self._folder, self._folder.state().state
        run_id = folder.mlflow_run_id or folder.stored_state().mlflow_run_id
        return state.terminal and not is_copied(folder.metrics, run_id, state, known(self._uri))

    @property
    def _uri(self) -> str:
        return str(self._record.trial["tracking"]["uri"] or default_uri(self._home))

    def request(self) -> TrackingRequest:
        """Return the MLflow run that the sweep should have now."""
        state, record = self._folder.state(), self._record
        tracking, own = record.trial["tracking"], submitted_tag(record.created)
        read_run = run_reader(self._folder, self._home)
        status = sweep_status(self._folder, read_run=read_run) if state.state.terminal else None
        objective, amount = record.spec.objective, tracking.get("artifacts", "light")
        return TrackingRequest(
            uri=self._uri,
            experiment=str(tracking["experiment"]),
            run_name=record.name,
            identity={SWEEP_TAG: record.name, **own},
            params=flatten({key: value for key, value in record.sweep.items() if key not in LOGGED_BY_TRIALS}),
            tags={**self.tags(), "orchestrator.snapshot": record.snapshot, **self._standard_tags(status)},
            folder=str(self._folder.path),
            metrics=str(self._folder.metrics),
            status=STATUS.get(state.state, "KILLED") if state.state.terminal else RUNNING,
            started=record.created,
            ended=state.ended if state.state.terminal else None,
            run_id=state.mlflow_run_id,
            description=self._description(status),
            primary=PrimaryMetric(objective.metric, objective.goal == "maximize"),
            trials={run: trial_tags(row) for row in (status.rows if status else ()) for run in row.runs},
            collect=None if amount == "none" else self._collect,
            secrets=record.trial.get("environment", {}).get("secrets", {}),
        )

    def wait_for_trials(self, seconds: float = 60.0) -> None:
        """Wait until the trials of an ended sweep have their MLflow runs, which other processes open.

        Args:
            seconds: maximum time.
        """
        until = time.monotonic() + seconds
        if not self._folder.state().state.terminal:
            return
        backend = load_backend(self._record.trial["backend"], self._home)
        for run in [run for row in sweep_status(self._folder).rows for run in row.runs]:
            with suppress(UserError):  # it was never submitted, or has been deleted
                folder = backend.folder(run)
                while folder and not (folder / "tracking.json").exists() and time.monotonic() < until:
                    time.sleep(WAIT_SECONDS)

    def _standard_tags(self, status: SweepStatus | None) -> dict[str, str]:
        """Return the standard tags of MLflow, and those that name the best trial of an ended sweep."""
        record, best = self._record, status.best if status else None
        found = {
            "mlflow.user": owner(self._folder.path),
            "mlflow.source.name": str(record.trial.get("code", {}).get("entry", record.kind)),
            "mlflow.source.type": SOURCE_JOB,
            "orchestrator.kind": f"sweep of {record.kind}",
            "orchestrator.varied": ", ".join(record.spec.space),
        }
        if best is not None:
            found |= {"orchestrator.best_trial": ", ".join(best.runs)}
            found |= {f"orchestrator.best.{key}": as_parameter(value) for key, value in best.settings.items()}
        return found

    def _description(self, status: SweepStatus | None) -> str:
        """Return what the sweep searches, its result and the commands for it, in Markdown."""
        spec, name, state = self._record.spec, self._record.name, self._folder.state().state
        varied = ", ".join(f"`{key}`" for key in spec.space)
        blocks = [
            f"Sweep of **{self._record.kind}** over {varied}, to {spec.objective.goal} `{spec.objective.metric}`."
        ]
        if status is not None and status.best is not None and status.best.outcome is not None:
            settings = ", ".join(f"`{key}` {as_parameter(value)}" for key, value in status.best.settings.items())
            stopped = sum(row.state == "stopped" for row in status.rows)
            blocks.append(
                f"Best of {len(status.rows)} trials: {', '.join(status.best.runs)}, {status.best.outcome:.4f} with"
                f" {settings}. {stopped} trials were stopped early."
            )
        commands = [f"orchestrator sweep show {name}", f"orchestrator report {name}"]
        commands += [f"orchestrator resume {name}"] if state.resumable else []
        return "\n\n".join([*blocks, "\n".join(["```console", *commands, "```"])]) + "\n"

    def _collect(self, to: Path) -> None:
        """Put the artifacts of the ended sweep below a folder: record, decisions, table of trials, report."""
        status, folder = sweep_status(self._folder), self._folder
        (to / RECORD_FILE).write_text(public_text(folder.path / RECORD_FILE), encoding="utf-8")
        if folder.decided.exists():
            link_or_copy(folder.decided, to / folder.decided.name)
        if status.rows:
            (to / TABLES).mkdir()
            (to / TABLES / "trials.json").write_text(json.dumps(trials_table(status.rows)) + "\n", encoding="utf-8")
            with suppress(UserError):
                sweep = imported("orchestrator.sweep:Sweep")(folder, self._home)
                sweep.report(to / REPORT_FILE, trial_pages=False)
                sweep.pictures(to / PICTURES)


def trial_tags(row: TrialRow) -> dict[str, str]:
    """Return the tags of a trial's runs: how it ended, the decision that stopped it, whether it is the best."""
    return {
        TRIAL_STATE_TAG: row.state,
        **({DECISION_TAG: row.why} if row.state == "stopped" and row.why else {}),
        **({BEST_TAG: "true"} if row.incumbent else {}),
    }


def trials_table(rows: Sequence[TrialRow]) -> dict[str, Any]:
    """Return the trials as a table in the form of MLflow's `log_table`."""
    settings = list(dict.fromkeys(key for row in rows for key in row.settings))
    data = [
        [row.trial, row.state, row.outcome, row.best, *(row.settings.get(key) for key in settings), row.seconds]
        for row in rows
    ]
    return {"columns": ["trial", "state", "outcome", "best", *settings, "seconds"], "data": data}


def main() -> int:
    """Sync one sweep."""
    folder, home = Path(sys.argv[1]), Path(sys.argv[2])
    with suppress(FileNotFoundError):  # the sweep was purged
        parent = ParentRun(SweepFolder(folder), home)
        parent.wait_for_trials()
        return exit_code_of(parent.sync)
    return 0


if __name__ == "__main__":
    redact_output()
    sys.exit(main())
