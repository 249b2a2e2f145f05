"""The life of a run in a folder, from its first attempt to its last state; derived classes start the job.

The MLflow run is opened by another process once the job has run for some seconds: a shorter one is copied once, at its
end. The ranks find it in the file that ORCHESTRATOR_TRACKING names, which appears once the MLflow run is open; if it
never is, the job does not notice.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from orchestrator.backends.base import NO_RESULT, RANK_ERROR, RESULT
from orchestrator.backends.folder.log_files import LogClock
from orchestrator.backends.folder.mlflow_sync import expect_copy, forget_copy, is_behind, start_sync
from orchestrator.backends.folder.run_folder import FolderRequest, RunFolder
from orchestrator.backends.folder.run_watch import RunWatch
from orchestrator.backends.run_progress import last_report
from orchestrator.runs.restarts import (
    PREEMPTED_CODE,
    Backoff,
    Restart,
    RestartLimits,
    decide_restart,
    error_cause,
    signature_of,
)
from orchestrator.runs.status import EndCause, RunAttempt, RunState
from orchestrator.runs.supervised_folder import FULL_BYTES
from orchestrator.support.errors import InternalError, UserError
from orchestrator.support.redact import redact
from orchestrator.support.secret_sources import look_up
from train_jobs.artifacts.files import read_object
from train_jobs.artifacts.host import RunClock
from train_jobs.artifacts.mounts import write_error
from train_jobs.artifacts.process_limits import limit_note
from train_jobs.artifacts.redaction import SECRETS_VARIABLE
from train_jobs.config.privacy import traceback_text, unexpected_text

POLL_SECONDS = 0.1  # between two looks at the processes of a run
BACKOFF = Backoff(first=1.0, longest=60.0)
TRACEBACK_BYTES = 1 << 16  # of the end of a log: tracebacks of several exceptions fit
LOG_SIZES = "log-sizes.json"  # among the exit codes of an attempt
SIGNALLED = 128  # a shell's exit code for a child that died of signal n is this plus n
# The last two: of a rank, or of the child of a shell, that did not handle SIGTERM.
STOPPED_CODES = {PREEMPTED_CODE, -signal.SIGTERM, SIGNALLED + signal.SIGTERM}
ASKED_CODES = {0, *STOPPED_CODES, SIGNALLED + signal.SIGINT}  # of a job that was asked to end; the last: by Ctrl-C
TRACKING_VARIABLE = "ORCHESTRATOR_TRACKING"
OPEN_VARIABLE = "ORCHESTRATOR_MLFLOW_AFTER"
OPEN_SECONDS = 15.0  # importing MLflow and opening a run takes 3 s of a core, which ranks that start need themselves


def shell_code(code: int) -> int:
    """Return an exit code as a shell would report it.

    Args:
        code: exit code; negative: the signal that killed the process, as in subprocess.
    """
    return SIGNALLED - code if code < 0 else code


def signal_name(number: int) -> str | None:
    """Return the name of a signal; None: no signal with a name has this number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def end_text(code: int) -> str:
    """Return how a process ended, see `shell_code`; a shell ends with 137 if its child was killed."""
    if code < 0:
        return f"was killed by signal {signal_name(-code) or -code}"
    name = signal_name(code - SIGNALLED)
    return f"ended with exit code {code}" + (f" (a shell's code for {name})" if name else "")


@dataclass(frozen=True)
class LauncherEnd:
    """The first launcher of an attempt that ended without being asked to, and not with 0."""

    node: int
    """Node that it launched."""
    code: int
    """Exit code; negative: the signal that killed it, as in subprocess."""

    @property
    def exit_code(self) -> int:
        """Exit code, as a shell would report it."""
        return shell_code(self.code)


@dataclass(frozen=True)
class Ending:
    """End of an attempt."""

    state: RunState
    exit_code: int
    reason: str | None
    ranks: Mapping[int, int] = field(default_factory=dict)
    cause: EndCause | None = None
    signature: str | None = None


def ending_of(
    run: RunFolder,
    *,
    attempt: int,
    world_size: int,
    launcher: LauncherEnd | None,
    stopped: bool,
    writes_result: bool = False,
) -> Ending:
    """Return the end of an attempt, from the exit codes of all ranks rather than from that of the launcher.

    Args:
        run: its folder.
        attempt: number of the attempt.
        world_size: number of ranks.
        launcher: the launcher that ended first, if any failed.
        stopped: whether the run was asked to end before all ranks finished with 0.
        writes_result: whether the job writes result.json before it ends with 0.
    """
    # The order of these rules matters. Success first: a cancel that arrives after the last rank has finished must not
    # turn a complete result into a cancelled run. Exit code 0 after SIGTERM is no success: it is how many programs end
    # when they are asked to. Then the user's cancel, then the rank that ended first: launchers answer a failed rank
    # with SIGTERM for its peers, which may end with the code of a preemption, and the peers of a preempted rank may die
    # of the lost connection with any code.
    codes = read_exits(run.exits(attempt))
    ranks = {rank: shell_code(code) for rank, code in codes.items()}
    if len(ranks) == world_size and not any(ranks.values()):
        if (run.outputs / RESULT).exists() if writes_result else not stopped:
            return Ending(RunState.COMPLETED, 0, None, ranks)
        if not stopped:
            return Ending(RunState.FAILED, 1, f"{NO_RESULT}; see {run.rank_log(0)}", ranks, EndCause.ERROR)
    if run.cancel_file.exists():
        return _stopped_ending(run, attempt, codes, RunState.CANCELLED, "cancelled")
    # A launcher that was killed takes its ranks with it: the kernel sends them SIGTERM, and all ranks save and end with
    # the code of a preemption. Nothing preempted them, though.
    if launcher is not None and launcher.code < 0 and not stopped:
        reason = f"the launcher of node {launcher.node} {end_text(launcher.code)}"
        seen = f"{reason}; see {run.agent_log(launcher.node)}"
        return Ending(RunState.FAILED, launcher.exit_code, seen, ranks, EndCause.SUPERVISOR)
    failed = [rank for rank, code in codes.items() if code]
    # A rank that reports a lost peer is not the cause, though its exit code may be written before that of the peer.
    first = next((rank for rank in failed if _error(run, rank).get("kind") != "peer"), failed[0] if failed else None)
    if stopped:
        return _stopped_ending(run, attempt, codes, RunState.PREEMPTED, "stopped by SIGTERM")
    if first is not None and codes[first] in STOPPED_CODES:
        reason = f"rank {first} {end_text(codes[first])}: preempted; see {run.rank_log(first)}"
        return Ending(RunState.PREEMPTED, PREEMPTED_CODE, reason, ranks)
    if first is not None:
        reason, cause = _reason(run, attempt, first, codes[first])
        signature = None if cause else signature_of(_last_output(run, attempt, first))
        return Ending(RunState.FAILED, ranks[first], reason, ranks, cause, signature)
    node, code = (launcher.node, launcher.exit_code) if launcher else (0, 1)
    reason = f"the launcher of node {node} ended with {code} before any rank; see {run.agent_log(node)}"
    return Ending(RunState.FAILED, code, reason + shortage_note(run, attempt, run.agent_log(node)), ranks)


def _stopped_ending(run: RunFolder, attempt: int, codes: Mapping[int, int], state: RunState, reason: str) -> Ending:
    """Return the end of an attempt that was asked to end; a rank that did not end as asked may have saved nothing."""
    ranks = {rank: shell_code(code) for rank, code in codes.items()}
    for rank, code in codes.items():
        error = _error(run, rank)
        if code not in ASKED_CODES and error.get("kind") != "peer":
            how = f"rank {rank} {end_text(code)}: {error['text']}" if "text" in error else None
            return Ending(state, ranks[rank], f"{reason}; {how or _reason(run, attempt, rank, code)[0]}", ranks)
    for rank in _killed_with_parent(run.exits(attempt)):
        killed = f"rank {rank} was killed before it ended; see {run.rank_log(rank)}"
        return Ending(state, SIGNALLED + signal.SIGKILL, f"{reason}; {killed}", ranks)
    return Ending(state, PREEMPTED_CODE, reason, ranks)


def _reason(run: RunFolder, attempt: int, rank: int, code: int) -> tuple[str, EndCause | None]:
    """Return the reason of the rank that ended first, and its cause: its own error, if it left one.

    Ranks that ended later are not the cause: they report only that they lost a peer.
    """
    error = _error(run, rank)
    if code >= 0 and "text" in error:
        return str(error["text"]), error_cause(error)
    reason = f"rank {rank} {end_text(code)}; see {run.rank_log(rank)}"
    return reason + shortage_note(run, attempt, run.rank_log(rank)), EndCause.ERROR if code < 0 else None


def _error(run: RunFolder, rank: int) -> dict[str, Any]:
    """Return the error that a rank left, {text, kind, message, facts, fix}; empty without one."""
    with suppress(ValueError, KeyError, TypeError, OSError):
        document = json.loads((run.outputs / f"error-{rank}.json").read_text(encoding="utf-8"))
        return {**(document.get("error") or {}), "text": document["text"]}
    return {}


def shortage_note(run: RunFolder, attempt: int, log: Path) -> str:
    """Return a note for the reason of an end without an error of a rank: what the machine or its limits lacked, if any.

    Args:
        run: its folder.
        attempt: number of the attempt.
        log: of the process that ended.
    """
    free = shutil.disk_usage(run.path).free
    if free < FULL_BYTES:  # logs and errors then lack
        return f"; the disk is full: {free} bytes free in {run.path}"
    return limit_note(log, _begin_of_attempt(run, attempt, log))


def record_log_sizes(run: RunFolder, attempt: int) -> None:
    """Record where the output of an attempt begins: each log has the output of all attempts."""
    folder = run.exits(attempt)
    with suppress(OSError):  # on a full disk
        folder.mkdir(parents=True, exist_ok=True)
        sizes = {log.name: log.stat().st_size for log in run.logs.glob("*.log")}
        (folder / LOG_SIZES).write_text(json.dumps(sizes))


def _last_output(run: RunFolder, attempt: int, rank: int) -> str:
    """Return the end of the output of a rank in an attempt."""
    log = run.rank_log(rank)
    try:
        with log.open("rb") as stream:
            stream.seek(max(log.stat().st_size - TRACEBACK_BYTES, _begin_of_attempt(run, attempt, log)))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def _begin_of_attempt(run: RunFolder, attempt: int, log: Path) -> int:
    return int((read_object(run.exits(attempt) / LOG_SIZES) or {}).get(log.name, 0))


def read_exits(folder: Path) -> dict[int, int]:
    """Return exit codes by rank, in the order in which the ranks ended; negative: the signal that killed the rank."""
    codes = {}
    # nanoseconds, because peers of a failed rank often end within the same millisecond
    for path in sorted(folder.glob("rank-*"), key=lambda path: path.stat().st_mtime_ns):
        with suppress(ValueError):  # an empty file: the disk was full
            codes[int(path.name.removeprefix("rank-"))] = int(path.read_text())
    return codes


def _killed_with_parent(folder: Path) -> list[int]:
    """Return the ranks whose parent left its placeholder: both are killed if the rank does not end in time."""
    return sorted(
        int(path.name.removeprefix("rank-")) for path in folder.glob("rank-*") if not path.read_text().strip()
    )


class TrackedRun:
    """The MLflow run of a run, the same one over all attempts; the run never waits for it.

    Args:
        run: folder of the run.
        request: with the tracking server.
    """

    def __init__(self, run: RunFolder, request: FolderRequest) -> None:
        self._run, self._request = run, request
        self._due = math.inf

    def begin(self) -> None:
        """Note that an attempt begins: its MLflow run is to be opened after some seconds."""
        # that of an earlier attempt may name a run that no longer exists, and a process may still copy its metrics
        self._run.tracking_file.unlink(missing_ok=True)
        expect_copy(self._run)
        self._due = time.monotonic() + _seconds(os.environ.get(OPEN_VARIABLE))

    def open_if_due(self) -> None:
        """Begin to open the MLflow run, once and not too early; ranks copy metrics to it when the file exists."""
        if time.monotonic() >= self._due:
            self.open()

    def open(self) -> None:
        """Begin to open the MLflow run now. The ranks copy metrics to it once the file of `variables` exists."""
        self._due = math.inf
        start_sync(self._run)

    def variables(self) -> dict[str, str]:
        """Return the environment variables by which the ranks find the MLflow run."""
        return {
            TRACKING_VARIABLE: str(self._run.tracking_file),
            "MLFLOW_TRACKING_URI": self._request.tracking_uri,
            "MLFLOW_EXPERIMENT_NAME": self._request.experiment,
        }

    def end(self) -> None:
        """Begin to copy what a killed job left behind; a completed one has usually copied everything itself."""
        if is_behind(self._run):
            start_sync(self._run)
        else:
            forget_copy(self._run)


def _seconds(text: str | None) -> float:
    """Return the seconds before an MLflow run is opened; without a valid number, the default."""
    try:
        return max(0.0, float(text or OPEN_SECONDS))
    except ValueError:
        return OPEN_SECONDS


class Supervision(ABC):
    """The life of a run, attempt after attempt, until it has finished.

    The caller of `supervise` holds the run's lock, and calls `watch.close` after it released the lock: a webhook may
    take half a minute, and `wait` and `resume` should not.

    Args:
        run: folder of the run, with request.json and state.json in place.
    """

    request_kind: ClassVar[type[FolderRequest]]
    """Model of its request.json."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.request = self.request_kind.model_validate(run.read_json("request.json"))
        self.state = run.stored_state()
        self.clock = RunClock.start()
        self.tracked = TrackedRun(run, self.request)
        handle = run.read_json("tags.json")["orchestrator.handle"]
        self.watch = RunWatch(run, handle, self.request.notify, self.request.steps)
        self.log_clock = LogClock(run.logs)
        self.asked_to_stop = False
        self.preempted = False

    def variables(self) -> dict[str, str]:
        """Return the environment variables by which the ranks find MLflow run and clock, and the run's secrets.

        Raises:
            UsageError: a secret is not to be had.
        """
        secrets = look_up(self.request.secrets, os.environ)
        named = {SECRETS_VARIABLE: ",".join(secrets)} if secrets else {}
        return {**self.tracked.variables(), **self.clock.variables, **secrets, **named}

    @abstractmethod
    def attempt(self) -> Ending:
        """Run the job once, from its newest checkpoint.

        Raises:
            UserError: it could not be started.
        """

    def install_signal_handlers(self) -> None:
        """Handle SIGTERM and simulated preemption (SIGUSR1).

        The handlers only set flags, which the loops poll: a handler may interrupt any statement, and state.json must
        not be written from two places.
        """
        signal.signal(signal.SIGTERM, self._note_stop)
        signal.signal(signal.SIGUSR1, self._note_preemption)

    def supervise(self) -> None:
        """Run all attempts and write the last state."""
        begun = {"state": RunState.STARTING, "started": self.clock.now(), "ended": None, "clock": self.clock}
        self.update(**begun, **self.run.own_process())
        earlier = len(self.state.attempts)
        ending = self._recorded_attempt()
        while (restart := self._next_restart(earlier)).due and not self._stopped_in_pause(restart.pause):
            print(f"attempt {self.state.attempt} {ending.state}: {ending.reason}; starting another", flush=True)
            self.update(attempt=self.state.attempt + 1)
            ending = self._recorded_attempt()
        with suppress(OSError):  # the end must be recorded also if the reports cannot be read
            self.update(warning=self.watch.poll(final=True))
        ended = ending.state in {RunState.COMPLETED, RunState.CANCELLED}
        if self.run.cancel_file.exists() and not ended:  # in the pause before a restart
            ending = Ending(RunState.CANCELLED, PREEMPTED_CODE, "cancelled", ending.ranks)
        elif restart.why_not:
            ending = replace(ending, reason=f"{ending.reason}\n{restart.why_not}")
        last = {
            "state": ending.state,
            "ended": self.clock.now(),
            "exit_code": ending.exit_code,
            "reason": ending.reason,
            "ranks": dict(ending.ranks),
            "pid": None,
        }
        self.state = self.state.model_copy(update=last)
        self.run.write_state(self.state)
        self.tracked.end()
        self.watch.ended(ending.state, ending.reason)

    def stop_requested(self) -> bool:
        """Return whether the run must end; `cancel` may have been created before there was a process to signal."""
        self.asked_to_stop |= self.run.cancel_file.exists()
        return self.asked_to_stop

    def monitor(self) -> None:
        """Record the times of new log lines and read new reports; their present problems are the state's warning."""
        self.log_clock.note()
        self.tracked.open_if_due()
        if (warning := self.watch.poll()) != self.state.warning:
            self.update(warning=warning)

    def update(self, **changes: object) -> None:
        """Change the state, on the disk too unless it is full: the reserve must last until the end."""
        self.state = self.state.model_copy(update=changes)
        with suppress(OSError):
            self.run.write_state(self.state, free_reserve=False)

    def _next_restart(self, earlier: int) -> Restart:
        """Return whether and when to start another attempt.

        Args:
            earlier: number of attempts before the user started or resumed the run, which do not count.
        """
        limits = RestartLimits.from_spec(self.request.model_dump(include={"max_restarts", "max_preemptions"}))
        return decide_restart(self.run.name, self.state.attempts[earlier:], limits, BACKOFF)

    def _stopped_in_pause(self, seconds: float) -> bool:
        """Wait before a restart; return whether asked to end."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stop_requested():
            time.sleep(POLL_SECONDS)
        return self.stop_requested()

    def _recorded_attempt(self) -> Ending:
        """Run one attempt and record it in the state; a failure to start it is an ending too."""
        earlier = self.state.attempts
        begun = RunAttempt(started=self.clock.now())
        self.update(attempts=[*earlier, begun], warning=None)
        self.preempted = False
        self.watch.begin(begun.started)
        # an error of the previous attempt would be reported as the reason of this end
        for stale in self.run.outputs.glob("error-*.json"):
            if RANK_ERROR.fullmatch(stale.name) and stale.is_file():
                stale.unlink()
        record_log_sizes(self.run, self.state.attempt)
        try:
            ending = self.attempt()
        except UserError as problem:
            print(problem, file=sys.stderr, flush=True)
            ending = Ending(RunState.FAILED, problem.exit_code, str(problem))
        except OSError as problem:
            ending = self._storage_ending(problem)
        except Exception as problem:  # a bug of ours: the run has failed, and its state must show it
            print(traceback_text(problem), file=sys.stderr, flush=True)
            reason = str(InternalError(unexpected_text(problem)))
            ending = Ending(RunState.FAILED, InternalError.exit_code, reason)
        if ending.reason is not None:
            ending = replace(ending, reason=redact(ending.reason))
        last = last_report(self.run.metrics)
        record = {
            "ended": self.clock.now(),
            "state": ending.state,
            "exit_code": ending.exit_code,
            "cause": ending.cause,
            "signature": ending.signature,
            "reason": ending.reason,
            # a report older than this attempt belongs to an earlier attempt: this one made no progress
            "step": last["step"] if last.get("time", 0.0) >= begun.started else None,
        }
        self.update(attempts=[*earlier, begun.model_copy(update=record)])
        return ending

    def _storage_ending(self, problem: OSError) -> Ending:
        """Return the end of an attempt that a file or folder of the run made impossible."""
        error = write_error(
            "cannot run the job",
            problem,
            Path(problem.filename or self.run.path),
            fix="free some space, or make the folder writable",
            then=f"; then: orchestrator resume {self.run.name}",
        )
        print(error, file=sys.stderr, flush=True)
        return Ending(RunState.FAILED, error.exit_code, str(error))

    def _note_stop(self, signum: int, frame: FrameType | None) -> None:
        self.asked_to_stop = True

    def _note_preemption(self, signum: int, frame: FrameType | None) -> None:
        self.preempted = True
