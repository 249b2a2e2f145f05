"""A run inside this process: its output on the terminal and in the run's log, its signals and environment put back."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from runpy import run_module
from types import FrameType
from typing import Any, TextIO

from orchestrator.backends.folder.run_folder import RUN_VARIABLE, TAGS_VARIABLE
from orchestrator.backends.folder.submission import FolderRequest
from orchestrator.backends.folder.supervise.endings import Ending, ending_of
from orchestrator.backends.folder.supervise.supervision import Supervision
from orchestrator.runs.status import RunState

HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
INTERRUPT_CODE = 130


class DebugRequest(FolderRequest):
    """What runs in this process."""

    module: str
    """What `python -m` would run."""
    code: str | None
    """The user's own folder, where it lies: modules are looked for there first."""
    arguments: list[str]
    """With these."""


class DebugSession(Supervision):
    """Makes attempts as `python -m` would. Signals reach it in the main thread alone."""

    request: DebugRequest
    request_kind = DebugRequest

    def supervise(self) -> None:
        """All attempts, with signals and environment as the job wants them."""
        with _signals_put_back(), self._environment():
            self.listen()
            super().supervise()

    def attempt(self) -> Ending:
        """Calls the job.

        Raises:
            ServiceError: MLflow could not open a run.
        """
        self.tracked.open_now()
        self.update(state=RunState.RUNNING, mlflow_run_id=self.tracked.run_id)
        exits = self.run.exits(self.state.attempt)
        exits.mkdir(parents=True, exist_ok=True)
        with self.run.rank_log(0).open("a", encoding="utf-8") as log, _shown_and_kept(log):
            code = INTERRUPT_CODE if self.stop_requested() else self._call()
        (exits / "rank-0").write_text(f"{code}\n")
        self.listen()  # the job took SIGTERM for itself
        return ending_of(self.run, attempt=self.state.attempt, world_size=1, agent_code=code, stopped=self.preempted)

    def _call(self) -> int:
        """The job's exit code. Ctrl-C asks for the run's end, as `cancel` would."""
        before, sys.argv = sys.argv, [self.request.module, *self.request.arguments]
        try:
            run_module(self.request.module, run_name="__main__", alter_sys=True)
            return 0
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
            if code == INTERRUPT_CODE:  # the job took Ctrl-C for itself, and ended in order
                self.run.cancel_file.touch()
            return code
        except KeyboardInterrupt:
            self.run.cancel_file.touch()
            return INTERRUPT_CODE
        except Exception:  # of the user's own module; the job's own turns its errors into exit codes
            traceback.print_exc()
            return 1
        finally:
            sys.argv = before

    @contextmanager
    def _environment(self) -> Iterator[None]:
        """The variables and the code of the job, for as long as it runs."""
        before, path = dict(os.environ), list(sys.path)
        if self.request.code:
            sys.path.insert(0, self.request.code)
        os.environ.update(
            {
                RUN_VARIABLE: str(self.run.path),
                TAGS_VARIABLE: str(self.run.tags),
                "ORCHESTRATOR_DEBUG": "1",  # nobody ends a job for standing at a breakpoint
                "OMP_NUM_THREADS": str(self.request.threads),
                **self.tracked.variables(),
                **self.request.variables,
            }
        )
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
            sys.path[:] = path

    def _note_preemption(self, signum: int, frame: FrameType | None) -> None:
        super()._note_preemption(signum, frame)
        signal.raise_signal(signal.SIGTERM)  # to the job, which listens to this one alone


@contextmanager
def _signals_put_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Tee:
    """A stream that goes to two places; asked for anything else, it answers as the first."""

    def __init__(self, shown: TextIO, kept: TextIO) -> None:
        self._shown, self._kept = shown, kept

    def write(self, text: str) -> int:
        self._kept.write(text)
        return self._shown.write(text)

    def flush(self) -> None:
        self._kept.flush()
        self._shown.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shown, name)


@contextmanager
def _shown_and_kept(log: TextIO) -> Iterator[None]:
    """What the job prints goes to stderr, because stdout is the command's result, and to the run's log."""
    with ExitStack() as stack:
        tee: Any = _Tee(sys.stderr, log)
        stack.enter_context(redirect_stdout(tee))
        stack.enter_context(redirect_stderr(tee))
        yield
