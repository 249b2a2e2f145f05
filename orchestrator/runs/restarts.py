"""The one policy of automatic restarts: which ends are restarted, how often, and after which pause.

Runs on this machine (`backends/folder/supervision.py`), runs on Azure (`backends/azure/backend.py`) and the trials of a
sweep (`sweeps/driver/driver.py`) all call `decide_restart` with the ends of their attempts.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.runs.status import AttemptEnd, EndCause, RunState, RunStatus
from train_jobs.artifacts.host import RunClock
from train_jobs.config.errors import REMADE

PREEMPTED_CODE = 75  # train_jobs.pretrain: stopped by SIGTERM, checkpoint committed
USAGE_CODE = 2  # wrong input: the next attempt would fail in the same way
EVICTIONS = {EndCause.PREEMPTED, EndCause.MACHINE, EndCause.SUPERVISOR}
DISKS = {EndCause.DISK, EndCause.DAMAGE}
MOST_IN_A_ROW = 5  # without progress: a machine without enough memory, or a broken disk, ends every attempt
IN_A_ROW = {EndCause.SUPERVISOR: "it was killed", EndCause.DAMAGE: "its token store was damaged"}
OWN_FAULT = {*EndCause} - {*EVICTIONS, *DISKS, EndCause.TIME}
# Addresses, ports, pids and times differ between two reports of the same failure.
_VARIABLE = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?", re.IGNORECASE)
# Only the first line of a message: the others may be a table of values.
_EXCEPTION = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", re.MULTILINE)
_KINDS = {
    "spec": EndCause.INPUT,
    "data": EndCause.INPUT,
    "usage": EndCause.INPUT,
    "memory": EndCause.MEMORY,
}  # kind of the job's error -> cause


class RestartLimits(NamedTuple):
    """Highest numbers of automatic restarts."""

    errors: int
    """After errors of the job, of its image and of its data, of the disk, and time limits."""
    preemptions: int | None
    """After evictions, and lost machines, supervisors and launchers; None: unlimited."""
    disk_is_error: bool = True
    """False: a full disk or a damaged token store is not the job's fault, and counts like a lost machine."""

    @classmethod
    def from_spec(
        cls, spec: Mapping[str, Any], *, errors: int | None = None, preemptions: int | None = None
    ) -> RestartLimits:
        """Return the limits of a job's spec.

        Args:
            spec: the resolved spec, as JSON values; that of an earlier version may lack keys.
            errors, preemptions: values that replace those of the spec. None: as in the spec.
        """
        errors = spec.get("max_restarts", 0) if errors is None else errors
        preemptions = spec.get("max_preemptions") if preemptions is None else preemptions
        if preemptions is None and (spec.get("compute") or {}).get("tier", "dedicated") == "dedicated":
            preemptions = errors
        return cls(errors, preemptions)


class Backoff(NamedTuple):
    """Pauses between attempts that make no progress: doubled each time, with a jitter of half of it."""

    first: float
    """Seconds before the first restart without progress."""
    longest: float
    """Upper bound in seconds."""

    def pause(self, name: str, ends: Sequence[AttemptEnd]) -> float:
        """Return the seconds to wait after the last end; 0 if that attempt progressed further than the one before.

        The jitter depends only on the run's name and the number of its attempts, so that all processes that follow the
        same run wait for the same time, and different runs do not restart together.

        Args:
            name: name of the run.
            ends: ends of its attempts, the oldest first.
        """
        if not (stuck := without_progress(ends)):
            return 0.0
        jitter = random.Random(f"{name} {len(ends)}").random()
        return float(min(self.first * 2.0 ** min(stuck - 1, 30), self.longest) * (1 - jitter / 2))


class Pauses:
    """The pauses of runs before their restarts; to set the machine's clock does not change a pause that has begun."""

    def __init__(self) -> None:
        self._clock = RunClock.start()
        self._until: dict[tuple[str, float], float] = {}

    def over(self, name: str, ended: float, seconds: float, now: float | None = None) -> bool:
        """Return whether the pause after an end is over.

        Args:
            name: name of the run.
            ended: its last end, seconds since the epoch.
            seconds: length of the pause.
            now: this moment by the clock of `ended`. None: by the wall clock as it was when this object was made.
        """
        # Clocks differ, and may have been wrong at the end: no pause lasts longer than `seconds` from the first look.
        here = self._clock.now()
        left = min(max(ended + seconds - (here if now is None else now), 0.0), seconds)
        return here >= self._until.setdefault((name, ended), here + left)


class Restart(NamedTuple):
    """Decision about the next attempt of a run."""

    due: bool
    """Whether there is to be one."""
    pause: float = 0.0
    """Seconds to wait for it after the last end."""
    why_not: str | None = None
    """Why a run with restarts left is not restarted."""


def cause_of(end: AttemptEnd) -> EndCause:
    """Return the cause of an end; for a record of an earlier version, from its state and exit code."""
    if end.cause is not None:
        return end.cause
    if end.state == RunState.PREEMPTED:
        return EndCause.PREEMPTED
    return EndCause.INPUT if end.exit_code == USAGE_CODE else EndCause.ERROR


def without_progress(ends: Sequence[AttemptEnd]) -> int:
    """Return the number of last ends that got no further than the attempt before."""
    stuck = 0
    for before, end in zip([None, *ends][-2::-1], reversed(ends), strict=False):
        if end.step is not None and (before is None or before.step is None or end.step > before.step):
            break
        stuck += 1
    return stuck


def error_cause(error: Mapping[str, Any]) -> EndCause:
    """Return the cause of a rank's own error.

    Args:
        error: {kind, message, facts, fix}, from its error file.
    """
    # Only the error of a full disk shows how much space is free, and only that of a damaged token store states that the
    # next start makes it again; other storage errors are permissions and paths.
    facts = error.get("facts") or {}
    if error.get("kind") == "storage" and {"free", REMADE} & facts.keys():
        return EndCause.DISK if "free" in facts else EndCause.DAMAGE
    return _KINDS.get(str(error.get("kind")), EndCause.ERROR)


def decide_restart(name: str, ends: Sequence[AttemptEnd], limits: RestartLimits, backoff: Backoff) -> Restart:
    """Decide whether a run that has finished gets another attempt.

    Args:
        name: name of the run.
        ends: ends of the attempts that count, the oldest first; the last one has just ended.
        limits: highest numbers of restarts.
        backoff: pauses between them.
    """
    if not ends or ends[-1].state not in {RunState.FAILED, RunState.PREEMPTED}:
        return Restart(False)
    causes = [cause_of(end) for end in ends]
    wrong_input = ends[-1].state == RunState.FAILED and ends[-1].exit_code == USAGE_CODE
    if causes[-1] == EndCause.INPUT or wrong_input:
        return Restart(False)
    forgiven = EVICTIONS if limits.disk_is_error else {*EVICTIONS, *DISKS}
    evicted = causes[-1] in forgiven
    allowed = limits.preemptions if evicted else limits.errors
    if allowed is not None and sum((cause in forgiven) == evicted for cause in causes) > allowed:
        return Restart(False)
    if len(ends) > 1 and same_failure(ends[-2], ends[-1]):
        step = ends[-2].step if ends[-1].step is None else ends[-1].step
        where = "before the first report" if step is None else f"after step {step}"
        return Restart(False, why_not=f"not restarted: it failed twice in the same way {where}")
    same = set(causes[-MOST_IN_A_ROW:]) == {causes[-1]}
    if causes[-1] in IN_A_ROW and same and without_progress(ends) >= MOST_IN_A_ROW:
        why = f"{IN_A_ROW[causes[-1]]} {MOST_IN_A_ROW} times without progress"
        return Restart(False, why_not=f"not restarted: {why}")
    return Restart(True, backoff.pause(name, ends))


def same_failure(one: AttemptEnd, other: AttemptEnd) -> bool:
    """Return whether an attempt ended by the same error of the job as the one before, without getting further."""
    if cause_of(one) not in OWN_FAULT or cause_of(other) not in OWN_FAULT:
        return False
    if one.signature == "" or one.signature != other.signature:
        return False  # an exit code alone does not show that it was the same error
    reasons = [_without_numbers(end.reason or "") for end in (one, other)]
    # without a report, the second attempt got no further than the checkpoint of the first
    stuck = other.step is None or other.step == one.step
    return stuck and one.exit_code == other.exit_code and reasons[0] == reasons[1]


def signature_of(output: str) -> str:
    """Return the digest of the last exception in the output of a Python program; empty if it shows none.

    A digest, because the message may contain data, and the status of a run is sent to other services.
    """
    found = _EXCEPTION.findall(output)
    return hashlib.sha256(_without_numbers(found[-1]).encode()).hexdigest()[:16] if found else ""


def _without_numbers(text: str) -> str:
    return _VARIABLE.sub("#", text)


def ends_of(status: RunStatus) -> list[AttemptEnd]:
    """Return the ends of all attempts of a finished run; an attempt without a recorded end lost its machine."""
    ends: list[AttemptEnd] = [
        end if end.ended is not None else end.model_copy(update={"cause": EndCause.MACHINE}) for end in status.attempts
    ]
    completed = bool(ends) and ends[-1].state == RunState.COMPLETED
    if completed and status.state == RunState.FAILED:
        # its supervisor was lost between the record of the attempt and the last state: the next start finds all done
        ends.append(AttemptEnd(reason=status.reason, state=status.state, cause=EndCause.MACHINE))
    elif len(ends) < status.attempt:  # it never began, because its supervisor was lost before
        ends.append(AttemptEnd(reason=status.reason, state=status.state, cause=EndCause.MACHINE))
    return ends
