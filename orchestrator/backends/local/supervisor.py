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

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.folder.supervise.endings import Ending, ending_of
from orchestrator.backends.folder.supervise.supervision import POLL_SECONDS, Supervision
from orchestrator.backends.local.launch import LocalRequest, check_port, kill_leftovers, start_agents
from orchestrator.runs.status import RunState
from orchestrator.support.errors import UserError

GRACE_SECONDS = 40.0  # torchrun gives its ranks 30 s after SIGTERM; only then do we lose patience
PEER_SECONDS = 5.0  # what the other nodes get to say why they end, once one has failed


class Supervisor(Supervision):
    """Makes attempts with torchrun's agents, one a node."""

    request: LocalRequest
    request_kind = LocalRequest

    def attempt(self) -> Ending:
        """Starts the agents, waits for them, reads what became of the ranks.

        Raises:
            ConflictError: the port is taken.
            ServiceError: MLflow could not open a run.
        """
        kill_leftovers(self.run.path)
        check_port(self.request.master_port)
        self.tracked.open()
        variables = self.tracked.variables()
        agents = start_agents(self.run, self.request, attempt=self.state.attempt, tracking=variables)
        self.update(state=RunState.RUNNING)
        try:
            problem = self._watch(agents)
        finally:
            kill_leftovers(self.run.path)
        if problem is not None:
            raise problem
        return ending_of(
            self.run,
            attempt=self.state.attempt,
            world_size=self.request.world_size,
            agent_code=next((agent.returncode for agent in agents if agent.returncode), 0),
            stopped=self.asked_to_stop or self.preempted,
        )

    def _watch(self, agents: list[subprocess.Popen[bytes]]) -> UserError | None:
        """Until all agents have ended, of themselves or because they were told to; returns what MLflow refused."""
        problem: UserError | None = None
        stopping_since: float | None = None
        failed_since: float | None = None
        while any(agent.poll() is None for agent in agents):
            now = time.monotonic()
            problem = problem or self._look_at_tracking()
            self.look()
            if failed_since is None and any(agent.returncode for agent in agents):
                failed_since = now
            alone = failed_since is not None and now - failed_since > PEER_SECONDS
            if stopping_since is None and (self.stop_requested() or self.preempted or alone or problem):
                stopping_since = now
                for agent in agents:
                    agent.terminate()
            if stopping_since is not None and now - stopping_since > GRACE_SECONDS:
                kill_leftovers(self.run.path)
            time.sleep(POLL_SECONDS)
        return problem

    def _look_at_tracking(self) -> UserError | None:
        """Notes the MLflow run once it is open. A store that refuses it ends the run, before much is spent."""
        try:
            if self.tracked.poll():
                self.update(mlflow_run_id=self.tracked.run_id)
        except UserError as problem:
            return problem
        return None


def main() -> int:
    """Takes the lock, says so, supervises."""
    run, ready = RunFolder(Path(sys.argv[1])), int(sys.argv[2])
    with run.lock():
        supervisor = Supervisor(run)
        os.write(ready, b"ready")
        os.close(ready)
        supervisor.listen()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        supervisor.supervise()
    return 0


if __name__ == "__main__":
    sys.exit(main())
