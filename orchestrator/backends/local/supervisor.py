"""The process that watches a local run, in a session of its own: it outlives the command that made it.

    python -m orchestrator.backends.local.supervisor RUN_FOLDER READY_FD

Writes to READY_FD once it holds the lock. Ends the agent on SIGTERM (`cancel`, or a machine going down) or SIGUSR1 (a
simulated preemption), reads how each rank ended, starts another attempt where the run allows it, lets the mirror catch
up, and has the last word in state.json.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from orchestrator.backends.folder.files import LocalState, RunFolder
from orchestrator.backends.folder.times import LogClock
from orchestrator.backends.local.launch import LocalRequest, check_port, kill_leftovers, start_agent
from orchestrator.errors import UserError
from orchestrator.runs import RunState
from orchestrator.tracking import TrackingRequest, flatten, open_run

PREEMPTED_CODE = 75  # train_jobs.pretrain: stopped by SIGTERM, checkpoint committed
USAGE_CODE = 2  # wrong input: the next attempt would end alike
SIGNALLED = 128  # a shell's exit code for a child that died of signal n is this plus n
GRACE_SECONDS = 40.0  # torchrun gives its ranks 30 s after SIGTERM; only then do we lose patience
POLL_SECONDS = 0.1
MLFLOW_STATUS = {RunState.COMPLETED: "FINISHED", RunState.FAILED: "FAILED"}  # cancelled and preempted: KILLED


@dataclass(frozen=True)
class Ending:
    """How an attempt ended."""

    state: RunState
    exit_code: int
    reason: str | None
    ranks: dict[int, int]


class Supervisor:
    """Runs the attempts of a run, until it has ended.

    Args:
        run: folder of the run, with request.json and state.json in place.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.request = LocalRequest.model_validate(run.read_json("request.json"))
        self.state = LocalState.model_validate(run.read_json("state.json"))
        self.log_clock = LogClock(run.logs)
        self.asked_to_stop = False
        self.preempted = False

    def supervise(self) -> None:
        """All attempts, from the lock to the last word."""
        signal.signal(signal.SIGTERM, self._note_stop)
        signal.signal(signal.SIGUSR1, self._note_preemption)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._update(state=RunState.STARTING, started=time.time(), pid=os.getpid())
        kill_leftovers(self.run.path)
        tracking: dict[str, str] = {}
        try:
            tracking = self._open_tracking()
            check_port(self.request.master_port)
            ending = self._attempt(tracking)
            for _ in range(self.request.max_restarts):
                if not self._worth_another(ending):
                    break
                print(f"attempt {self.state.attempt} {ending.state}: {ending.reason}; starting another", flush=True)
                self._update(attempt=self.state.attempt + 1, reason=ending.reason, ranks=ending.ranks)
                ending = self._attempt(tracking)
        except UserError as problem:
            print(problem, file=sys.stderr, flush=True)
            ending = Ending(RunState.FAILED, problem.exit_code, str(problem), {})
        self._end_tracking(ending, tracking)
        self._update(
            state=ending.state,
            ended=time.time(),
            exit_code=ending.exit_code,
            reason=ending.reason,
            ranks=ending.ranks,
            pid=None,
        )

    def _worth_another(self, ending: Ending) -> bool:
        """Not after success, not against the user's or the machine's will, and not with input that stays wrong."""
        return ending.state.resumable and not self.asked_to_stop and ending.exit_code != USAGE_CODE

    def _attempt(self, tracking: dict[str, str]) -> Ending:
        """Starts the agent, waits for it, reads what became of the ranks."""
        for stale in self.run.outputs.glob("error-*.json"):
            stale.unlink()
        self.preempted = False
        agent = start_agent(self.run, self.request, attempt=self.state.attempt, tracking=tracking)
        self._update(state=RunState.RUNNING)
        stopping_since: float | None = None
        while agent.poll() is None:
            self.asked_to_stop |= self.run.cancel_file.exists()  # asked before there was a process to signal
            if (self.asked_to_stop or self.preempted) and stopping_since is None:
                stopping_since = time.monotonic()
                agent.terminate()
            if stopping_since is not None and time.monotonic() - stopping_since > GRACE_SECONDS:
                kill_leftovers(self.run.path)
            self.log_clock.note()
            time.sleep(POLL_SECONDS)
        kill_leftovers(self.run.path)
        return self._ending(agent.returncode)

    def _ending(self, agent_code: int) -> Ending:
        """State from the exit codes of all ranks, not from the agent's word."""
        ranks = read_exits(self.run.exits(self.state.attempt))
        cancelled = self.run.cancel_file.exists()
        if len(ranks) == self.request.world_size and not any(ranks.values()):
            return Ending(RunState.COMPLETED, 0, None, ranks)
        if cancelled:
            return Ending(RunState.CANCELLED, PREEMPTED_CODE, "cancelled", ranks)
        if PREEMPTED_CODE in ranks.values() or self.asked_to_stop or self.preempted:
            return Ending(RunState.PREEMPTED, PREEMPTED_CODE, "stopped by SIGTERM", ranks)
        first = next((rank for rank, code in ranks.items() if code), None)
        if first is None:
            code = agent_code or 1
            where = self.run.logs / "agent-0.log"
            return Ending(RunState.FAILED, code, f"the launcher ended with {code} before any rank; see {where}", ranks)
        return Ending(RunState.FAILED, ranks[first], self._reason(first, ranks[first]), ranks)

    def _reason(self, rank: int, code: int) -> str:
        """Why the rank that ended first did so: its own words if it left any; the others only lost their peer."""
        if code > SIGNALLED:
            name = signal.Signals(code - SIGNALLED).name
            return f"rank {rank} was killed by signal {name}; see {self.run.rank_log(rank)}"
        with suppress(ValueError, KeyError, OSError):
            return str(json.loads((self.run.outputs / f"error-{rank}.json").read_text())["text"])
        return f"rank {rank} ended with exit code {code}; see {self.run.rank_log(rank)}"

    def _open_tracking(self) -> dict[str, str]:
        """Store and MLflow run exist before any rank does; the ranks find them by environment variables."""
        run_id = open_run(
            TrackingRequest(
                uri=self.request.tracking_uri,
                experiment=self.request.experiment,
                run_name=self.run.name,
                params=flatten(self.run.read_json("config.json")),
                tags=self.run.read_json("tags.json"),
                run_id=self.state.mlflow_run_id,
            )
        )
        self._update(mlflow_run_id=run_id)
        return {
            "MLFLOW_TRACKING_URI": self.request.tracking_uri,
            "MLFLOW_RUN_ID": run_id,
            "MLFLOW_EXPERIMENT_NAME": self.request.experiment,
        }

    def _end_tracking(self, ending: Ending, tracking: dict[str, str]) -> None:
        """Copies what a killed job left and ends the MLflow run truthfully; failing at it fails nothing else."""
        if not tracking:
            return
        status = MLFLOW_STATUS.get(ending.state, "KILLED")
        command = [sys.executable, "-m", "train_jobs.mirror", str(self.run.metrics), "--status", status]
        with (self.run.logs / "mirror.log").open("ab") as log:
            subprocess.run(command, env={**os.environ, **tracking}, stdout=log, stderr=log, check=False)

    def _update(self, **changes: object) -> None:
        self.state = self.state.model_copy(update=changes)
        self.run.write_state(self.state)

    def _note_stop(self, signum: int, frame: FrameType | None) -> None:
        self.asked_to_stop = True

    def _note_preemption(self, signum: int, frame: FrameType | None) -> None:
        self.preempted = True


def read_exits(folder: Path) -> dict[int, int]:
    """Exit codes by rank, the rank that ended first coming first."""
    if not folder.is_dir():
        return {}
    found = sorted(folder.glob("rank-*"), key=lambda path: path.stat().st_mtime_ns)
    codes = {}
    for path in found:
        with suppress(ValueError):  # an empty file: the disk was full
            codes[int(path.name.removeprefix("rank-"))] = int(path.read_text())
    return codes


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
