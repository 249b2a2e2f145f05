"""A folder with one supervisor process at a time: the base of the folders of runs and sweeps.

The supervisor holds the file `lock` as long as it lives, and it alone writes state.json (before it, the submission).
Any process may read the state, and create the file `cancel` to ask for an end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from orchestrator.runs.hidden_folders import delete_abandoned, locked_draft
from orchestrator.runs.status import RunState
from orchestrator.support.access import child_umask
from orchestrator.support.errors import ConflictError, ServiceError
from orchestrator.support.moved_home import FolderIdentity
from train_jobs.artifacts.files import hold, hold_folder, is_held, read_object, sync, sync_all, write_text
from train_jobs.artifacts.host import RunClock, boot_id, process_started
from train_jobs.artifacts.mounts import READ_ONLY, is_read_only, remount, write_error
from train_jobs.config.fields import Config

RESERVE_BYTES = 256 * 1024  # enough for the last state and the last lines of the log
FULL_BYTES = 1 << 20  # a disk with less is full: deleted partial files leave a little
CHANGE_SECONDS = 60.0  # a deletion first ends processes that outlived their supervisor, which takes 30 s at most
KILLED = "its process was killed, or ran out of memory"


class SupervisedState(Config):
    """Fields that every state.json has."""

    state: RunState
    """State of the run or of the sweep."""
    reason: str | None = None
    """Reason of the end."""
    pid: int | None = None
    """The supervisor's process id; valid only while the lock is held."""
    pid_started: int | None = None
    """Start of that process, in clock ticks since the boot: with the pid, it identifies one process permanently."""
    boot_id: str | None = None
    """Boot of the machine in which the supervisor was started."""
    folder: FolderIdentity | None = None
    """The folder as the supervisor saw it: the process does not belong to a copy."""
    clock: RunClock | None = None
    """Clock of the run since it was queued or last started, of a sweep since its submission: the wall clock may be set
    meanwhile, and durations and limits must stay true. None: of an earlier version."""

    def now(self) -> float:
        """Return seconds since the epoch, by that clock."""
        return self.clock.now() if self.clock else time.time()

    @property
    def machine_restarted(self) -> bool:
        """Whether the machine was restarted after the supervisor was started."""
        return self.boot_id is not None and self.boot_id != boot_id()

    def has_process(self) -> bool:
        """Return whether the process that recorded itself as the supervisor lives."""
        # boot id and start time identify a process for ever, while a bare pid may belong to another program by now
        if self.pid is None or self.pid_started is None or self.boot_id != boot_id():
            return False
        return process_started(self.pid) == self.pid_started


State = TypeVar("State", bound=SupervisedState)


class Below:
    """Attribute of a folder: a path below it.

    Args:
        parts: of the relative path.
    """

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, folder: Any, owner: type | None = None) -> Path:
        path: Path = folder.path
        return path.joinpath(*self._parts)


@dataclass(frozen=True)
class SupervisedFolder(ABC, Generic[State]):
    """Paths, state and lock of one folder."""

    path: Path

    noun: ClassVar[str]
    """What messages call its subject: `run`."""
    supervisor: ClassVar[str] = "supervisor"
    """What messages call its process."""
    show_command: ClassVar[str]
    """Command that shows its status, without the name."""
    state_kind: ClassVar[Any]
    """Model of its state.json."""
    queued_seconds: ClassVar[float] = 30.0
    """Time that a supervisor has to start; most need half a second, on a busy machine a few."""
    cancel_file = Below("cancel")
    """File whose existence asks for an end."""
    state_file = Below("state.json")
    """The state; replaced as a whole."""

    tracking_file = Below("tracking.json")
    """Id and store of its MLflow run; written once the run is open."""
    behind_file = Below("mlflow-behind.txt")
    """Why the copy in MLflow is behind; exists only while it is. Empty: it is still to be made."""

    @property
    def mlflow_run_id(self) -> str | None:
        """Id of its MLflow run; None: not opened yet."""
        found = read_object(self.tracking_file)
        return str(found["run_id"]) if found else None

    @property
    def name(self) -> str:
        """Name of the run or of the sweep."""
        return self.path.name

    @abstractmethod
    def lost_update(self, state: State) -> dict[str, Any]:
        """Return the changed fields of a state whose supervisor died without writing its last one."""

    def lost_reason(self, state: State) -> str:
        """Return why its supervisor died without writing the last state, as far as this machine shows it."""
        restarted = state.machine_restarted
        why = "the machine restarted" if restarted else KILLED
        if state.has_process():  # `alive` did not take it for that of this folder
            original = f" of {state.folder.path}" if state.folder else ""
            why = f"this folder is a copy{original}, made while the {self.noun} was running"
        elif not restarted and is_read_only(self.path):
            why = f"it could not write: {self.path} is on a {READ_ONLY}; {remount(self.path)}"
        elif not restarted and (free := shutil.disk_usage(self.path).free) < FULL_BYTES:
            why += f", or could not write: the disk is full, {free} bytes free in {self.path}"
        return f"{self.supervisor} lost: {why}"

    def own_process(self) -> dict[str, Any]:
        """Return the fields of the state that identify this process as the supervisor."""
        pid = os.getpid()
        identity = FolderIdentity.of(self.path)
        return {"pid": pid, "pid_started": process_started(pid), "boot_id": boot_id(), "folder": identity}

    @contextmanager
    def draft(self) -> Iterator[Self]:
        """Yield a hidden folder that is renamed to this one when the block ends; an error removes it.

        The rename is atomic (POSIX): other processes see a complete folder or none, and of two submissions with the
        same name exactly one succeeds. Drafts of killed processes are deleted first. Folder and name are on the disk
        before it ends: after a power failure, a resumed run would import empty modules, and "complete".

        Raises:
            ConflictError: the name is taken.
            StorageError: the folder cannot be written.
        """
        delete_abandoned(self.path.parent)
        renamed = False
        try:
            with locked_draft(self.path) as path:
                yield type(self)(path)
                sync_all(path)
                path.rename(self.path)
                renamed = True
                for parent in (self.path.parent, self.path.parent.parent):  # both: `mkdir` may have made the first
                    sync(parent)
        except OSError as problem:
            if self.path.exists() and not renamed:  # it is another process's
                raise ConflictError(
                    f"{self.noun} {self.name} already exists", fix=f"{self.show_command} {self.name}"
                ) from None
            raise write_error(
                f"cannot create the folder of {self.noun} {self.name}",
                problem,
                self.path.parent,
                fix="free some space",
                then=", or set ORCHESTRATOR_HOME to a writable folder",
            ) from problem

    def stored_state(self) -> State:
        """Return state.json as it was written.

        Raises:
            OSError: it cannot be read.
            ValueError: it is damaged.
        """
        state: State = self.state_kind.model_validate_json(self.state_file.read_text())
        return state

    def state(self) -> State:
        """Return state.json; if no supervisor is left to update it, the state is `failed`.

        Raises:
            OSError: it cannot be read.
            ValueError: it is damaged.
        """
        # Twice, because state and lock cannot be read together: a supervisor may write its last state and release the
        # lock after the first read, and a completed run would be reported as lost.
        for _ in range(2):
            state = self.stored_state()
            if state.state.terminal or self.alive(state):
                return state
        queued = state.clock.wall if state.clock else self.state_file.stat().st_mtime
        if state.state == RunState.QUEUED and state.now() - queued < self.queued_seconds:
            return state  # submitted a moment ago: its supervisor is starting, and does not hold the lock yet
        return state.model_copy(update={"state": RunState.FAILED, **self.lost_update(state)})

    def write_state(self, state: State, *, free_reserve: bool = True) -> None:
        """Replace state.json; on a full disk, free the reserve first, and finally overwrite the file in place.

        Args:
            state: the new state.
            free_reserve: False: a full disk is an error, and the reserve stays for the last state.

        Raises:
            OSError: it cannot be written.
        """
        text = state.model_dump_json(indent=1)
        try:
            write_text(self.state_file, text)
        except OSError:
            if not free_reserve:
                raise
            # a full disk is the likeliest reason of a run's failure, and exactly then its reason must be stored
            (self.path / "reserve").unlink(missing_ok=True)
            try:
                write_text(self.state_file, text)
            except OSError:
                # another process took the reserve's bytes; the blocks of the old state are still there
                with self.state_file.open("r+b") as stream:
                    stream.write(text.encode())
                    stream.truncate()

    def reserve(self) -> None:
        """Reserve bytes, so that the last state can be written on a full disk.

        Raises:
            OSError: the disk is full already; nothing is reserved.
        """
        reserve_bytes(self.path / "reserve", RESERVE_BYTES)

    def locked(self) -> bool:
        """Return whether a supervisor holds the lock."""
        return is_held(self.path / "lock")

    def alive(self, state: State) -> bool:
        """Return whether the supervisor holds the lock or, on a disk without locks, is a live process."""
        # some network file systems accept flock and do not enforce it
        return self.locked() or (state.has_process() and self.is_original(state))

    def is_original(self, state: State) -> bool:
        """Return whether a state is that of this folder, not of one that was copied while its supervisor lived."""
        return state.folder is None or state.folder.matches(self.path)

    def lock(self) -> AbstractContextManager[None]:
        """Hold the lock; the kernel releases it when the process dies, however it dies.

        Raises:
            ConflictError: another supervisor holds it.
        """
        busy = ConflictError(
            f"{self.noun} {self.name} already has a {self.supervisor}", fix=f"{self.show_command} {self.name}"
        )
        # `is_held` of any `orchestrator list` holds the lock for an instant: without the wait, a start could fail on it
        return hold(self.path / "lock", seconds=1, busy=busy)

    def changing(self, verb: str) -> AbstractContextManager[None]:
        """Let one command at a time decide from the state and act on it; the supervisor's lock is another one.

        Args:
            verb: what the command does to the run or sweep.

        Raises:
            ConflictError: another command does not end within a minute.
        """
        message = f"cannot {verb} {self.noun} {self.name}: another command changes it"
        busy = ConflictError(message, fix=f"{self.show_command} {self.name}")
        return hold_folder(self.path, seconds=CHANGE_SECONDS, busy=busy)

    def start_supervisor(self, arguments: Sequence[str], log: Path, cwd: str | None = None) -> None:
        """Start the supervisor in a session of its own; return once it holds the lock.

        Args:
            arguments: of the Python interpreter. The supervisor gets one more: the file descriptor to write `ready` to.
            log: file that collects its output.
            cwd: its working folder; None: that of this process.

        Raises:
            ServiceError: it ended before it held the lock.
        """
        # A pipe instead of polling: the kernel closes it when the supervisor dies, so that this returns immediately in
        # either case.
        reading, writing = os.pipe()
        with log.open("ab") as output:
            process = subprocess.Popen(
                # -P: `python -m` puts the working folder first on the module path, where a user's file may shadow one
                [sys.executable, "-P", *arguments, str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                start_new_session=True,
                pass_fds=[writing],
                # a program with another encoding may call the SDK; logs and files of runs are in UTF-8
                env={**os.environ, "PYTHONUTF8": "1"},
                umask=child_umask(self.path),
            )
        os.close(writing)  # or the read below would never end: this process would hold the pipe open itself
        with os.fdopen(reading, "rb") as stream:
            answer = stream.read(5)
        if answer != b"ready":
            raise ServiceError(
                f"cannot start {self.noun} {self.name}: its {self.supervisor} did not start",
                facts={"exit code": process.wait(), "reason": last_line(log)},
                fix=f"orchestrator resume {self.name}",
            )
        process.returncode = 0  # it outlives this process: without a code, Popen warns of a child that still runs


def reserve_bytes(path: Path, size: int) -> None:
    """Write a file of that size, or none.

    Raises:
        OSError: the disk is full.
    """
    try:
        # random bytes: file systems that compress or detect holes would reserve nothing for zeros
        path.write_bytes(os.urandom(size))
    except OSError:
        path.unlink(missing_ok=True)
        raise


def last_line(log: Path) -> str:
    """Return the last line with text in a log; `nothing` if it has none."""
    return (log.read_text(encoding="utf-8", errors="replace").strip() or "nothing").splitlines()[-1]
