"""What a run goes through, from its first attempt to its last word in state.json; how one is made is another's."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from abc import ABC, abstractmethod
from types import FrameType
from typing import ClassVar

from orchestrator.backends.folder.logs.times import LogClock
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.folder.submission import FolderRequest
from orchestrator.backends.folder.supervise.endings import Ending
from orchestrator.backends.folder.supervise.tracked import TrackedRun
from orchestrator.backends.folder.supervise.watch import RunWatch
from orchestrator.backends.run_progress import last_report
from orchestrator.runs.status import Attempt, RunState
from orchestrator.support.errors import InternalError, UserError
from train_jobs.artifacts.host import boot_id, process_started

POLL_SECONDS = 0.1
LONGEST_PAUSE = 60.0  # seconds between two attempts


class Supervision(ABC):
    """Runs the attempts of a run, until it has ended. Whoever calls `supervise` holds the run's lock.

    Args:
        run: folder of the run, with request.json and state.json in place.
    """

    request_kind: ClassVar[type[FolderRequest]]
    """What its request.json holds."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.request = self.request_kind.model_validate(run.read_json("request.json"))
        self.state = run.stored_state()
        self.tracked = TrackedRun(run, self.request, self.state.mlflow_run_id)
        handle = run.read_json("tags.json")["orchestrator.handle"]
        self.watch = RunWatch(run, handle, self.request.notify, self.request.steps)
        self.log_clock = LogClock(run.logs)
        self.asked_to_stop = False
        self.preempted = False

    @abstractmethod
    def attempt(self) -> Ending:
        """Runs the job once, from whatever checkpoint there is.

        Raises:
            UserError: it could not be started.
        """

    def listen(self) -> None:
        """Hears of a wish to end (SIGTERM) and of a simulated preemption (SIGUSR1)."""
        signal.signal(signal.SIGTERM, self._note_stop)
        signal.signal(signal.SIGUSR1, self._note_preemption)

    def supervise(self) -> None:
        """All attempts, up to the last word."""
        self.update(
            state=RunState.STARTING,
            started=time.time(),
            pid=os.getpid(),
            pid_started=process_started(os.getpid()),
            boot_id=boot_id(),
        )
        ending = self._recorded_attempt()
        for restart in range(self.request.max_restarts):
            if not ending.worth_another or self._stopped_in_pause(restart):
                break
            print(f"attempt {self.state.attempt} {ending.state}: {ending.reason}; starting another", flush=True)
            self.update(attempt=self.state.attempt + 1, reason=ending.reason, ranks=dict(ending.ranks))
            ending = self._recorded_attempt()
        self._end_tracking(ending)
        self.update(
            state=ending.state,
            ended=time.time(),
            exit_code=ending.exit_code,
            reason=ending.reason,
            ranks=dict(ending.ranks),
            pid=None,
        )
        self.watch.ended(ending)

    def stop_requested(self) -> bool:
        """Whether the run shall end; the file was perhaps made before there was a process to signal."""
        self.asked_to_stop |= self.run.cancel_file.exists()
        return self.asked_to_stop

    def look(self) -> None:
        """Notes how far the logs are, and looks at the job's reports; what is wrong with them goes into the state."""
        self.log_clock.note()
        wrong = self.watch.look()
        if wrong and self.state.warning is None:
            self.update(warning=wrong)

    def update(self, **changes: object) -> None:
        """Changes the state, on the disk too."""
        self.state = self.state.model_copy(update=changes)
        self.run.write_state(self.state)

    def _stopped_in_pause(self, restart: int) -> bool:
        """Waits before a restart, longer each time while no attempt gets any further; True if asked to end."""
        steps = [attempt.step for attempt in self.state.attempts]
        further = steps[-1] is not None and steps[-1] != (steps[-2] if len(steps) > 1 else None)
        until = time.monotonic() + (0.0 if further else min(2.0**restart, LONGEST_PAUSE))
        while time.monotonic() < until and not self.stop_requested():
            time.sleep(POLL_SECONDS)
        return self.stop_requested()

    def _recorded_attempt(self) -> Ending:
        """One attempt on the record; what keeps it from starting is an ending too."""
        earlier = self.state.attempts
        begun = Attempt(started=time.time())
        self.update(attempts=[*earlier, begun], warning=None)
        self.preempted = False
        self.watch.begin()
        for stale in self.run.outputs.glob("error-*.json"):
            stale.unlink()
        try:
            ending = self.attempt()
        except UserError as problem:
            print(problem, file=sys.stderr, flush=True)
            ending = Ending(RunState.FAILED, problem.exit_code, str(problem))
        except Exception as problem:  # a mistake of ours: the run has ended all the same, and somebody waits to be told
            traceback.print_exc()
            reason = str(InternalError(f"{type(problem).__name__}: {problem}"))
            ending = Ending(RunState.FAILED, InternalError.exit_code, reason)
        last = last_report(self.run.metrics)
        record = {
            "ended": time.time(),
            "state": ending.state,
            "exit_code": ending.exit_code,
            "reason": ending.reason,
            "step": last["step"] if last.get("time", 0.0) >= begun.started else None,
        }
        self.update(attempts=[*earlier, begun.model_copy(update=record)])
        return ending

    def _end_tracking(self, ending: Ending) -> None:
        try:
            self.tracked.end(ending.state)
        except UserError as problem:  # the job was over before MLflow answered
            print(f"warning: {problem}", file=sys.stderr, flush=True)
        self.update(mlflow_run_id=self.tracked.run_id)

    def _note_stop(self, signum: int, frame: FrameType | None) -> None:
        self.asked_to_stop = True

    def _note_preemption(self, signum: int, frame: FrameType | None) -> None:
        self.preempted = True
