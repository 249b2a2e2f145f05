"""The end of a run: no exit code of its ranks, and no bug of the supervisor, leaves it running."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.backends.folder.run_folder import FolderRequest, LocalState, RunFolder
from orchestrator.backends.folder.supervision import (
    Ending,
    LauncherEnd,
    Supervision,
    ending_of,
    record_log_sizes,
)
from orchestrator.runs.restarts import Backoff, RestartLimits, decide_restart
from orchestrator.runs.status import AttemptEnd, RunState
from orchestrator.specs.notification import NotifySpec
from train_jobs.config.privacy import HINT


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Create a run of one rank that may be restarted once."""
    run = RunFolder(tmp_path / "run-1")
    run.outputs.mkdir(parents=True)
    run.logs.mkdir()
    request = FolderRequest(
        name=run.name,
        nodes=1,
        processes_per_node=1,
        threads=1,
        device="cpu",
        max_restarts=1,
        variables={},
        snapshot="",
        tracking_uri="sqlite:////x.db",
        experiment="x",
        notify=NotifySpec(on=["failed"]),
        steps=100,
        token_stores="x",
    )
    (run.path / "request.json").write_text(request.model_dump_json())
    run.tags.write_text(json.dumps({"orchestrator.handle": f"local://{run.name}"}))
    run.reserve()
    run.write_state(LocalState(state=RunState.QUEUED, created=1.0))
    return run


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (1, "ended with exit code 1"),
        (128, "ended with exit code 128"),
        (-9, "was killed by signal SIGKILL"),
        (-11, "was killed by signal SIGSEGV"),
        (-40, "was killed by signal 40"),  # a real-time signal without a name
        (137, "ended with exit code 137 (a shell's code for SIGKILL)"),
        (160, "ended with exit code 160"),  # signals 32 and 33 are reserved, and 64 is the last
        (193, "ended with exit code 193"),
        (255, "ended with exit code 255"),  # sys.exit(-1)
    ],
)
def test_only_exit_codes_of_signals_name_a_signal(run: RunFolder, code: int, message: str) -> None:
    run.exits(1).mkdir(parents=True)
    (run.exits(1) / "rank-0").write_text(f"{code}\n")
    ending = ending_of(run, attempt=1, world_size=1, launcher=LauncherEnd(0, 1), stopped=False)
    assert (ending.state, ending.exit_code) == (RunState.FAILED, 128 - code if code < 0 else code)
    assert ending.ranks == {0: ending.exit_code}
    assert ending.reason == f"rank 0 {message}; see {run.rank_log(0)}"


def test_error_file_of_a_rank_overrides_its_exit_code(run: RunFolder) -> None:
    run.exits(1).mkdir(parents=True)
    (run.exits(1) / "rank-0").write_text("255\n")
    (run.outputs / "error-0.json").write_text(json.dumps({"text": "error[data]: no text"}))
    assert (
        ending_of(run, attempt=1, world_size=1, launcher=LauncherEnd(0, 1), stopped=False).reason
        == "error[data]: no text"
    )


@pytest.mark.parametrize(
    ("last", "note"),
    [
        ("OSError: [Errno 24] Too many open files: '/x'", "; too many open files: the limit is "),
        ("MemoryError: ", "; memory ran out"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 GiB", "; memory ran out"),
        ("OSError: [Errno 12] Cannot allocate memory", "; memory ran out"),
        ("RuntimeError: [enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried", "; memory ran out"),
        ("terminate called after throwing an instance\n  what():  std::bad_alloc", "; memory ran out"),
        ("a text about a MemoryError, std::bad_alloc and Too many open files", ""),
        ("MemoryError is an exception of Python", ""),
    ],
)
def test_reason_names_what_a_killed_rank_lacked(run: RunFolder, last: str, note: str) -> None:
    run.exits(1).mkdir(parents=True)
    (run.exits(1) / "rank-0").write_text("-6\n")
    run.rank_log(0).write_text(f"step 1\n{last}\n")
    reason = ending_of(run, attempt=1, world_size=1, launcher=LauncherEnd(0, 1), stopped=False).reason
    killed = f"rank 0 was killed by signal SIGABRT; see {run.rank_log(0)}"
    assert reason is not None
    assert reason.startswith(killed + note)
    assert note or reason == killed


def test_reason_has_nothing_of_an_earlier_attempt(run: RunFolder) -> None:
    run.rank_log(0).write_text("step 1\nOSError: [Errno 24] Too many open files: '/x'\n")
    record_log_sizes(run, 2)
    with run.rank_log(0).open("a") as log:
        log.write("step 2\n")
    (run.exits(2) / "rank-0").write_text("-9\n")
    reason = ending_of(run, attempt=2, world_size=1, launcher=LauncherEnd(0, 1), stopped=False).reason
    assert reason == f"rank 0 was killed by signal SIGKILL; see {run.rank_log(0)}"


@pytest.mark.parametrize(("code", "exit_code"), [(1, 1), (-9, 137)])
def test_rank_that_lost_its_peer_is_never_the_reason(run: RunFolder, code: int, exit_code: int) -> None:
    run.exits(1).mkdir(parents=True)
    for rank, ended in ((0, 1), (1, code), (2, 1)):
        (run.exits(1) / f"rank-{rank}").write_text(f"{ended}\n")
        os.utime(run.exits(1) / f"rank-{rank}", (10 + rank, 10 + rank))
    for rank in (0, 2):
        lost = {"text": f"error[peer]: rank {rank} lost the connection", "error": {"kind": "peer"}}
        (run.outputs / f"error-{rank}.json").write_text(json.dumps(lost))
    ending = ending_of(run, attempt=1, world_size=3, launcher=LauncherEnd(0, 1), stopped=False)
    assert ending.exit_code == exit_code
    assert str(ending.reason).startswith("rank 1 ")
    (run.exits(1) / "rank-1").unlink()  # its parent was killed too
    alone = ending_of(run, attempt=1, world_size=3, launcher=LauncherEnd(0, 1), stopped=False)
    assert alone.reason == "error[peer]: rank 0 lost the connection"


@pytest.mark.parametrize(
    ("codes", "errors", "state", "reason"),
    [
        ([(1, -9), (0, 75)], {}, RunState.FAILED, "rank 1 was killed by signal SIGKILL"),
        ([(1, 2), (0, 75)], {1: "data"}, RunState.FAILED, "error[data]: rank 1"),
        ([(1, 1), (0, 75)], {1: "peer"}, RunState.PREEMPTED, "rank 0 ended with exit code 75: preempted; see "),
        ([(1, -15), (0, 75)], {}, RunState.PREEMPTED, "rank 1 was killed by signal SIGTERM: preempted; see "),
        ([(1, 143), (0, 1)], {0: "peer"}, RunState.PREEMPTED, "rank 1 ended with exit code 143 (a shell's code for"),
        ([(1, 75), (0, -9)], {}, RunState.PREEMPTED, "rank 1 ended with exit code 75: preempted; see "),
        ([(1, 75), (0, 1)], {0: "peer"}, RunState.PREEMPTED, "rank 1 ended with exit code 75: preempted; see "),
    ],
)
def test_rank_that_ended_first_is_the_reason_not_its_peers(
    run: RunFolder, codes: list[tuple[int, int]], errors: dict[int, str], state: RunState, reason: str
) -> None:
    run.exits(1).mkdir(parents=True)
    for order, (rank, code) in enumerate(codes):
        (run.exits(1) / f"rank-{rank}").write_text(f"{code}\n")
        os.utime(run.exits(1) / f"rank-{rank}", (10 + order, 10 + order))
    for rank, kind in errors.items():
        left = {"text": f"error[{kind}]: rank {rank}", "error": {"kind": kind}}
        (run.outputs / f"error-{rank}.json").write_text(json.dumps(left))
    ending = ending_of(run, attempt=1, world_size=2, launcher=LauncherEnd(1, 1), stopped=False)
    assert ending.state == state
    assert str(ending.reason).startswith(reason)


@pytest.mark.parametrize(
    ("stopped", "writes_result", "result", "state"),
    [
        (False, False, False, RunState.COMPLETED),
        (True, False, False, RunState.CANCELLED),
        (True, False, True, RunState.CANCELLED),  # the command's own file
        (True, True, False, RunState.CANCELLED),
        (True, True, True, RunState.COMPLETED),
        (False, True, True, RunState.COMPLETED),
        (False, True, False, RunState.FAILED),
    ],
)
def test_cancelled_run_completes_only_by_its_own_end(
    run: RunFolder, stopped: bool, writes_result: bool, result: bool, state: RunState
) -> None:
    run.exits(1).mkdir(parents=True)
    (run.exits(1) / "rank-0").write_text("0\n")
    run.cancel_file.touch()
    if result:
        (run.outputs / "result.json").write_text("{}")
    ending = ending_of(run, attempt=1, world_size=1, launcher=None, stopped=stopped, writes_result=writes_result)
    assert ending.state == state


@pytest.mark.parametrize(
    ("codes", "errors", "exit_code", "more"),
    [
        (["75", "0"], {}, 75, ""),
        (["-15", "75"], {}, 75, ""),
        (["143", "75"], {}, 75, ""),
        (["-9", "75"], {}, 137, "; rank 0 was killed by signal SIGKILL; see {log}/rank-0.log"),
        (["1", "75"], {0: "peer"}, 75, ""),
        (["75", "5"], {}, 5, "; rank 1 ended with exit code 5; see {log}/rank-1.log"),
        (["2", "75"], {0: "storage"}, 2, "; rank 0 ended with exit code 2: error[storage]: rank 0"),
        (["1", "5"], {0: "peer"}, 5, "; rank 1 ended with exit code 5; see {log}/rank-1.log"),
        (["75", ""], {}, 137, "; rank 1 was killed before it ended; see {log}/rank-1.log"),
    ],
)
@pytest.mark.parametrize("state", [RunState.CANCELLED, RunState.PREEMPTED])
def test_stopped_run_names_the_rank_that_did_not_save(
    run: RunFolder, state: RunState, codes: list[str], errors: dict[int, str], exit_code: int, more: str
) -> None:
    run.exits(1).mkdir(parents=True)
    for rank, code in enumerate(codes):
        (run.exits(1) / f"rank-{rank}").write_text(f"{code}\n")
    for rank, kind in errors.items():
        left = {"text": f"error[{kind}]: rank {rank}", "error": {"kind": kind}}
        (run.outputs / f"error-{rank}.json").write_text(json.dumps(left))
    if state == RunState.CANCELLED:
        run.cancel_file.touch()
    ending = ending_of(run, attempt=1, world_size=2, launcher=LauncherEnd(0, 1), stopped=True)
    stop = "cancelled" if state == RunState.CANCELLED else "stopped by SIGTERM"
    assert (ending.state, ending.exit_code, ending.reason) == (state, exit_code, stop + more.format(log=run.logs))


def test_cancel_keeps_the_reason_of_a_failed_save(run: RunFolder) -> None:
    class StoppedSupervision(Supervision):
        request_kind = FolderRequest

        def attempt(self) -> Ending:
            self.run.cancel_file.touch()
            return Ending(RunState.CANCELLED, 5, "cancelled; rank 0 ended with exit code 5")

    StoppedSupervision(run).supervise()
    state = run.stored_state()
    assert (state.state, state.exit_code) == (RunState.CANCELLED, 5)
    assert state.reason == "cancelled; rank 0 ended with exit code 5"


@pytest.mark.parametrize(
    ("first", "second", "due"),
    [
        ("ConnectionError: no licence", "ValueError: no batch", True),
        ("ValueError: no batch 1 at 0x7f01", "ValueError: no batch 2 at 0x7f02", False),
        ("job.Away", "job.Away", False),
        (None, None, True),  # nothing shows that it was the same error
    ],
)
def test_repeat_is_known_by_the_exception_in_the_log(
    run: RunFolder, first: str | None, second: str | None, due: bool
) -> None:
    ends = []
    for attempt, last in enumerate((first, second), 1):
        record_log_sizes(run, attempt)
        with run.rank_log(0).open("a") as log:
            trace = f'Traceback (most recent call last):\n  File "job.py", line {attempt}, in <module>\n    run()\n'
            log.write(f"epoch 1\n{trace}{last}\n" if last else "epoch 1\n")
        (run.exits(attempt) / "rank-0").write_text("1\n")
        ending = ending_of(run, attempt=attempt, world_size=1, launcher=LauncherEnd(0, 1), stopped=False)
        shared = {"state": ending.state, "exit_code": 1, "reason": ending.reason, "signature": ending.signature}
        ends.append(AttemptEnd(**shared, ended=float(attempt)))
    assert decide_restart(run.name, ends, RestartLimits(9, 9), Backoff(0.0, 0.0)).due == due


def test_bug_of_the_supervisor_ends_the_run(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    class BuggySupervision(Supervision):
        request_kind = FolderRequest

        def attempt(self) -> Ending:
            raise ValueError("127 is not a valid Signals")

    BuggySupervision(run).supervise()
    state = run.stored_state()
    assert (state.state, state.attempt, state.exit_code) == (RunState.FAILED, 2, 1)
    assert state.reason == f"error[bug]: ValueError: {HINT}"
    assert [attempt.state for attempt in state.attempts] == [RunState.FAILED, RunState.FAILED]
    assert capsys.readouterr().err.count("Traceback") == 2


def test_cancel_in_the_pause_before_a_restart_is_a_cancel(run: RunFolder) -> None:
    class FailingSupervision(Supervision):
        request_kind = FolderRequest

        def attempt(self) -> Ending:
            return Ending(RunState.FAILED, 3, "a rank failed")

        def _stopped_in_pause(self, seconds: float) -> bool:
            self.run.cancel_file.touch()
            return super()._stopped_in_pause(seconds)

    FailingSupervision(run).supervise()
    state = run.stored_state()
    assert (state.state, state.reason, state.attempt) == (RunState.CANCELLED, "cancelled", 1)
    assert [attempt.state for attempt in state.attempts] == [RunState.FAILED]


def test_attempt_removes_error_records_of_ranks_only(run: RunFolder) -> None:
    """A file of the user's own, or a folder with the name of a record, stays."""
    for name in ("error-0.json", "error-12.json", "error-analysis.json", "error-1.json.txt"):
        (run.outputs / name).write_text("{}")
    (run.outputs / "error-3.json").mkdir()

    class EndingSupervision(Supervision):
        request_kind = FolderRequest

        def attempt(self) -> Ending:
            return Ending(RunState.COMPLETED, 0, None)

    EndingSupervision(run).supervise()
    assert run.stored_state().state == RunState.COMPLETED
    assert sorted(path.name for path in run.outputs.glob("error-*")) == [
        *("error-1.json.txt", "error-3.json", "error-analysis.json"),
    ]
