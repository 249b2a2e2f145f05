"""Create, start and control sweeps: plan, submit, status, cancel, resume, extend.

A sweep is driven either by a process of this machine, or by a service of the backend
(`orchestrator.sweeps.driver.service`). Both have the same interface.
"""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends import load_backend
from orchestrator.runs.status import RunState
from orchestrator.specs.sweep_spec import trial_count
from orchestrator.support.errors import ConflictError, NotFoundError
from orchestrator.support.home import SWEEPS
from orchestrator.support.secret_sources import look_up
from orchestrator.sweeps.design.sweep_record import SweepRecord, SweepState
from orchestrator.sweeps.driver.history import WarmStart
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.driver.sweep_status import SweepStatus, run_reader, sweep_status
from orchestrator.sweeps.policy.limits import require_price, require_unused_limits
from train_jobs.artifacts.files import write_text
from train_jobs.artifacts.host import RunClock
from train_jobs.artifacts.mounts import write_error

if TYPE_CHECKING:
    from optuna import Study

POLL_SECONDS = 0.5
SERVICE = "service.json"  # exists only in the folder of a sweep that a service drives
NO_WARM_START = WarmStart()


def make_sweep(
    record: SweepRecord,
    home: Path,
    documents: Mapping[str, str] | None = None,
    *,
    history: WarmStart = NO_WARM_START,
) -> SweepFolder:
    """Create the folder of a sweep without starting it.

    Args:
        record: the sweep.
        home: the home folder.
        documents: for a sweep that a service drives: file name -> text. None: create a study for the driver.
        history: trials of earlier sweeps that it starts with.

    Raises:
        ConflictError: a sweep of that name exists.
        StorageError: the home folder cannot be written.
    """
    folder = SweepFolder(home / SWEEPS / record.name)
    with folder.draft() as draft:
        if documents is None:
            draft.make_study(record.name, record.spec.objective.goal)
        for name, text in (documents or {}).items():
            (draft.path / name).write_text(text, encoding="utf-8")
        draft.write_state(SweepState(state=RunState.QUEUED, clock=RunClock.start()))
        if history.earlier:
            write_text(draft.history, history.model_dump_json())
        draft.write_record(record)
    return folder


def check_secrets(record: SweepRecord) -> None:
    """Check that the secrets of a sweep's trials are to be had; the driver looks them up again for each trial.

    Raises:
        UsageError: they are not.
    """
    look_up(record.trial.get("environment", {}).get("secrets", {}), os.environ)


def start_driver(
    folder: SweepFolder, home: Path, command: tuple[str, ...] = ("-m", "orchestrator.sweeps.driver.driver")
) -> None:
    """Start the driver in its own session, so that it survives the terminal; return once it holds the sweep's lock."""
    folder.start_supervisor([*command, str(folder.path), str(home)], folder.path / "driver.log")


@contextmanager
def writing(folder: SweepFolder, verb: str) -> Iterator[None]:
    """Report that the folder of a sweep cannot be written.

    Args:
        folder: of the sweep.
        verb: what the command does to the sweep.

    Raises:
        StorageError: the block could not write the folder.
    """
    fix, then = "free some space, or make the folder writable", "; then run the same command again"
    try:
        yield
    except OSError as problem:
        message = f"cannot {verb} sweep {folder.name}"
        raise write_error(message, problem, folder.path, fix=fix, then=then) from problem


def unstarted(verb: str) -> str:
    """Return the reason of a sweep that a command has changed, until the driver starts.

    Args:
        verb: of the command.
    """
    return f"orchestrator sweep {verb} has not started the driver"


class SweepControl(ABC):
    """Control of one sweep, by a process of this machine or by a service."""

    poll_seconds: float
    """Seconds between two polls while a caller waits for the sweep."""

    @abstractmethod
    def status(self) -> SweepStatus:
        """Return the status with all trials."""

    @abstractmethod
    def state(self) -> RunState:
        """Return the state."""

    @abstractmethod
    def cancel(self) -> None:
        """Cancel the sweep and its trials, unless it has finished."""

    @abstractmethod
    def resume(self) -> None:
        """Resume the sweep.

        Raises:
            ConflictError: it is running, has all of its trials, or cannot be resumed.
        """

    @abstractmethod
    def extend(self, extended: SweepRecord) -> None:
        """Resume the sweep with more trials or higher limits.

        Raises:
            ConflictError: it is running, or cannot be resumed.
            SpecError: the cost is limited, and the trials have no price.
        """

    @abstractmethod
    def retry(self, trials: Sequence[int]) -> None:
        """Run failed trials again, each from its last checkpoint, also of a sweep that has completed.

        Args:
            trials: their numbers; empty: all that failed.

        Raises:
            ConflictError: the sweep is running, cannot be resumed, or has used up a limit, or a trial has not failed.
            NotFoundError: the sweep has no such trial.
        """

    @abstractmethod
    def resume_command(self, trials: int | None = None) -> str:
        """Return the command that resumes the sweep.

        Args:
            trials: new total; None: unchanged.
        """


class DriverControl(SweepControl):
    """Control of a sweep that a process of this machine drives.

    Args:
        folder: of the sweep.
        home: the home folder.
    """

    poll_seconds = POLL_SECONDS

    def __init__(self, folder: SweepFolder, home: Path) -> None:
        self._folder, self._home = folder, home

    @cached_property
    def _study(self) -> Study:
        return self._folder.study()

    def status(self) -> SweepStatus:
        """Return the status from the study that the driver writes."""
        return sweep_status(self._folder, lambda: self._study, run_reader(self._folder, self._home))

    def state(self) -> RunState:
        """Return the state from state.json and the driver's lock."""
        return self._folder.state().state

    def cancel(self) -> None:
        """Request the end by a file, which the driver reads; without a driver, cancel the trials from this process."""
        if not self._stop_driver():
            with self._folder.changing("cancel"):
                if not self._stop_driver():  # it may have been resumed meanwhile
                    self._cancel_trials()

    def _stop_driver(self) -> bool:
        """Ask the driver to cancel the sweep; return whether that is enough: it has a driver, or has completed."""
        folder, state = self._folder, self._folder.state()
        if state.state == RunState.COMPLETED:
            return True
        # The file before the signal, which alone stops only the driver: it would leave its trials running.
        with writing(folder, "cancel"):
            folder.cancel_file.touch()
        if not folder.has_driver():
            return False
        if (pid := folder.stored_state().pid) is not None:
            with suppress(ProcessLookupError, PermissionError):  # another user's driver reads the file
                os.kill(pid, signal.SIGTERM)
        return True

    def _cancel_trials(self) -> None:
        folder, state = self._folder, self._folder.state()
        backend = load_backend(folder.record().trial["backend"], self._home)
        live = [trial for trial in self._study.get_trials(deepcopy=False) if not trial.state.is_finished()]
        names = [name for trial in live for name in trial.user_attrs["runs"]]
        # Before the first cancel: if this process is killed, a later driver still knows which runs to resume.
        folder.write_state(state.model_copy(update={"interrupted": names}))
        for name in names:
            with suppress(NotFoundError):
                backend.cancel(name)
        ended = {"state": RunState.CANCELLED, "reason": "it was cancelled", "ended": state.now()}
        folder.write_state(state.model_copy(update={"interrupted": names, **ended}))

    def resume(self) -> None:
        """Resume the sweep with a new driver.

        Raises:
            ConflictError: it is running, has all of its trials, or has used up a limit.
        """
        with self._folder.changing("resume"):
            self._resume()

    def _resume(self) -> None:
        status = self.status()
        if status.state == RunState.COMPLETED and status.ended == status.trials:
            raise ConflictError(
                f"sweep {self._folder.name} has all of its {status.trials} trials",
                fix=f"orchestrator sweep retry {self._folder.name}"
                if any(row.state == RunState.FAILED for row in status.rows)
                else f"orchestrator sweep extend {self._folder.name} --trials 20",
            )
        self._check_limits(self._folder.record(), status)
        self._restart()

    def extend(self, extended: SweepRecord) -> None:
        """Resume the sweep with other limits and a new driver: a running one has already read its limits.

        Raises:
            ConflictError: it is running, or one of the new limits is already used up.
            SpecError: the cost is limited, and the trials have no price.
        """
        with self._folder.changing("extend"):
            self._extend(extended)

    def _extend(self, extended: SweepRecord) -> None:
        from orchestrator.specs.compute import ResolvedCompute
        from orchestrator.specs.site import site_of

        status = self.status()
        if self._folder.has_driver():
            raise ConflictError(
                f"sweep {self._folder.name} is running",
                fix=f"when it has finished: orchestrator sweep extend {self._folder.name}",
            )
        self._check_limits(extended, status)
        self._check_unstarted(extended, status)
        spot = extended.trial["compute"]["tier"] != "dedicated"
        site, compute = site_of(extended.trial["backend"]), ResolvedCompute.model_validate(extended.compute)
        machines = site.price(compute, self._home, spot=spot)
        require_price(
            extended.spec.limits, machines.price_per_hour, f"orchestrator sweep extend {extended.name} --hours N"
        )
        with writing(self._folder, "extend"), self._folder.lock():
            self._await_driver("extend")
            self._folder.write_record(extended)
        self._restart()

    def retry(self, trials: Sequence[int]) -> None:
        """Reopen failed trials and continue them with a new driver.

        Raises:
            ConflictError: the sweep is running or has used up a limit, or a trial has not failed.
            NotFoundError: the sweep has no such trial.
        """
        with self._folder.changing("retry"):
            self._retry(trials)

    def _retry(self, trials: Sequence[int]) -> None:
        folder, status = self._folder, self.status()
        rows = {row.trial: row for row in status.rows}
        failed = [number for number, row in rows.items() if row.state == RunState.FAILED]
        show = f"orchestrator sweep show {folder.name}"
        # of a retry that was killed too: its trials are no longer failed, and continue
        fix = self.resume_command() if status.state.resumable else show
        if unknown := [number for number in trials if number not in rows]:
            raise NotFoundError(f"sweep {folder.name} has no trial {unknown[0]}", fix=show)
        if other := [number for number in trials if number not in failed]:
            raise ConflictError(
                f"cannot retry trial {other[0]} of sweep {folder.name}: it is {rows[other[0]].state}", fix=fix
            )
        if not failed:
            raise ConflictError(f"cannot retry trials of sweep {folder.name}: none has failed", fix=fix)
        require_unused_limits(folder.record(), sum(row.cost for row in status.rows), folder.stored_state().now())
        if not folder.stored_state().state.terminal and folder.has_driver():
            raise ConflictError(f"sweep {folder.name} is {status.state}", fix=f"orchestrator sweep show {folder.name}")
        chosen = list(trials) or failed
        with writing(folder, "retry"), folder.lock():
            folder.repair()
            # Before the study: a driver resumes these runs once, whatever their ends count for.
            names = [name for number in chosen for name in rows[number].runs]
            self._await_driver("retry", names)
            folder.reopen_trials(chosen)
        self._restart()

    def _await_driver(self, verb: str, interrupted: Sequence[str] = ()) -> None:
        """Record that a command changes the ended sweep, before it does; the caller holds the lock.

        If the command is killed before the driver's start, the sweep has not completed, and `resume` continues it.

        Args:
            verb: of the command.
            interrupted: runs that the driver resumes.
        """
        state = self._folder.stored_state()
        names = list(dict.fromkeys([*state.interrupted, *interrupted]))
        changes = {"state": RunState.PREEMPTED, "reason": unstarted(verb), "interrupted": names}
        self._folder.write_state(state.model_copy(update=changes))

    def _check_unstarted(self, extended: SweepRecord, status: SweepStatus) -> None:
        """Refuse more trials if a killed command has added trials, and no driver has started since."""
        more = trial_count(extended.spec) > status.trials > len(status.rows)
        if more and self._folder.stored_state().reason == unstarted("extend"):
            raise ConflictError(
                f"sweep {extended.name} already has {status.trials} trials: {unstarted('extend')}",
                fix=self.resume_command(),
            )

    def _restart(self) -> None:
        if self._folder.has_driver():
            raise ConflictError(
                f"sweep {self._folder.name} is {self.state()}", fix=f"orchestrator sweep show {self._folder.name}"
            )
        check_secrets(self._folder.record())
        with writing(self._folder, "resume"):
            self._folder.cancel_file.unlink(missing_ok=True)
            start_driver(self._folder, self._home)

    def _check_limits(self, record: SweepRecord, status: SweepStatus) -> None:
        """Refuse to resume with a used-up limit, unless a lost driver left trials that only a new driver can end."""
        lost = status.state not in {RunState.COMPLETED, RunState.CANCELLED}
        if not (lost and status.ended < len(status.rows)):
            now = self._folder.stored_state().now()
            require_unused_limits(record, sum(row.cost for row in status.rows), now)

    def resume_command(self, trials: int | None = None) -> str:
        """Return the command that continues the same sweep."""
        if trials is None:
            return f"orchestrator resume {self._folder.name}"
        return f"orchestrator sweep extend {self._folder.name} --trials {trials - self.status().trials}"
