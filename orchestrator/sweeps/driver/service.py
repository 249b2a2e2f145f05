"""Sweeps that a service of the backend drives: submit, read into the table of trials, cancel.

SWEEP/
  sweep.json state.json     as for a sweep driven from this machine; state.json has the status of the last poll
  plan.json request.json    plan of its trial, and the request, which has the sweep in place of the job
  service.json              whether the service confirmed the sweep, and whether its user cancelled it
  trials.json               finished trials, which are not requested from the service again

The service also stores the first four, so that other machines can attach.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from orchestrator.backends import load_backend, remember
from orchestrator.backends.capabilities import SweepsNatively, UnknownError
from orchestrator.backends.sweep_service import NativeSweep, NativeTrial
from orchestrator.runs.hidden_folders import delete_folder
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError, NotFoundError, ServiceError, UserError
from orchestrator.sweeps.design.sweep_record import SweepRecord, SweepState
from orchestrator.sweeps.driver.control import SERVICE, SweepControl, make_sweep
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.driver.sweep_status import SweepStatus, TrialRow, row_of, status_of
from orchestrator.sweeps.policy.limits import HOUR
from orchestrator.sweeps.policy.termination import judge, outcome
from train_jobs.artifacts.files import write_text
from train_jobs.config import Config, in_shell

if TYPE_CHECKING:
    from orchestrator.backends.base import Submission

TRIALS, HERE = "trials.json", "here.yaml"
DOCUMENTS = ("plan.json", "request.json")
NOT_SUBMITTED = "the service does not have the sweep: it was not submitted"
DRIVE_HERE = "a sweep driven from this machine can continue on the same cluster"
OUTAGE_SECONDS = 3600.0  # longest outage of the service during which a followed sweep shows its last status
LIMIT_TOLERANCE = 5.0  # seconds before a time limit from which a cancellation is attributed to the limit


class ServiceRecord(Config):
    """State of a sweep at its service: service.json."""

    confirmed: bool = False
    """Whether the service is known to have the sweep."""
    intended: float = 0.0
    """When it was last submitted, seconds since the epoch."""
    cancelled: bool = False
    """Whether its user cancelled it."""
    best: int | None = None
    """Number of the best trial according to the service."""
    settled: bool = False
    """Whether all trials have finished, so that the service is not polled again."""


def send_sweep(record: SweepRecord, submission: Submission, home: Path) -> SweepFolder:
    """Stage and submit a sweep; return its folder.

    Args:
        record: the sweep.
        submission: its request.
        home: the home folder.

    Raises:
        ConflictError: the service has a job of that name, or this machine has a sweep of that name.
        UserError: the service refused; no trial runs.
    """
    service = _service_of(record.trial["backend"], home)
    documents = service.stage_sweep(submission, {"sweep.json": record.model_dump_json(indent=1)})
    # The folder before the request: if the answer is lost, the sweep may run and cost money, and must be found again.
    folder = _make(record, home, documents, ServiceRecord())
    _submit(service, folder)
    return folder


def adopt_sweep(backend: str, place: str, name: str, home: Path) -> SweepFolder | None:
    """Create the folder of a sweep that was submitted from another machine; None: the service has no such sweep.

    Args:
        backend: name of its backend.
        place: the workspace that has the sweep.
        name: name of the sweep.
        home: the home folder.

    Raises:
        NotFoundError: the service no longer has its files.
        UserError: the service does not answer.
    """
    if (documents := _service_of(backend, home).adopt_sweep(place, name)) is None:
        return None
    record = SweepRecord.model_validate_json(documents.pop("sweep.json"))
    return _make(record, home, documents, ServiceRecord(confirmed=True))


def _service_of(backend: str, home: Path) -> SweepsNatively:
    service = load_backend(backend, home)
    assert isinstance(service, SweepsNatively)
    return service


def _make(record: SweepRecord, home: Path, documents: Mapping[str, str], service: ServiceRecord) -> SweepFolder:
    remember(record.trial["backend"], home)
    return make_sweep(record, home, {**documents, SERVICE: service.model_dump_json(indent=1)})


def _submit(service: SweepsNatively, folder: SweepFolder) -> None:
    """Submit a sweep whose folder exists; delete the folder if the service refuses the sweep.

    Raises:
        UserError: the service refused, or its answer is unknown.
    """
    _change(folder, intended=time.time(), cancelled=False)
    try:
        service.submit_sweep(_documents(folder))
    except UnknownError as problem:  # it may have accepted: the folder stays, and the next poll finds out
        problem.fix = f"orchestrator sweep show {folder.name}"
        raise
    except UserError as problem:
        delete_folder(folder.path)
        if isinstance(problem, ConflictError):
            problem.fix = "--name with another name"
        raise
    _change(folder, confirmed=True)


def _documents(folder: SweepFolder) -> dict[str, str]:
    return {name: (folder.path / name).read_text() for name in DOCUMENTS}


def _read(folder: SweepFolder) -> ServiceRecord:
    return ServiceRecord.model_validate_json((folder.path / SERVICE).read_text())


def _change(folder: SweepFolder, **changes: object) -> None:
    write_text(folder.path / SERVICE, _read(folder).model_copy(update=changes).model_dump_json(indent=1))


class ServiceControl(SweepControl):
    """Control of a sweep that a service drives.

    Args:
        folder: the folder of the sweep.
        home: the home folder.
    """

    def __init__(self, folder: SweepFolder, home: Path) -> None:
        self._folder, self._record = folder, folder.record()
        self._spec = self._record.spec
        self._service = _service_of(self._record.trial["backend"], home)
        self.poll_seconds = load_backend(self._record.trial["backend"], home).poll_seconds
        self._seen: tuple[float, SweepStatus] | None = None

    def status(self) -> SweepStatus:
        """Return the service's status; during an outage the last known one, with the outage as reason.

        Raises:
            ServiceError: the service does not answer, and no status from within the last hour is known.
            NotFoundError: the service no longer has the sweep.
        """
        if _read(self._folder).settled:
            return self._status_of(self._folder.stored_state(), self._finished_rows())
        try:
            status = self._poll()
        except ServiceError as problem:
            if self._seen is None or time.monotonic() - self._seen[0] > OUTAGE_SECONDS:
                raise
            return self._seen[1].model_copy(update={"reason": problem.message})
        self._seen = time.monotonic(), status
        return status

    def state(self) -> RunState:
        """Return the state of `status`."""
        return self.status().state

    def cancel(self) -> None:
        """Request the cancellation of the sweep and its trials, unless it has finished.

        A sweep whose submission may still arrive is cancelled by the command that sees it first.
        """
        state, confirmed = self.state(), _read(self._folder).confirmed
        if state.terminal and confirmed:
            return
        # Before the request: the service reports a limit and a cancellation by its user in the same way.
        _change(self._folder, cancelled=True)
        if confirmed:
            self._service.cancel_sweep(_documents(self._folder))

    def resume(self) -> None:
        """Submit the sweep if the service never received it; a service cannot resume any other sweep.

        Raises:
            ConflictError: the service has the sweep.
        """
        status = self.status()
        if not status.state.terminal:
            raise ConflictError(f"sweep {status.name} is {status.state}", fix=f"orchestrator sweep show {status.name}")
        if not _read(self._folder).confirmed:
            _submit(self._service, self._folder)
            return
        if status.ended == status.trials:
            raise ConflictError(
                f"sweep {status.name} has all of its {status.trials} trials",
                fix=f"orchestrator sweep best {status.name}",
            )
        raise ConflictError(
            f"{self._service.sweep_service} cannot resume a sweep",
            facts={"sweep": f"{status.name}, {status.ended} of {status.trials} trials", "but": DRIVE_HERE},
            fix=self.resume_command(),
        )

    def extend(self, extended: SweepRecord) -> None:
        """Refuse: a service cannot add trials or raise limits.

        Raises:
            ConflictError: always.
        """
        raise ConflictError(
            f"{self._service.sweep_service} cannot add trials to a sweep",
            facts={"sweep": self._folder.name, "but": DRIVE_HERE},
            fix=self.resume_command(extended.spec.limits.trials),
        )

    def retry(self, trials: Sequence[int]) -> None:
        """Refuse: a service cannot run a finished trial again.

        Raises:
            ConflictError: always.
        """
        raise ConflictError(
            f"{self._service.sweep_service} cannot retry trials",
            facts={"sweep": self._folder.name, "but": DRIVE_HERE},
            fix=self.resume_command(),
        )

    def resume_command(self, trials: int | None = None) -> str:
        """Return the command that drives the same sweep from this machine, or submits it if the service never had it.

        Writes the spec that the command reads.
        """
        if not _read(self._folder).confirmed:
            return f"orchestrator resume {self._folder.name}"
        path = self._folder.path / HERE
        document = {**self._record.sweep, "driver": "here", "trial": self._record.trial}
        write_text(path, yaml.safe_dump(document, sort_keys=False))
        return f"orchestrator submit sweep -f {in_shell(path)}" + (f" --set limits.trials={trials}" if trials else "")

    def _finished_rows(self) -> list[TrialRow]:
        path = self._folder.path / TRIALS
        return [TrialRow.model_validate(row) for row in json.loads(path.read_text())] if path.exists() else []

    def _poll(self) -> SweepStatus:
        rows = {row.trial: row for row in self._finished_rows()}
        sweep = self._service.describe_sweep(_documents(self._folder), self._spec, rows.keys())
        known = _read(self._folder)  # after the service's answer: the user may cancel during the call
        if sweep is None:
            if known.confirmed:
                raise NotFoundError(f"{self._service.sweep_service} no longer has sweep {self._folder.name}")
            return self._status_of(self._missing(known), [])
        if known.cancelled and not sweep.cancelled and not sweep.state.terminal:
            try:
                self._service.cancel_sweep(_documents(self._folder))  # it arrived after its user had cancelled it
            except UserError as problem:  # the status is known all the same, and the next look tries again
                print(f"warning: cannot cancel sweep {self._folder.name}: {problem.message}", file=sys.stderr)
        state = self._state_of(sweep, cancelled=known.cancelled)
        cancelled = known.cancelled or sweep.cancelled or state.reason is not None
        histories = {number: row.values for number, row in rows.items()}
        histories |= {trial.number: list(trial.reports) for trial in sweep.trials}
        rows |= {trial.number: self._row(trial, histories, cancelled=cancelled) for trial in sweep.trials}
        shown = [rows[number] for number in sorted(rows)]
        finished = [row.model_dump(mode="json") for row in shown if row.state != RunState.RUNNING]
        write_text(self._folder.path / TRIALS, json.dumps(finished))
        self._folder.write_state(state)
        settled = state.state.terminal and len(finished) == len(shown)
        _change(self._folder, confirmed=True, best=sweep.best, settled=settled)
        return self._status_of(state, shown)

    def _missing(self, known: ServiceRecord) -> SweepState:
        """Return the state of a sweep that the service does not have, or not yet."""
        if time.time() - known.intended < self._service.arrival_seconds:
            reason = f"{self._service.sweep_service} does not show the sweep yet: its submission may still arrive"
            return SweepState(state=RunState.QUEUED, reason=reason + "; it is cancelled then" * known.cancelled)
        if known.cancelled:
            return SweepState(state=RunState.CANCELLED, reason="it was cancelled")
        return SweepState(state=RunState.FAILED, reason=NOT_SUBMITTED)

    def _status_of(self, state: SweepState, rows: list[TrialRow]) -> SweepStatus:
        return status_of(self._folder, self._record, state, rows, _read(self._folder).best)

    def _state_of(self, sweep: NativeSweep, *, cancelled: bool) -> SweepState:
        """Return the service's state; a sweep that was cancelled at its own limit of hours counts as completed."""
        state, reason, hours = sweep.state, sweep.reason, self._spec.limits.hours
        if state == RunState.CANCELLED:
            took = (sweep.ended or 0.0) - self._record.created
            if not cancelled and hours and took > hours * HOUR - LIMIT_TOLERANCE:
                state, reason = RunState.COMPLETED, f"limits.hours: {hours:g} h are over"
            else:
                reason = reason or "it was cancelled"
        return SweepState(state=state, reason=reason, ended=sweep.ended, mlflow_run_id=sweep.mlflow_run_id)

    def _row(self, trial: NativeTrial, histories: Mapping[int, list[float]], *, cancelled: bool) -> TrialRow:
        objective, status, reports = self._spec.objective, trial.status, histories[trial.number]
        state, why = self._end(trial, histories, cancelled=cancelled)
        counts = state not in {RunState.RUNNING, RunState.FAILED}
        value = outcome(reports, objective) if counts else None
        if counts and value is None:
            # as in its own status: a trial without a result has completed all the same
            state = state if state in {RunState.COMPLETED, "stopped"} else RunState.FAILED.value
            why = why or f"it never reported {objective.metric}"
        started = status.started or status.created
        return row_of(
            reports,
            maximize=objective.goal == "maximize",
            trial=trial.number,
            state=state,
            settings=trial.settings,
            runs=[status.name],
            outcome=value,
            started=started,
            seconds=(status.ended or time.time()) - started,
            ended=status.ended,
            cost=status.cost or 0.0,
            why=why,
        )

    def _end(
        self, trial: NativeTrial, histories: Mapping[int, list[float]], *, cancelled: bool
    ) -> tuple[str, str | None]:
        """Return the state of a trial and the reason.

        The service reports that a trial was cancelled, but not why. Applying the policy to the same reports finds the
        decision and its numbers. A trial of a cancelled sweep is judged at its last report only: an earlier decision
        would have stopped it then.

        Args:
            trial: the trial as the service describes it.
            histories: reports of all trials.
            cancelled: whether the sweep itself was cancelled.
        """
        spec, status = self._spec, trial.status
        policy, last = spec.early_termination, len(histories[trial.number])
        if not status.state.terminal:
            return RunState.RUNNING.value, None
        if status.state == RunState.COMPLETED:
            return RunState.COMPLETED.value, None
        if status.state != RunState.CANCELLED:
            return RunState.FAILED.value, f"{status.name} {status.state}: {status.reason or 'no reason given'}"
        hours, took = spec.limits.trial_hours, (status.ended or 0.0) - (status.started or 0.0)
        if hours is not None and took > hours * HOUR - LIMIT_TOLERANCE:
            return "timed out", f"took more than {hours:g} h"
        for report in range(last, last - 1 if cancelled else 0, -1):
            decision = judge(policy, spec.objective, histories, trial.number, report=report)
            if decision is not None and decision.stop:
                return "stopped", decision.text
        if policy.policy != "none" and not cancelled:
            return "stopped", f"by {self._service.sweep_service} ({policy.policy}), which does not report its numbers"
        return "ended early", "the sweep was ended"
