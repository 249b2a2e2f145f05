"""Sweeps that Azure's own service drives: sent once, read back into the same table, asked to end.

SWEEP/
  sweep.json state.json     as of a sweep that is driven here; state.json is where it stood at the last look
  plan.json request.json    of its trial; in the request, in the place of the job, the sweep as it is sent
  service.json              whether Azure is known to have it, and whether its user asked it to end
  trials.json               trials that have ended, as they were read back: nobody is asked for them again

The first four lie in the datastore too, for whoever attaches from another machine.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from orchestrator.backends import load_backend, remember
from orchestrator.backends.azure.assets import places
from orchestrator.backends.azure.backend import OUTAGE_SECONDS, AzureBackend
from orchestrator.backends.azure.options import AZURE
from orchestrator.backends.azure.runs import states
from orchestrator.backends.azure.runs.adoption import adopt_trial
from orchestrator.backends.azure.runs.observer import NOT_ACCEPTED
from orchestrator.backends.azure.runs.record import RecordFolder
from orchestrator.backends.azure.sweeps.sweep_job import settings_of, sweep_request
from orchestrator.backends.azure.wire.workspace import Workspace
from orchestrator.runs.status import RunState, RunStatus
from orchestrator.specs.sweep_spec import Settings, SweepSpec
from orchestrator.support.errors import ConflictError, NotFoundError, ServiceError, UserError
from orchestrator.sweeps.design.sweep_record import SweepRecord, SweepState
from orchestrator.sweeps.driver.control import SERVICE, Control
from orchestrator.sweeps.driver.start import make_sweep
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.driver.sweep_status import SweepStatus, TrialRow, standing
from orchestrator.sweeps.policy.termination import best, judge, outcome
from train_jobs.artifacts.files import write_text
from train_jobs.config.base import Config
from train_jobs.config.names import in_shell

if TYPE_CHECKING:
    from orchestrator.backends.azure.wire.control_plane import Body, Wire
    from orchestrator.jobs.base import Plan

SWEEP_TAG = "orchestrator.sweep"
TRIALS, HERE = "trials.json", "here.yaml"
DOCUMENTS = ("plan.json", "request.json")
HYPERPARAMETERS = "hyperparameters"  # tag of a trial
BEST = "best_child_run_id"  # property of the sweep
End = tuple[str, str | None]
HOUR = 3600.0
SLACK = 5.0  # seconds that a limit of time may be missed by


class ServiceRecord(Config):
    """service.json."""

    confirmed: bool = False
    """Whether Azure is known to have it."""
    cancelled: bool = False
    """Whether its user asked it to end."""
    best: int | None = None
    """The trial that Azure calls the best."""
    settled: bool = False
    """Whether all has ended, and there is nothing more to ask."""


def send_sweep(record: SweepRecord, plan: Plan, home: Path) -> SweepFolder:
    """Does all that the trials need, as for a job, and submits the sweep; its name is on record before it is sent.

    Args:
        record: what was asked for.
        plan: of its trial, without a setting of the space.
        home: the home folder.

    Raises:
        ConflictError: the workspace has a job of that name, or this machine such a sweep.
        UserError: Azure refused; nothing runs then.
    """
    from orchestrator.backends.azure.runs.dispatch import prepare

    backend = _backend(home)
    request = sweep_request(record.spec, backend.request(plan.model_copy(update={"name": record.name}), record.name))
    wire = backend.wire_to(request.workspace.require())
    documents = prepare(wire, request, plan, home, {"sweep.json": record.model_dump_json(indent=1)})
    kept = {name: documents[name] for name in DOCUMENTS}
    folder = make_sweep(record, home, {**kept, SERVICE: ServiceRecord().model_dump_json(indent=1)})
    remember(AZURE, home)
    _put(wire, folder, request.job)
    return folder


def adopt_sweep(workspace: str, name: str, home: Path) -> SweepFolder | None:
    """The folder of a sweep that was submitted from another machine; None: the workspace has no such sweep.

    Raises:
        NotFoundError: its files are gone.
        UserError: Azure cannot be asked.
    """
    from orchestrator.backends.azure.wire.blobs import Files

    backend = _backend(home)
    wire = backend.wire_to(backend.workspace({}, workspace).require())
    wire.location()
    job = wire.job(name)
    tags = (job or {}).get("properties", {}).get("tags") or {}
    if tags.get(SWEEP_TAG) != name:
        return None
    files, place = Files(wire.store(tags["orchestrator.datastore"])), places.job_folder(name)
    kept = {document: files.read(place + document).decode() for document in DOCUMENTS}
    record = SweepRecord.model_validate_json(files.read(f"{place}sweep.json"))
    remember(AZURE, home)
    return make_sweep(record, home, {**kept, SERVICE: ServiceRecord(confirmed=True).model_dump_json(indent=1)})


def _put(wire: Wire, folder: SweepFolder, body: Body) -> None:
    """Submits a sweep that is on record; of one that Azure refuses no record stays."""
    from orchestrator.backends.azure.runs.dispatch import UnknownError, put

    try:
        put(wire, folder.name, body)
    except UnknownError as problem:
        problem.fix = f"orchestrator sweep show {folder.name}"
        raise
    except UserError as problem:
        shutil.rmtree(folder.path)
        if isinstance(problem, ConflictError):
            problem.fix = "--name with another name"
        raise
    _write(folder, _service(folder).model_copy(update={"confirmed": True}))


def _backend(home: Path) -> AzureBackend:
    return cast(AzureBackend, load_backend(AZURE, home))


def _service(folder: SweepFolder) -> ServiceRecord:
    return ServiceRecord.model_validate_json((folder.path / SERVICE).read_text())


def _write(folder: SweepFolder, service: ServiceRecord) -> None:
    write_text(folder.path / SERVICE, service.model_dump_json(indent=1))


class ServiceControl(Control):
    """Of a sweep that Azure's service drives.

    Args:
        folder: of the sweep.
        home: the home folder.
    """

    def __init__(self, folder: SweepFolder, home: Path) -> None:
        self._folder, self._home = folder, home
        self._backend = _backend(home)
        self.poll_seconds = self._backend.poll_seconds
        self._seen: tuple[float, SweepStatus] | None = None

    def status(self) -> SweepStatus:
        """By what Azure tells. While Azure is away, who has asked before gets the last answer, and why."""
        record, state, rows = self._folder.record(), self._folder.stored_state(), self._ended_rows()
        if _service(self._folder).settled:
            return self._standing(record, state, rows)
        try:
            status = self._look(record, rows)
        except ServiceError as problem:
            if self._seen is None or time.monotonic() - self._seen[0] > OUTAGE_SECONDS:
                raise
            return self._seen[1].model_copy(update={"reason": problem.message})
        self._seen = time.monotonic(), status
        return status

    def state(self) -> RunState:
        """As of `status`."""
        return self.status().state

    def cancel(self) -> None:
        """Asks Azure to end it, which ends its trials."""
        if not self.state().terminal:
            _write(self._folder, _service(self._folder).model_copy(update={"cancelled": True}))
            self._wire.cancel_job(self._folder.name)

    def resume(self) -> None:
        """Sends a sweep that Azure never had; the service takes no other up again."""
        status = self.status()
        if not status.state.terminal:
            raise ConflictError(f"sweep {status.name} is {status.state}", fix=f"orchestrator sweep show {status.name}")
        if not _service(self._folder).confirmed:
            _put(self._wire, self._folder, self._document("request.json")["job"])
            return
        if status.ended == status.trials:
            raise ConflictError(
                f"sweep {status.name} has all of its {status.trials} trials",
                fix=f"orchestrator sweep best {status.name}",
            )
        raise ConflictError(
            "Azure's sweep service takes no sweep up again",
            facts={"sweep": f"{status.name}, {status.ended} of {status.trials} trials", "but": HERE_CAN},
            fix=self.way_on(),
        )

    def extend(self, longer: SweepRecord) -> None:
        """Refuses: the service has no such thing."""
        before = self._folder.record()
        raise ConflictError(
            "Azure's sweep service lets no sweep have more trials",
            facts={"sweep": before.name, "but": HERE_CAN},
            fix=self.way_on(longer.spec.limits.trials),
        )

    def way_on(self, trials: int | None = None) -> str:
        """The same sweep, driven from here; a sweep that Azure never had is sent."""
        if not _service(self._folder).confirmed:
            return f"orchestrator resume {self._folder.name}"
        record, path = self._folder.record(), self._folder.path / HERE
        document = {**record.sweep, "driver": "here", "trial": record.trial}
        write_text(path, yaml.safe_dump(document, sort_keys=False))
        return f"orchestrator submit sweep -f {in_shell(path)}" + (f" --set limits.trials={trials}" if trials else "")

    @cached_property
    def _wire(self) -> Wire:
        return self._backend.wire_to(Workspace.model_validate(self._document("request.json")["workspace"]))

    def _document(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder.path / name).read_text())
        return found

    def _ended_rows(self) -> list[TrialRow]:
        path = self._folder.path / TRIALS
        return [TrialRow.model_validate(row) for row in json.loads(path.read_text())] if path.exists() else []

    def _look(self, record: SweepRecord, ended: list[TrialRow]) -> SweepStatus:
        job, service = self._wire.job(record.name), _service(self._folder)
        if job is None:
            if service.confirmed:
                raise NotFoundError(f"workspace {self._wire.workspace.workspace} has no sweep {record.name} any more")
            return self._standing(record, SweepState(state=RunState.FAILED, reason=NOT_ACCEPTED), [])
        properties = job["properties"].get("properties") or {}
        top = places.trial_of(str(properties.get(BEST)))
        state = self._state(record, job, cancelled=service.cancelled)
        rows = self._rows(record, job, ended, cancelled=service.cancelled or _is_cancelled(job, state))
        write_text(
            self._folder.path / TRIALS,
            json.dumps([row.model_dump(mode="json") for row in rows if row.state != RunState.RUNNING]),
        )
        self._folder.write_state(state)
        settled = state.state.terminal and all(row.state != RunState.RUNNING for row in rows)
        found = {"confirmed": True, "best": top[1] if top else None, "settled": settled}
        _write(self._folder, _service(self._folder).model_copy(update=found))
        return self._standing(record, state, rows)

    def _standing(self, record: SweepRecord, state: SweepState, rows: list[TrialRow]) -> SweepStatus:
        return standing(self._folder, record, state, rows, _service(self._folder).best)

    def _state(self, record: SweepRecord, job: Body, *, cancelled: bool) -> SweepState:
        """Where the sweep stands, by Azure's word; a limit of hours that is over ends it as it does here."""
        state = states.state_of(str(job["properties"].get("status")))
        if not state.terminal:
            return SweepState(state=state, mlflow_run_id=record.name)
        details = self._wire.details(record.name)
        ended = states.seconds(details.get("endTimeUtc")) or time.time()
        reason = states.error_text(details)
        hours = record.spec.limits.hours
        if state == RunState.CANCELLED and not cancelled and hours and ended - record.created > hours * HOUR - SLACK:
            state, reason = RunState.COMPLETED, f"limits.hours: {hours:g} h are over"
        if state == RunState.CANCELLED:
            reason = reason or "it was cancelled"
        return SweepState(state=state, reason=reason, ended=ended, mlflow_run_id=record.name)

    def _rows(self, record: SweepRecord, job: Body, ended: list[TrialRow], *, cancelled: bool) -> list[TrialRow]:
        """Every trial that has begun, in the order of their numbers; those in `ended` as they are."""
        known = {row.trial: row for row in ended}
        children: dict[int, Body] = {}
        for child in self._wire.children(record.name):
            trial = places.trial_of(str(child["runId"]))
            if trial is not None and trial[0] == record.name:
                children[trial[1]] = child
        found: dict[int, tuple[RunStatus, Settings]] = {}
        for number in sorted(children.keys() - known.keys()):
            settings = _settings(record.spec, children[number], job["properties"].get("tags") or {})
            found[number] = self._run(children[number], settings), settings
        reports = {number: self._reports(status.name, record.spec) for number, (status, _) in found.items()}
        histories = {**{row.trial: row.values for row in ended}, **reports}
        for number, (status, settings) in found.items():
            end = _end(record.spec, number, status, histories, cancelled=cancelled)
            known[number] = _row(record.spec, number, status, settings, histories[number], end)
        return [known[number] for number in sorted(known)]

    def _run(self, child: Body, settings: Settings) -> RunStatus:
        """How the run of a trial stands, which is put on record here if it is new."""
        name = str(child["runId"])
        created = states.seconds(child.get("createdUtc")) or time.time()
        plan, request = (self._document(one) for one in DOCUMENTS)
        adopt_trial(RecordFolder(self._home / AZURE / name), plan, request, settings, created)
        return self._backend.describe(name)

    def _reports(self, run: str, spec: SweepSpec) -> list[float]:
        metric = spec.objective.metric
        reports = self._backend.metrics(run)
        return [float(report["metrics"][metric]) for report in reports if metric in report["metrics"]]


HERE_CAN = "a sweep that is driven from here goes on, on the same cluster"


def _settings(spec: SweepSpec, child: Body, tags: Mapping[str, str]) -> Settings:
    """What a trial was given, as the service notes it at the trial, or at the sweep under the trial's name."""
    told = (child.get("tags") or {}).get(HYPERPARAMETERS) or tags.get(str(child["runId"])) or "{}"
    return settings_of(spec.space, json.loads(told))


def _is_cancelled(job: Body, state: SweepState) -> bool:
    """Whether a sweep was asked to end, by whomever, or its time is over."""
    return job["properties"].get("status") in {"CancelRequested", "Canceled"} or state.reason is not None


def _row(
    spec: SweepSpec, number: int, status: RunStatus, settings: Settings, reports: list[float], end: End
) -> TrialRow:
    finite = [value for value in reports if math.isfinite(value)]
    state, why = end
    came = outcome(reports, spec.objective) if state not in {RunState.RUNNING, RunState.FAILED} else None
    if came is None and state not in {RunState.RUNNING, RunState.FAILED}:
        state, why = RunState.FAILED.value, why or f"it never reported {spec.objective.metric}"
    started = status.started or status.created
    return TrialRow(
        trial=number,
        state=state,
        settings=settings,
        runs=[status.name],
        last=reports[-1] if reports and math.isfinite(reports[-1]) else None,
        best=best(finite, maximize=spec.objective.goal == "maximize") if finite else None,
        outcome=came,
        reports=len(reports),
        values=finite,
        started=started,
        seconds=(status.ended or time.time()) - started,
        cost=status.cost or 0.0,
        why=why,
    )


def _end(
    spec: SweepSpec, number: int, status: RunStatus, histories: Mapping[int, list[float]], *, cancelled: bool
) -> End:
    """As what a trial ended, and why. Azure says of one that it ended itself only that it was cancelled: by which
    numbers is worked out here, by the same rule of the same reports.

    Args:
        spec: the sweep.
        number: of the trial.
        status: of its run.
        histories: reports of all trials.
        cancelled: whether the sweep itself was asked to end.
    """
    if not status.state.terminal:
        return RunState.RUNNING.value, None
    if status.state == RunState.COMPLETED:
        return RunState.COMPLETED.value, None
    if status.state != RunState.CANCELLED:
        return RunState.FAILED.value, f"{status.name} {status.state}: {status.reason or 'no reason given'}"
    hours, took = spec.limits.trial_hours, (status.ended or 0.0) - (status.started or 0.0)
    if hours is not None and took > hours * HOUR - SLACK:
        return "timed out", f"took more than {hours:g} h"
    last = len(histories[number])
    for report in range(last, last - 1 if cancelled else 0, -1):
        decision = judge(spec.early_termination, spec.objective, histories, number, report=report)
        if decision is not None and decision.stop:
            return "stopped", decision.text
    if spec.early_termination.policy != "none" and not cancelled:
        return "stopped", f"by Azure's {spec.early_termination.policy}, which does not say by what numbers"
    return "ended early", "the sweep was ended"
