"""The one policy of restarts: which ends count against which limit, pauses, and the stop at a repeated failure."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest

from orchestrator.runs.restarts import Backoff, Pauses, RestartLimits, decide_restart, error_cause
from orchestrator.runs.status import AttemptEnd, EndCause, RunState
from tests.conftest import wait_for
from train_jobs.artifacts.store_manifest import Damage, damaged_store
from train_jobs.config import StorageError
from train_jobs.engine.runtime.storage import explain, require_free

NO_PAUSE = Backoff(0.0, 0.0)


def failed(reason: str = "it crashed", *, step: int | None = None, cause: EndCause | None = None) -> AttemptEnd:
    return AttemptEnd(ended=1.0, state=RunState.FAILED, exit_code=1, reason=reason, step=step, cause=cause)


def evicted(step: int | None = None) -> AttemptEnd:
    return AttemptEnd(ended=1.0, state=RunState.PREEMPTED, exit_code=75, reason="evicted", step=step)


def is_due(ends: list[AttemptEnd], limits: RestartLimits) -> bool:
    return decide_restart("run", ends, limits, NO_PAUSE).due


def test_errors_and_preemptions_are_counted_apart() -> None:
    limits = RestartLimits(errors=1, preemptions=2)
    ends = [evicted(), failed("one"), evicted()]
    assert all(is_due(ends[: count + 1], limits) for count in range(3))
    assert not is_due([*ends, failed("two")], limits)
    assert not is_due([*ends, evicted()], limits)


def test_unlimited_preemptions_are_always_restarted() -> None:
    assert is_due([evicted()] * 500, RestartLimits(errors=0, preemptions=None))
    assert not is_due([evicted()] * 500 + [failed()], RestartLimits(errors=0, preemptions=None))


def test_kills_without_progress_are_bounded() -> None:
    """The OOM killer kills the launcher of a job that is too large in every attempt."""
    limits = RestartLimits(errors=0, preemptions=None, disk_is_error=False)
    killed = [failed("the launcher was killed", cause=EndCause.SUPERVISOR)] * 5
    assert is_due(killed[:4], limits)
    assert not is_due(killed, limits)
    assert is_due([*killed[:4], failed("killed", step=8, cause=EndCause.SUPERVISOR)], limits)
    assert is_due([*killed[:4], evicted()], limits)


def test_damaged_stores_in_a_row_are_bounded() -> None:
    """A trial on a disk that damages every store must not be resumed until the limits of the sweep."""
    limits = RestartLimits(errors=0, preemptions=None, disk_is_error=False)
    damaged = [failed("the token store is damaged", cause=EndCause.DAMAGE)] * 5
    assert is_due(damaged[:4], limits)
    stopped = decide_restart("run", damaged, limits, NO_PAUSE)
    assert stopped.why_not == "not restarted: its token store was damaged 5 times without progress"
    assert is_due([*damaged[:4], failed("damaged", step=8, cause=EndCause.DAMAGE)], limits)
    assert is_due([*damaged[:4], failed("full", cause=EndCause.DISK)], limits)
    assert not is_due(damaged[:1], RestartLimits(errors=0, preemptions=None)), "a run alone is resumed by its user"


def test_default_of_preemptions_follows_the_tier() -> None:
    low = {"max_restarts": 2, "max_preemptions": None, "compute": {"tier": "spot"}}
    assert RestartLimits.from_spec(low) == (2, None, True)
    assert RestartLimits.from_spec({**low, "compute": {"tier": "dedicated"}}) == (2, 2, True)
    assert RestartLimits.from_spec({**low, "max_preemptions": 7}, errors=0) == (0, 7, True)
    assert RestartLimits.from_spec({}) == (0, 0, True)


def test_same_failure_at_the_same_step_stops() -> None:
    limits = RestartLimits(errors=9, preemptions=None)
    first, second = failed("loss at 0x7f12 is nan", step=30), failed("loss at 0x7faa is nan", step=30)
    assert is_due([first], limits)
    stopped = decide_restart("run", [first, second], limits, NO_PAUSE)
    assert stopped.why_not == "not restarted: it failed twice in the same way after step 30"
    assert not is_due([first, failed("loss at 0x7fbb is nan")], limits)  # no further than the checkpoint
    assert is_due([first, failed("loss at 0x7faa is nan", step=40)], limits)
    assert is_due([first, failed("cannot write", step=30)], limits)
    assert is_due([evicted(30), evicted(30)], limits)
    lost = failed("supervisor lost", step=30, cause=EndCause.MACHINE)
    assert is_due([lost, lost], limits)


def test_full_disk_is_an_error_only_of_runs() -> None:
    full = failed("the disk is full", cause=EndCause.DISK)
    assert not is_due([full], RestartLimits(0, None))
    assert is_due([full] * 9, RestartLimits(0, None, disk_is_error=False))


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.CANCELLED, RunState.RUNNING])
def test_other_ends_are_not_restarted(state: RunState) -> None:
    assert not is_due([AttemptEnd(state=state)], RestartLimits(9, None))


def test_invalid_input_is_not_restarted() -> None:
    assert not is_due([failed(cause=EndCause.INPUT)], RestartLimits(9, None))
    assert not is_due([failed().model_copy(update={"exit_code": 2})], RestartLimits(9, None))
    assert is_due([evicted().model_copy(update={"exit_code": 2})], RestartLimits(9, None)), "it was stopped"


def test_pause_doubles_until_the_run_progresses() -> None:
    backoff = Backoff(first=10.0, longest=100.0)
    pauses = [backoff.pause("run", [evicted()] * count) for count in range(1, 8)]
    for pause, full in zip(pauses, [10, 20, 40, 80, 100, 100, 100], strict=True):
        assert full / 2 < pause <= full
    assert len(set(pauses)) == len(pauses), "each has its own jitter"
    assert pauses[2] == backoff.pause("run", [evicted()] * 3), "the same for all who follow the run"
    assert pauses[2] != backoff.pause("other", [evicted()] * 3)
    assert backoff.pause("run", [evicted(), evicted(), evicted(step=10)]) == 0
    assert backoff.pause("run", [evicted(step=10), evicted(step=10)]) > 0


def test_both_errors_of_a_full_disk_have_that_cause(tmp_path: Path) -> None:
    """A failed write, and a checkpoint that would not fit."""
    failed_write = explain(OSError(errno.ENOSPC, "x"), tmp_path, "the checkpoint")
    with pytest.raises(StorageError) as foreseen:
        require_free(tmp_path, 1 << 80, "the checkpoint")
    for problem in (failed_write, foreseen.value):
        assert problem is not None
        assert error_cause({"kind": problem.kind, "facts": problem.facts}) == EndCause.DISK


def test_error_of_a_rank_has_a_cause() -> None:
    assert error_cause({"kind": "storage", "facts": {"where": "/x"}}) == EndCause.ERROR
    damaged = damaged_store(Path("/x"), Damage("vocab.txt", "is missing"), is_remade=True)
    assert error_cause({"kind": damaged.kind, "facts": damaged.facts}) == EndCause.DAMAGE
    damaged = damaged_store(Path("/x"), Damage("vocab.txt", "is missing"))
    assert error_cause({"kind": damaged.kind, "facts": damaged.facts}) == EndCause.INPUT
    assert error_cause({"kind": "data"}) == EndCause.INPUT
    assert error_cause({"kind": "hang"}) == EndCause.ERROR
    assert error_cause({"kind": "memory"}) == EndCause.MEMORY


@pytest.mark.parametrize("offset", [-86400, 86400], ids=["back", "forward"])
def test_set_clock_changes_no_pause(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    pauses, true_time = Pauses(), time.time
    ended = true_time()
    monkeypatch.setattr(time, "time", lambda: true_time() + offset)
    assert not pauses.over("run", ended, 3600)
    assert pauses.over("run", ended - 3600, 3600)


def test_wrong_clock_never_prolongs_a_pause() -> None:
    pauses = Pauses()
    ended = time.time() + 86400  # by a clock that was a day ahead
    assert not pauses.over("run", ended, 0.2)
    wait_for(lambda: pauses.over("run", ended, 0.2), what="the end of the pause")
