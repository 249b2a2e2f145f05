"""The process that supervises a local run, in a session of its own: it outlives the command that started it.

    python -m orchestrator.backends.local.supervisor RUN_FOLDER READY_FD

It writes to READY_FD once it holds the lock. It ends the agents on SIGTERM (`cancel`, or a machine that shuts down) or
SIGUSR1 (a simulated preemption), reads the exit code of each rank, starts another attempt where the run allows it,
writes the last state to state.json, and starts the process that completes the metrics in MLflow.
"""

from __future__ import annotations

import io
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.folder.run_processes import kill_leftovers
from orchestrator.backends.folder.supervision import (
    POLL_SECONDS,
    Ending,
    LauncherEnd,
    Supervision,
    ending_of,
    read_exits,
)
from orchestrator.backends.local.launch import Agent, LocalRequest, held_port, start_agents
from orchestrator.runs.status import RunState
from orchestrator.support.redact import redact
from train_jobs.artifacts.process_limits import require_files

GRACE_SECONDS = 40.0  # torchrun gives its ranks 30 s after SIGTERM: kill no earlier
PEER_SECONDS = 5.0  # after one node failed, time for the others to report their errors


class Supervisor(Supervision):
    """Runs attempts with torchrun's agents, one for each node."""

    request: LocalRequest
    request_kind = LocalRequest
    _failed_launcher: LauncherEnd | None = None
    _stopped = False

    def attempt(self) -> Ending:
        """Start the agents, wait for them, and read the exit codes of the ranks.

        Raises:
            ConflictError: the port is taken.
            MachineError: a process may open too few files.
        """
        require_files()
        # a supervisor that was killed may have left ranks behind, which hold the port and the GPUs
        kill_leftovers(self.run.path)
        self.run.clear_temporaries()
        agents = list[Agent]()
        try:
            with held_port(self.request.master_port) as holder:
                self.tracked.begin()
                agents = start_agents(
                    self.run, self.request, attempt=self.state.attempt, holder=holder, variables=self.variables()
                )
            self.update(state=RunState.RUNNING)
            self._watch(agents)
        finally:
            # ranks of a killed agent and workers of data loaders may still run, and two attempts must never write the
            # same checkpoint folder
            kill_leftovers(self.run.path)
            for agent in agents:
                agent.output.finish()
            self.run.clear_temporaries()
        return ending_of(
            self.run,
            attempt=self.state.attempt,
            world_size=self._world_size,
            launcher=self._failed_launcher,
            stopped=self._stopped,
            writes_result=self.request.writes_result,
        )

    @property
    def _world_size(self) -> int:
        return self.request.nodes * self.request.processes_per_node

    def _watch(self, agents: list[Agent]) -> None:
        """Wait until all agents have finished, on their own or on request."""
        self._failed_launcher, self._stopped = None, False
        stopping_since = failed_since = math.inf
        # a list: `any` over the agents would never poll those after the first that lives, and their death stay unseen
        while None in (codes := [agent.process.poll() for agent in agents]):
            now = time.monotonic()
            self.monitor()
            # torchrun's static rendezvous does not report a failed node to the other agents: their ranks may wait in a
            # collective until it times out, which takes minutes
            if stopping_since == math.inf:
                self._note_failure(codes)
            if any(codes):
                failed_since = min(failed_since, now)
            alone = now - failed_since > PEER_SECONDS
            asked = self.stop_requested() or self.preempted
            if stopping_since == math.inf and (asked or alone):
                stopping_since = now  # once: a second SIGTERM would interrupt torchrun's own shutdown of its ranks
                # agents live for some seconds after their last rank: a run that had finished was not stopped
                self._stopped = asked and not self._all_succeeded()
                for agent in agents:
                    agent.process.terminate()
            if now - stopping_since > GRACE_SECONDS:
                kill_leftovers(self.run.path)
            time.sleep(POLL_SECONDS)
        if stopping_since == math.inf:
            self._note_failure(codes)
            # a machine that shuts down sends SIGTERM to all processes: the agents may end before this loop sees it
            self._stopped = any(codes) and (self.asked_to_stop or self.preempted)

    def _all_succeeded(self) -> bool:
        """Return whether all ranks finished with 0."""
        ranks = read_exits(self.run.exits(self.state.attempt))
        return len(ranks) == self._world_size and not any(ranks.values())

    def _note_failure(self, codes: Sequence[int | None]) -> None:
        """Remember the agent that failed first; of several since the last look, one that was killed."""
        if self._failed_launcher is None:
            failed = [LauncherEnd(node, code) for node, code in enumerate(codes) if code]
            self._failed_launcher = min(failed, key=lambda end: end.code, default=None)


class ToleratingLog(io.TextIOBase):
    """The supervisor's output without secrets; what does not fit on a full disk is lost, without an error."""

    def write(self, text: str) -> int:
        """Append a text to the file that is open as stdout."""
        with suppress(OSError):
            os.write(1, redact(text).encode(errors="replace"))
        return len(text)


def main() -> int:
    """Take the lock, report it, and supervise the run."""
    run, ready = RunFolder(Path(sys.argv[1])), int(sys.argv[2])
    log: Any = ToleratingLog()
    sys.stdout = sys.stderr = log
    with run.lock():
        supervisor = Supervisor(run)
        # Report only with the lock held: the submitting command returns then, and its next `status` must see the
        # supervisor as alive. A cancel that arrives before the handlers below is not lost: it leaves the file `cancel`.
        os.write(ready, b"ready")
        os.close(ready)
        supervisor.install_signal_handlers()
        # neither Ctrl-C nor the end of a terminal or an SSH connection ends a run
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        supervisor.supervise()
    supervisor.watch.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
