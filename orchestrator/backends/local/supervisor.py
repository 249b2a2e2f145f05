"""The process that watches a local run, in a session of its own: it outlives the command that made it.

    python -m orchestrator.backends.local.supervisor RUN_FOLDER READY_FD

Writes to READY_FD once it holds the lock. Ends the agents on SIGTERM (`cancel`, or a machine going down) or SIGUSR1 (a
simulated preemption), reads how each rank ended, starts another attempt where the run allows it, sees to it that MLflow
has everything, and has the last word in state.json.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from orchestrator.backends.folder.backend import last_report
from orchestrator.backends.folder.files import Attempt, RunFolder, boot_id, process_started
from orchestrator.backends.local.endings import Ending, ending_of
from orchestrator.backends.local.launch import LocalRequest, check_port, kill_leftovers, start_agents
from orchestrator.backends.local.tracked import TrackedRun
from orchestrator.errors import UserError
from orchestrator.runs import RunState

GRACE_SECONDS = 40.0  # torchrun gives its ranks 30 s after SIGTERM; only then do we lose patience
PEER_SECONDS = 5.0  # what the other nodes get to say why they end, once one has failed
POLL_SECONDS = 0.1
LONGEST_PAUSE = 60.0  # seconds between two attempts


class Supervisor:
    """Runs the attempts of a run, until it has ended.

    Args:
        run: folder of the run, with request.json and state.json in place.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.request = LocalRequest.model_validate(run.read_json("request.json"))
        self.state = run.stored_state()
        self.tracked = TrackedRun(run, self.request, self.state.mlflow_run_id)
        self.asked_to_stop = False
        self.preempted = False
        self.problem: UserError | None = None

    def supervise(self) -> None:
        """All attempts, from the lock to the last word."""
        signal.signal(signal.SIGTERM, self._note_stop)
        signal.signal(signal.SIGUSR1, self._note_preemption)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._update(
            state=RunState.STARTING,
            started=time.time(),
            pid=os.getpid(),
            pid_started=process_started(os.getpid()),
            boot_id=boot_id(),
        )
        kill_leftovers(self.run.path)
        ending = self._guarded_attempt()
        for restart in range(self.request.max_restarts):
            if not ending.worth_another or self._stopped_in_pause(restart):
                break
            print(f"attempt {self.state.attempt} {ending.state}: {ending.reason}; starting another", flush=True)
            self._update(attempt=self.state.attempt + 1, reason=ending.reason, ranks=dict(ending.ranks))
            ending = self._guarded_attempt()
        self._end_tracking(ending)
        self._update(
            state=ending.state,
            ended=time.time(),
            exit_code=ending.exit_code,
            reason=ending.reason,
            ranks=dict(ending.ranks),
            pid=None,
        )

    def _stopped_in_pause(self, restart: int) -> bool:
        """Waits before a restart, longer each time while no attempt gets any further; True if asked to end."""
        steps = [attempt.step for attempt in self.state.attempts]
        further = steps[-1] is not None and steps[-1] != (steps[-2] if len(steps) > 1 else None)
        until = time.monotonic() + (0.0 if further else min(2.0**restart, LONGEST_PAUSE))
        while time.monotonic() < until and not self._stop_requested():
            time.sleep(POLL_SECONDS)
        return self._stop_requested()

    def _stop_requested(self) -> bool:
        """Whether the run shall end; the file was perhaps made before there was a process to signal."""
        self.asked_to_stop |= self.run.cancel_file.exists()
        return self.asked_to_stop

    def _guarded_attempt(self) -> Ending:
        """One attempt on the record; what keeps it from starting is an ending too."""
        attempts = self.state.attempts
        self._update(attempts=[*attempts, Attempt(started=time.time())])
        try:
            ending = self._attempt()
        except UserError as problem:
            print(problem, file=sys.stderr, flush=True)
            ending = Ending(RunState.FAILED, problem.exit_code, str(problem))
        record = Attempt(
            started=self.state.attempts[-1].started,
            ended=time.time(),
            state=ending.state,
            exit_code=ending.exit_code,
            reason=ending.reason,
            step=last_report(self.run.metrics).get("step"),
        )
        self._update(attempts=[*attempts, record])
        return ending

    def _attempt(self) -> Ending:
        """Starts the agents, waits for them, reads what became of the ranks.

        Raises:
            ConflictError: the port is taken.
            ServiceError: MLflow could not open a run.
        """
        for stale in self.run.outputs.glob("error-*.json"):
            stale.unlink()
        self.preempted = False
        check_port(self.request.master_port)
        self.tracked.open()
        variables = self.tracked.variables()
        agents = start_agents(self.run, self.request, attempt=self.state.attempt, tracking=variables)
        self._update(state=RunState.RUNNING)
        self._watch(agents)
        kill_leftovers(self.run.path)
        if self.problem is not None:
            raise self.problem
        codes = [agent.returncode for agent in agents]
        return ending_of(
            self.run,
            attempt=self.state.attempt,
            world_size=self.request.world_size,
            agent_code=next((code for code in codes if code), 0),
            stopped=self.asked_to_stop or self.preempted,
        )

    def _watch(self, agents: list[subprocess.Popen[bytes]]) -> None:
        """Until all agents have ended, of themselves or because they were told to."""
        stopping_since: float | None = None
        failed_since: float | None = None
        while any(agent.poll() is None for agent in agents):
            now = time.monotonic()
            self._look_at_tracking()
            if failed_since is None and any(agent.returncode for agent in agents):
                failed_since = now
            alone = failed_since is not None and now - failed_since > PEER_SECONDS
            if stopping_since is None and (self._stop_requested() or self.preempted or alone or self.problem):
                stopping_since = now
                for agent in agents:
                    agent.terminate()
            if stopping_since is not None and now - stopping_since > GRACE_SECONDS:
                kill_leftovers(self.run.path)
            time.sleep(POLL_SECONDS)

    def _look_at_tracking(self) -> None:
        """Notes the MLflow run once it is open. A store that refuses it ends the run, before much is spent."""
        try:
            if self.tracked.poll():
                self._update(mlflow_run_id=self.tracked.run_id)
        except UserError as problem:
            self.problem = problem

    def _end_tracking(self, ending: Ending) -> None:
        try:
            self.tracked.end(ending.state)
        except UserError as problem:  # the job was over before MLflow answered
            print(f"warning: {problem}", file=sys.stderr, flush=True)
        self._update(mlflow_run_id=self.tracked.run_id)

    def _update(self, **changes: object) -> None:
        self.state = self.state.model_copy(update=changes)
        self.run.write_state(self.state)

    def _note_stop(self, signum: int, frame: FrameType | None) -> None:
        self.asked_to_stop = True

    def _note_preemption(self, signum: int, frame: FrameType | None) -> None:
        self.preempted = True


def main() -> int:
    """Takes the lock, says so, supervises."""
    run, ready = RunFolder(Path(sys.argv[1])), int(sys.argv[2])
    with run.lock():
        supervisor = Supervisor(run)
        os.write(ready, b"ready")
        os.close(ready)
        supervisor.supervise()
    return 0


if __name__ == "__main__":
    sys.exit(main())
