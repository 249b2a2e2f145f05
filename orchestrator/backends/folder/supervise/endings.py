"""How an attempt ended, read from the exit codes of all ranks and not from the launcher's word."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.runs.status import RunState

PREEMPTED_CODE = 75  # train_jobs.pretrain: stopped by SIGTERM, checkpoint committed
USAGE_CODE = 2  # wrong input: the next attempt would end alike
SIGNALLED = 128  # a shell's exit code for a child that died of signal n is this plus n


@dataclass(frozen=True)
class Ending:
    """How an attempt ended."""

    state: RunState
    exit_code: int
    reason: str | None
    ranks: Mapping[int, int] = field(default_factory=dict)

    @property
    def worth_another(self) -> bool:
        """Whether another attempt may end better: not after success, nor with input that stays wrong."""
        return self.state.resumable and self.exit_code != USAGE_CODE


def ending_of(run: RunFolder, *, attempt: int, world_size: int, agent_code: int, stopped: bool) -> Ending:
    """How an attempt whose agents have ended did so.

    Args:
        agent_code: the first exit code of an agent that is not 0, or 0.
        stopped: whether the supervisor asked the agents to end.
    """
    ranks = read_exits(run.exits(attempt))
    if len(ranks) == world_size and not any(ranks.values()):
        return Ending(RunState.COMPLETED, 0, None, ranks)
    if run.cancel_file.exists():
        return Ending(RunState.CANCELLED, PREEMPTED_CODE, "cancelled", ranks)
    if PREEMPTED_CODE in ranks.values() or stopped:
        return Ending(RunState.PREEMPTED, PREEMPTED_CODE, "stopped by SIGTERM", ranks)
    first = next((rank for rank, code in ranks.items() if code), None)
    if first is None:
        code = agent_code or 1
        reason = f"the launcher ended with {code} before any rank; see {run.agent_log(0)}"
        return Ending(RunState.FAILED, code, reason, ranks)
    return Ending(RunState.FAILED, ranks[first], _reason(run, first, ranks[first]), ranks)


def _reason(run: RunFolder, rank: int, code: int) -> str:
    """Why the rank that ended first did so: its own words if it left any; the others only lost their peer."""
    with suppress(ValueError):  # a job may end with 255 too, and that is no signal
        name = signal.Signals(code - SIGNALLED).name
        return f"rank {rank} was killed by signal {name}; see {run.rank_log(rank)}"
    with suppress(ValueError, KeyError, OSError):
        return str(json.loads((run.outputs / f"error-{rank}.json").read_text())["text"])
    return f"rank {rank} ended with exit code {code}; see {run.rank_log(rank)}"


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
