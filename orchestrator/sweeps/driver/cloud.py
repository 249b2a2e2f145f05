"""Sweeps that a schedule of the backend takes on step by step, without a process of this machine.

    python -m orchestrator.sweeps.driver.cloud BACKEND SWEEP     # one step, in a job of the schedule

The driver is the one of `driver.py`. Its folder is kept at the backend as one archive, which a step reads, and replaces
only if no other step has replaced it meanwhile. It does so before it submits or cancels anything: of two steps at the
same time one stops, and none submits another trial under the same name.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_DEFLATED, ZipFile

from orchestrator.backends import load_backend, remember, require
from orchestrator.backends.capabilities import SupervisesSweeps, UnknownError
from orchestrator.runs.hidden_folders import delete_folder
from orchestrator.runs.status import RunState, RunStatus
from orchestrator.support.errors import ConflictError, NotFoundError, ServiceError, SpecError, UserError
from orchestrator.support.home import SWEEPS
from orchestrator.sweeps.driver.control import DriverControl, check_secrets, make_sweep
from orchestrator.sweeps.driver.driver import Driver, LiveTrial
from orchestrator.sweeps.driver.history import WarmStart
from orchestrator.sweeps.driver.sweep_folder import CLOUD, STARTING, STUDY, SweepFolder
from orchestrator.sweeps.driver.sweep_status import SweepStatus, sweep_status
from train_jobs.artifacts.files import write_text
from train_jobs.config.fields import Config

if TYPE_CHECKING:
    from orchestrator.backends.base import Backend, Submission
    from orchestrator.specs.sweep_spec import SweepSpec
    from orchestrator.sweeps.design.sweep_record import SweepRecord

KEPT = ("sweep.json", "history.json", "state.json", STUDY, "decisions.jsonl", "metrics.jsonl", "cancel", CLOUD)


class CloudRecord(Config):
    """The place of a sweep: cloud.json."""

    backend: str
    """Name of the backend."""
    place: str
    """Workspace, as in handles of its trials' runs."""
    schedule: dict[str, Any]
    """Body of its schedule."""

    @classmethod
    def read(cls, folder: SweepFolder) -> CloudRecord:
        """Return the record in a sweep's folder."""
        return cls.model_validate_json((folder.path / CLOUD).read_text())


def pack(folder: SweepFolder) -> bytes:
    """Return the archive of a sweep's folder."""
    stream = io.BytesIO()
    with ZipFile(stream, "w", ZIP_DEFLATED) as archive:
        for name in KEPT:
            if (folder.path / name).is_file():
                archive.write(folder.path / name, name)
    return stream.getvalue()


def unpack(content: bytes, folder: SweepFolder) -> None:
    """Make a sweep's folder equal to an archive; other files stay."""
    folder.path.mkdir(parents=True, exist_ok=True)
    with ZipFile(io.BytesIO(content)) as archive:
        names = {*archive.namelist()}
        for name in KEPT:
            if name in names:
                write_text(folder.path / name, archive.read(name).decode())
            else:
                (folder.path / name).unlink(missing_ok=True)


def _created(content: bytes) -> float:
    """Return when the sweep of an archive was created; the rest of its record may change."""
    with ZipFile(io.BytesIO(content)) as archive:
        return float(json.loads(archive.read("sweep.json"))["created"])


def check_supervision(spec: SweepSpec, trial: Submission, backend: Backend) -> None:
    """Refuse a sweep that a schedule of the backend of its trials could not drive.

    Args:
        spec: the sweep.
        trial: submission of its trial.
        backend: of its trials.

    Raises:
        SpecError: its trials need something of this machine, or its sampling needs torch.
    """
    if (problem := require(backend, SupervisesSweeps).needs_this_machine(trial)) is not None:
        raise SpecError(
            f"cannot supervise the sweep from {backend.name}: its trials need {problem}", fix="--supervise here"
        )
    if spec.sampling.name == "gp":  # Optuna's sampler is the only one that needs torch
        raise SpecError(
            f"cannot supervise a sweep with sampling gp from {backend.name}: its image has no torch",
            fix="--set sampling=tpe",
        )


def start_sweep(record: SweepRecord, trial: Submission, home: Path, history: WarmStart) -> SweepFolder:
    """Create a sweep here and at its backend, and start its schedule.

    Args:
        record: the sweep.
        trial: submission of its trial, with the supervisor of the sweep.
        home: the home folder.
        history: trials of earlier sweeps that it starts with.

    Raises:
        UnknownError: it is unknown whether the backend has the sweep; its folder stays.
        UserError: the backend refused; nothing remains.
    """
    backend = load_backend(record.trial["backend"], home)
    store = require(backend, SupervisesSweeps)
    remember(backend.name, home)
    # of the trials: the sweep has the schedule, not each of them
    record = record.model_copy(update={"trial": store.unsupervised(record.trial)})
    folder = make_sweep(record, home, history=history)
    try:
        place, schedule = store.stage_sweep_supervision(trial)
    except UserError:
        delete_folder(folder.path)
        raise
    where = CloudRecord(backend=backend.name, place=place, schedule=schedule)
    write_text(folder.path / CLOUD, where.model_dump_json())
    folder.write_state(folder.stored_state().model_copy(update={"state": RunState.RUNNING}))
    _submit(store, folder, where)
    return folder


def _submit(store: SupervisesSweeps, folder: SweepFolder, where: CloudRecord) -> None:
    """Create the archive and the schedule of a new sweep; delete its folder if the backend refuses one of them.

    Raises:
        ConflictError: the backend has another sweep of that name.
        UnknownError: it is unknown whether the backend has them; the folder stays.
        UserError: the backend refused.
    """
    # The mark before the requests: if an answer is lost, the sweep may run and cost money, and must be found again.
    (folder.path / STARTING).touch()
    archived = False
    try:
        _create_archive(store, folder, where.place)
        archived = True
        store.start_sweep_supervision(where.place, folder.name, where.schedule)
    except UserError as problem:
        refused = not isinstance(problem, ServiceError)
        if refused and (not archived or _withdraw(store, folder.name, where.place)):
            delete_folder(folder.path)
            raise
        raise UnknownError(
            f"cannot find out whether {where.backend} takes on sweep {folder.name}",
            facts={"reason": problem.message},
            fix=f"orchestrator sweep show {folder.name}",
        ) from problem
    (folder.path / STARTING).unlink()


def _create_archive(store: SupervisesSweeps, folder: SweepFolder, place: str) -> None:
    content = pack(folder)
    try:
        store.write_sweep(place, folder.name, content, None)
    except ConflictError as problem:
        # the client sends a request again if its answer was lost, and finds its own archive then
        if store.read_sweep(place, folder.name)[0] != content:
            problem.fix = "--name with another name"
            raise


def _withdraw(store: SupervisesSweeps, name: str, place: str) -> bool:
    """Delete the schedule and the archive of a refused sweep; return whether none remains."""
    with suppress(UserError):
        store.end_sweep_supervision(place, name)  # the error may be that of a request after its creation
        store.delete_sweep(place, name)
        return True
    return False


class CloudDriver(Driver):
    """The driver for one step.

    Args:
        folder: the folder of the sweep, equal to the archive of `version`.
        home: the home folder.
        version: of the archive at the backend.
    """

    def __init__(self, folder: SweepFolder, home: Path, version: str) -> None:
        super().__init__(folder, home)
        self._store = require(self.backend, SupervisesSweeps)
        self._place = CloudRecord.read(folder).place
        self._version = version
        self._progress: tuple[int, int] | None = None

    def push(self) -> None:
        """Replace the archive.

        Raises:
            ConflictError: another step has replaced it.
        """
        self._version = self._store.write_sweep(self._place, self.record.name, pack(self.folder), self._version)

    def replaced(self) -> bool:
        """Return whether another step has replaced the archive since the last time that this one read or wrote it."""
        return self._store.read_sweep(self._place, self.record.name)[1] != self._version

    def _pause(self) -> None:
        """End the step once a round has neither started nor finished a trial."""
        progress = len(self._trials()), len(self.live)
        self.stop_requested = progress == self._progress
        self._progress = progress

    def _poll(self, live: LiveTrial) -> None:
        if not self.folder.cancel_file.exists():  # a cancelled run would be resumed like an interrupted one
            super()._poll(live)

    def _add(self, drawn: dict[str, Any], **attributes: Any) -> None:
        super()._add(drawn, **attributes)
        self.push()

    def _request_cancel(self, name: str) -> None:
        self.push()  # its reason, which the run itself does not show
        super()._request_cancel(name)

    def _cancel(self) -> tuple[RunState, str | None]:
        """Request the end of every run, without waiting for it: the next step finds them ended."""
        names = [name for live in self.live.values() for name in live.runs]
        self._update(interrupted=names)
        running = [name for name in names if self._may_run(name)]
        for name in running:
            self._request_cancel(name)
        return (RunState.PREEMPTED, None) if running else (RunState.CANCELLED, "it was cancelled")

    def _status(self, name: str) -> RunStatus | None:
        try:
            return self.backend.describe(f"{self._place}/{name}")
        except NotFoundError:
            return None


def take_step(folder: SweepFolder, home: Path, backend: str, place: str) -> RunState:
    """Take a sweep one step on; return its state.

    Args:
        folder: the folder of the sweep, which is made equal to the archive first.
        home: the home folder.
        backend: name of the backend.
        place: its workspace.

    Raises:
        ConflictError: another step is being taken at the same time.
        UserError: the backend refused; the next step tries again.
    """
    store, name = require(load_backend(backend, home), SupervisesSweeps), folder.name
    content, version = store.read_sweep(place, name)
    unpack(content, folder)
    if not folder.stored_state().state.terminal:
        driver = CloudDriver(folder, home, version)
        reason = None
        try:
            driver.drive()
        except ConflictError:
            # Any other conflict is as in a driver of this machine: it lasts, so the sweep has failed.
            if driver.replaced():
                raise
        except UserError as problem:
            reason = problem.message
        state = folder.stored_state()
        if reason is not None or state.state == RunState.PREEMPTED:
            folder.write_state(state.model_copy(update={"state": RunState.RUNNING, "reason": reason, "ended": None}))
        driver.push()
    state = folder.stored_state()
    if state.state.terminal:
        store.end_sweep_supervision(place, name)
    return state.state


class CloudControl(DriverControl):
    """Control of a sweep that a schedule of its backend takes on.

    Args:
        folder: of the sweep.
        home: the home folder.
    """

    def __init__(self, folder: SweepFolder, home: Path) -> None:
        super().__init__(folder, home)
        self._where = CloudRecord.read(folder)
        backend = load_backend(self._where.backend, home)
        self._store, self.poll_seconds = require(backend, SupervisesSweeps), backend.poll_seconds
        self._version: str | None = None

    def status(self) -> SweepStatus:
        """Return the status of the last step."""
        self._pull()
        status = sweep_status(self._folder)
        if self._folder.unconfirmed():
            reason = f"{self._where.backend} does not show its schedule; to send it again: {self.resume_command()}"
            return status.model_copy(update={"reason": reason})
        return status

    def state(self) -> RunState:
        """Return the state of the last step."""
        self._pull()
        return self._folder.stored_state().state

    def cancel(self) -> None:
        """Request the end of the sweep, and take a step that cancels its trials, also those of a failed sweep."""
        state = self.state()
        if state in {RunState.COMPLETED, RunState.CANCELLED}:
            return
        self._folder.cancel_file.touch()
        if state.terminal:
            self._start_again()
        else:
            self._push()
        take_step(self._folder, self._home, self._where.backend, self._where.place)

    def _pull(self) -> None:
        """Read the archive; without one, a sweep whose start is unconfirmed is as in its folder here.

        Raises:
            ConflictError: it is the archive of another sweep of that name.
        """
        place, name, unconfirmed = self._where.place, self._folder.name, self._folder.unconfirmed()
        try:
            content, version = self._store.read_sweep(place, name)
        except NotFoundError:
            if not unconfirmed:
                raise
            self._version = None
            return
        if unconfirmed and _created(content) != self._folder.record().created:
            raise ConflictError(f"the workspace has another sweep {name}", fix="--name with another name")
        unpack(content, self._folder)
        self._version = version
        if unconfirmed and (self._folder.stored_state().state.terminal or self._store.supervises_sweep(place, name)):
            (self._folder.path / STARTING).unlink()

    def _push(self) -> None:
        # of the last pull: a step that was taken since wrote what this folder lacks
        self._version = self._store.write_sweep(self._where.place, self._folder.name, pack(self._folder), self._version)

    def _restart(self) -> None:
        check_secrets(self._folder.record())
        self._folder.cancel_file.unlink(missing_ok=True)
        self._start_again()

    def _start_again(self) -> None:
        running = {"state": RunState.RUNNING, "reason": None, "ended": None}
        self._folder.write_state(self._folder.stored_state().model_copy(update=running))
        (self._folder.path / STARTING).touch()
        self._push()
        self._store.start_sweep_supervision(self._where.place, self._folder.name, self._where.schedule)
        (self._folder.path / STARTING).unlink()


def main(arguments: Sequence[str]) -> int:
    """Take one step of the sweep that the command line names; return the exit code."""
    backend, place, name = arguments
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as scratch:
        home, began = Path(scratch), time.time()
        folder = SweepFolder(home / SWEEPS / name)
        try:
            state = take_step(folder, home, backend, place)
        except UserError as problem:
            print(problem, file=sys.stderr, flush=True)
            return 0 if isinstance(problem, ConflictError) else problem.exit_code
        print(f"sweep {name} is {state}; the step took {time.time() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
