"""A run inside this process: its output goes to the terminal and to the run's log.

Signal handlers and environment are restored when it ends.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from runpy import run_module
from types import FrameType
from typing import Any, TextIO

from orchestrator.backends.folder.run_folder import RUN_VARIABLE, TAGS_VARIABLE, FolderRequest
from orchestrator.backends.folder.supervision import Ending, Supervision, ending_of
from orchestrator.runs.status import RunState
from orchestrator.support.home import compile_variables
from train_jobs.artifacts.redaction import StreamRedactor, secret_values
from train_jobs.config.privacy import traceback_text

HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)  # signals whose handlers this module or the job replaces
INTERRUPT_CODE = 130  # 128 + SIGINT, as shells report it


class DebugRequest(FolderRequest):
    """Request of a run in this process."""

    module: str
    """Module to run, as with `python -m`."""
    code: str | None
    """The user's own folder, first on the module path; None: the job needs none."""
    arguments: list[str]
    """Arguments of the module."""


class DebugSession(Supervision):
    """Attempts of a run, each as `python -m` would make it. Signals are handled only in the main thread."""

    request: DebugRequest
    request_kind = DebugRequest

    def supervise(self) -> None:
        """Run all attempts, with the signals and environment of the job."""
        with _signals_restored(), self._environment():
            self.install_signal_handlers()
            super().supervise()

    def attempt(self) -> Ending:
        """Run the job."""
        self.tracked.begin()
        self.tracked.open()  # immediately: from here on this process only runs the job
        self.update(state=RunState.RUNNING)
        exits = self.run.exits(self.state.attempt)
        exits.mkdir(parents=True, exist_ok=True)
        with self.run.rank_log(0).open("a", encoding="utf-8") as log, _output_copied(log):
            code = INTERRUPT_CODE if self.stop_requested() else self._call()
        # the same file that the shell wrapper of a local rank writes, so that `ending_of` serves both backends
        (exits / "rank-0").write_text(f"{code}\n")
        self.install_signal_handlers()  # the job replaced the handler of SIGTERM
        return ending_of(
            self.run,
            attempt=self.state.attempt,
            world_size=1,
            launcher=None,
            stopped=self.preempted or self.stop_requested(),
            writes_result=self.request.writes_result,
        )

    def _call(self) -> int:
        """Run the module and return its exit code. Ctrl-C cancels the run."""
        before, sys.argv = sys.argv, [self.request.module, *self.request.arguments]
        try:
            run_module(self.request.module, run_name="__main__", alter_sys=True)
            return 0
        except SystemExit as ending:
            # as the interpreter does: None is success, an integer is the code, anything else is 1
            code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
            if code == INTERRUPT_CODE:  # the job handled Ctrl-C itself
                self.run.cancel_file.touch()
            return code
        except KeyboardInterrupt:
            self.run.cancel_file.touch()
            return INTERRUPT_CODE
        except Exception as problem:  # from the user's own module; our jobs turn errors into exit codes
            print(traceback_text(problem), file=sys.stderr, flush=True)
            return 1
        finally:
            sys.argv = before

    @contextmanager
    def _environment(self) -> Iterator[None]:
        """Set the variables and the module path of the job while it runs."""
        # restored in full: a notebook submits several debug runs in one process, and none may see another's variables
        before, path = dict(os.environ), list(sys.path)
        if self.request.code:
            sys.path.insert(0, self.request.code)
        os.environ.pop(self.request.notify.variable, None)
        os.environ.update(
            {
                RUN_VARIABLE: str(self.run.path),
                TAGS_VARIABLE: str(self.run.tags),
                **({"ORCHESTRATOR_CODE": self.request.code} if self.request.code else {}),
                "ORCHESTRATOR_DEBUG": "1",  # the watchdog must not end a job that waits at a breakpoint
                "OMP_NUM_THREADS": str(self.request.threads),
                **compile_variables(self.run.path.parent.parent, os.environ),
                **self.variables(),
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
        signal.raise_signal(signal.SIGTERM)  # the job handles only this signal


@contextmanager
def _signals_restored() -> Iterator[None]:
    # the process belongs to the user: a later Ctrl-C in the notebook or the shell must reach the user's own handler
    before = {number: signal.getsignal(number) for number in HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Tee:
    """A stream that writes to two streams, without secrets.

    Other attributes, such as `isatty` and `fileno`, are those of the first one: debuggers and progress bars read them.
    """

    def __init__(self, shown: TextIO, kept: TextIO) -> None:
        self._shown, self._kept = shown, kept
        self._redactor = StreamRedactor(secret_values(os.environ), self._pass_on)

    def write(self, text: str) -> int:
        self._redactor.feed(text.encode(errors="surrogatepass"))
        return len(text)

    def finish(self) -> None:
        """Write an end that was held because a secret may begin with it."""
        self._redactor.close()

    def _pass_on(self, data: bytes) -> None:
        text = data.decode(errors="surrogatepass")
        self._kept.write(text)
        self._shown.write(text)

    def flush(self) -> None:
        self._redactor.release_prompt()
        self._kept.flush()
        self._shown.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shown, name)


@contextmanager
def _output_copied(log: TextIO) -> Iterator[None]:
    """Send the job's output to stderr, because stdout is the command's result, and to the run's log."""
    tee: Any = _Tee(sys.stderr, log)
    with redirect_stdout(tee), redirect_stderr(tee):
        try:
            yield
        finally:
            tee.finish()
