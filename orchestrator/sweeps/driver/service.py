"""Sweeps that a service of the backend drives: submitted once, read back into the same table, cancelled.

SWEEP/
  sweep.json state.json     as of a sweep that is driven here; state.json is its state at the last look
  plan.json request.json    of its trial; in the request, in the place of the job, the sweep as it is sent
  service.json              whether the service is known to have it, and whether its user cancelled it
  trials.json               trials that have ended, as they were read back: the service is not asked for them again

The first four are with the service too, for other machines that attach.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from orchestrator.backends import load_backend, remember
from orchestrator.backends.capabilities import NativeSweep, NativeTrial, SweepsNatively, UnknownError
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError, NotFoundError, ServiceError, UserError
from orchestrator.sweeps.design.sweep_record import SweepRecord, SweepState
from orchestrator.sweeps.driver.control import SERVICE, SweepControl
from orchestrator.sweeps.driver.start import make_sweep
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.driver.sweep_status import SweepStatus, TrialRow, row_of, standing
from orchestrator.sweeps.policy.limits import HOUR
from orchestrator.sweeps.policy.termination import judge, outcome
from train_jobs.artifacts.files import write_text
from train_jobs.config.base import Config
from train_jobs.config.names import in_shell

if TYPE_CHECKING:
    from orchestrator.backends.base import Submission

TRIALS, HERE = "trials.json", "here.yaml"
DOCUMENTS = ("plan.json", "request.json")
NOT_SUBMITTED = "the service never had the sweep: it was not submitted"
HERE_CAN = "a sweep that is driven from here goes on, on the same cluster"
OUTAGE_SECONDS = 3600.0  # that a service may be away from one who follows a sweep
SLACK = 5.0  # seconds that a limit of time may be missed by


class ServiceRecord(Config):
    """service.json."""

    confirmed: bool = False
    """Whether the service is known to have the sweep."""
    cancelled: bool = False
    """Whether its user cancelled it."""
    best: int | None = None
    """The trial that the service calls the best."""
    settled: bool = False
    """Whether all has ended, and there is nothing more to ask."""

    @property
    def text(self) -> str:
        """JSON of the file."""
        return self.model_dump_json(indent=1)


def send_sweep(record: SweepRecord, submission: Submission, home: Path) -> SweepFolder:
    """Stage and submit a sweep; its name is on record before it is sent.

    Args:
        record: what was asked for.
        submission: of the sweep.
        home: the home folder.

    Raises:
        ConflictError: the service has a job of that name, or this machine such a sweep.
        UserError: the service refused; nothing runs then.
    """
    service = service_of(record, home)
    documents = service.stage_sweep(submission, {"sweep.json": record.model_dump_json(indent=1)})
    folder = _make(record, home, documents, ServiceRecord())
    _submit(service, folder)
    return folder


def adopt_sweep(backend: str, place: str, name: str, home: Path) -> SweepFolder | None:
    """Make the folder of a sweep that was submitted from another machine; None: the service has no such sweep.

    Args:
        backend: its name.
        place: where the backend keeps it: the workspace.
        name: of the sweep.
        home: the home folder.

    Raises:
        NotFoundError: its files are gone.
        UserError: the service cannot be asked.
    """
    service = load_backend(backend, home)
    assert isinstance(service, SweepsNatively)
    documents = service.adopt_sweep(place, name)
    if documents is None:
        return None
    record = SweepRecord.model_validate_json(documents.pop("sweep.json"))
    return _make(record, home, documents, ServiceRecord(confirmed=True))


def service_of(record: SweepRecord, home: Path) -> SweepsNatively:
    """Return the backend of a sweep that its service drives."""
    backend = load_backend(record.trial["backend"], home)
    assert isinstance(backend, SweepsNatively)
    return backend


def _make(record: SweepRecord, home: Path, documents: Mapping[str, str], service: ServiceRecord) -> SweepFolder:
    remember(record.trial["backend"], home)
    return make_sweep(record, home, {**documents, SERVICE: service.text})


def _submit(service: SweepsNatively, folder: SweepFolder) -> None:
    """Submit a sweep that is on record; one that the service refuses leaves no record."""
    try:
        service.submit_sweep(_documents(folder))
    except UnknownError as problem:
        problem.fix = f"orchestrator sweep show {folder.name}"
        raise
    except UserError as problem:
        shutil.rmtree(folder.path)
        if isinstance(problem, ConflictError):
            problem.fix = "--name with another name"
        raise
    _change(folder, confirmed=True)


def _documents(folder: SweepFolder) -> dict[str, str]:
    return {name: (folder.path / name).read_text() for name in DOCUMENTS}


def _read(folder: SweepFolder) -> ServiceRecord:
    return ServiceRecord.model_validate_json((folder.path / SERVICE).read_text())


def _change(folder: SweepFolder, **changes: object) -> None:
    write_text(folder.path / SERVICE, _read(folder).model_copy(update=changes).text)


class ServiceControl(SweepControl):
    """Control of a sweep that a service drives.

    Args:
        folder: of the sweep.
        home: the home folder.
    """

    def __init__(self, folder: SweepFolder, home: Path) -> None:
        self._folder, self._record = folder, folder.record()
        self._service = service_of(self._record, home)
        self.poll_seconds = load_backend(self._record.trial["backend"], home).poll_seconds
        self._seen: tuple[float, SweepStatus] | None = None

    def status(self) -> SweepStatus:
        """Return what the service reports; during an outage, the last answer with the reason."""
        if _read(self._folder).settled:
            return self._status_of(self._folder.stored_state(), self._ended_rows())
        try:
            status = self._look()
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
        """Ask the service to end it, which ends its trials."""
        if not self.state().terminal:
            _change(self._folder, cancelled=True)
            self._service.cancel_sweep(_documents(self._folder))

    def resume(self) -> None:
        """Submit a sweep that the service never had; the service resumes no other."""
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
            f"{self._service.sweep_service} takes no sweep up again",
            facts={"sweep": f"{status.name}, {status.ended} of {status.trials} trials", "but": HERE_CAN},
            fix=self.way_on(),
        )

    def extend(self, longer: SweepRecord) -> None:
        """Refuse: no service can."""
        raise ConflictError(
            f"{self._service.sweep_service} lets no sweep have more trials",
            facts={"sweep": self._folder.name, "but": HERE_CAN},
            fix=self.way_on(longer.spec.limits.trials),
        )

    def way_on(self, trials: int | None = None) -> str:
        """Return the command that drives the same sweep from here, or submits one that the service never had."""
        if not _read(self._folder).confirmed:
            return f"orchestrator resume {self._folder.name}"
        path = self._folder.path / HERE
        document = {**self._record.sweep, "driver": "here", "trial": self._record.trial}
        write_text(path, yaml.safe_dump(document, sort_keys=False))
        return f"orchestrator submit sweep -f {in_shell(path)}" + (f" --set limits.trials={trials}" if trials else "")

    def _ended_rows(self) -> list[TrialRow]:
        path = self._folder.path / TRIALS
        return [TrialRow.model_validate(row) for row in json.loads(path.read_text())] if path.exists() else []

    def _look(self) -> SweepStatus:
        rows = {row.trial: row for row in self._ended_rows()}
        there = self._service.describe_sweep(_documents(self._folder), self._record.spec, rows.keys())
        if there is None:
            if _read(self._folder).confirmed:
                raise NotFoundError(f"{self._service.sweep_service} has no sweep {self._folder.name} any more")
            return self._status_of(SweepState(state=RunState.FAILED, reason=NOT_SUBMITTED), [])
        asked = _read(self._folder).cancelled
        state = self._state_of(there, cancelled=asked)
        cancelled = asked or there.cancelled or state.reason is not None
        histories = {number: row.values for number, row in rows.items()}
        histories |= {trial.number: list(trial.reports) for trial in there.trials}
        for trial in there.trials:
            rows[trial.number] = self._row(trial, histories, cancelled=cancelled)
        found = [rows[number] for number in sorted(rows)]
        ended = [row.model_dump(mode="json") for row in found if row.state != RunState.RUNNING]
        write_text(self._folder.path / TRIALS, json.dumps(ended))
        self._folder.write_state(state)
        settled = state.state.terminal and len(ended) == len(found)
        _change(self._folder, confirmed=True, best=there.best, settled=settled)
        return self._status_of(state, found)

    def _status_of(self, state: SweepState, rows: list[TrialRow]) -> SweepStatus:
        return standing(self._folder, self._record, state, rows, _read(self._folder).best)

    def _state_of(self, there: NativeSweep, *, cancelled: bool) -> SweepState:
        """State by the service's word; a limit of hours that is reached completes a sweep, as it does here."""
        state, reason, hours = there.state, there.reason, self._record.spec.limits.hours
        if state == RunState.CANCELLED:
            took = (there.ended or 0.0) - self._record.created
            if not cancelled and hours and took > hours * HOUR - SLACK:
                state, reason = RunState.COMPLETED, f"limits.hours: {hours:g} h are over"
            else:
                reason = reason or "it was cancelled"
        return SweepState(state=state, reason=reason, ended=there.ended, mlflow_run_id=there.mlflow_run_id)

    def _row(self, trial: NativeTrial, histories: Mapping[int, list[float]], *, cancelled: bool) -> TrialRow:
        spec, status, reports = self._record.spec, trial.status, histories[trial.number]
        state, why = self._end(trial, histories, cancelled=cancelled)
        counts = state not in {RunState.RUNNING, RunState.FAILED}
        value = outcome(reports, spec.objective) if counts else None
        if counts and value is None:
            state, why = RunState.FAILED.value, why or f"it never reported {spec.objective.metric}"
        started = status.started or status.created
        return row_of(
            reports,
            maximize=spec.objective.goal == "maximize",
            trial=trial.number,
            state=state,
            settings=trial.settings,
            runs=[status.name],
            outcome=value,
            started=started,
            seconds=(status.ended or time.time()) - started,
            cost=status.cost or 0.0,
            why=why,
        )

    def _end(
        self, trial: NativeTrial, histories: Mapping[int, list[float]], *, cancelled: bool
    ) -> tuple[str, str | None]:
        """As what a trial ended, and why. Of one that the service ended it reports only that it was cancelled: the
        numbers are found by the same rule, applied to the same reports.

        Args:
            trial: as the service reports it.
            histories: reports of all trials.
            cancelled: whether the sweep itself was cancelled.
        """
        spec, status = self._record.spec, trial.status
        policy, last = spec.early_termination, len(histories[trial.number])
        if not status.state.terminal:
            return RunState.RUNNING.value, None
        if status.state == RunState.COMPLETED:
            return RunState.COMPLETED.value, None
        if status.state != RunState.CANCELLED:
            return RunState.FAILED.value, f"{status.name} {status.state}: {status.reason or 'no reason given'}"
        hours, took = spec.limits.trial_hours, (status.ended or 0.0) - (status.started or 0.0)
        if hours is not None and took > hours * HOUR - SLACK:
            return "timed out", f"took more than {hours:g} h"
        for report in range(last, last - 1 if cancelled else 0, -1):
            decision = judge(policy, spec.objective, histories, trial.number, report=report)
            if decision is not None and decision.stop:
                return "stopped", decision.text
        if policy.policy != "none" and not cancelled:
            return "stopped", f"by {self._service.sweep_service} ({policy.policy}), which does not report its numbers"
        return "ended early", "the sweep was ended"
