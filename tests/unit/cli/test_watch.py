"""The command status --watch, on a terminal and elsewhere."""

from __future__ import annotations

import fcntl
import io
import signal
import sys
from pathlib import Path

import pexpect
import pytest

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.cli.ui import follow as watching
from orchestrator.cli.ui.terminal import live_view, show_block
from orchestrator.runs.status import RunState
from tests.conftest import Console
from tests.run_folders import PLAN, make_run, report
from tests.unit.cli.conftest import Command

PRICED = {"compute": {**PLAN["compute"], "price_per_hour": 36.0}}


class Live:
    """A run that is live while its lock is held."""

    def __init__(self, home: Path) -> None:
        self.run: RunFolder = make_run(
            home, "one", RunState.RUNNING, plan=PRICED, attempts=[{"started": 1.0}], started=1.0
        )
        self._held = (self.run.path / "lock").open()
        fcntl.flock(self._held, fcntl.LOCK_EX)

    def end(self) -> None:
        """Write the final state of the supervisor."""
        self.run.write_state(self.run.state().model_copy(update={"state": RunState.COMPLETED, "ended": 60.0}))
        self._held.close()


def test_watch_in_pipe_prints_a_block_per_change(
    home: Path, orchestrator: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three polls without a change, a step, then the end."""
    live, looks = Live(home), iter(range(10))

    def pause(seconds: float) -> None:
        look = next(looks)
        if look == 2:
            report(live.run, 50, loss=1.0)
        if look == 4:
            live.end()

    monkeypatch.setattr(watching.time, "sleep", pause)
    done = orchestrator("status", "one", "--watch")
    assert done.code == 0
    blocks = done.out.split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == ["one"] * 3
    assert ["step" in block for block in blocks] == [False, True, True]
    assert ["state      running" in block for block in blocks] == [True, True, False]
    assert "orchestrator report one" in done.err


def test_watch_as_json_prints_only_the_last_status(
    home: Path, orchestrator: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(home)
    monkeypatch.setattr(watching.time, "sleep", lambda seconds: live.end())
    assert orchestrator("status", "one", "-w", "-o", "json").json["state"] == "completed"


def test_ended_run_shown_once_in_any_state(home: Path, orchestrator: Command) -> None:
    make_run(home, "one", RunState.FAILED, reason="it broke", exit_code=3)
    done = orchestrator("status", "one", "-w")
    assert done.code == 0
    assert done.out.count("it broke") == 1


def test_watch_on_terminal_redraws_in_place(tmp_path: Path) -> None:
    console = Console(home=tmp_path / "home", cwd=tmp_path)
    live = Live(console.home)
    command = [sys.executable, "-m", "orchestrator.cli.main", "status", "one", "-w"]
    terminal = pexpect.spawn(
        command[0],
        command[1:],
        cwd=str(tmp_path),
        env=console.environ(NO_COLOR="1", TERM="xterm"),
        dimensions=(24, 60),
        encoding="utf-8",
    )
    terminal.expect("state      running")
    terminal.expect(r"\r\x1b\[2K((?:\x1b\[1A\x1b\[2K)+)")  # move up over all drawn lines, and clear
    drawn = terminal.match.group(1).count("A") + 1
    report(live.run, 70, loss=1.0)
    terminal.expect("step       70 of 100")
    live.end()
    terminal.expect("state      completed")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    assert drawn == 7  # name, handle, state, submitted, time, cost, folder


def test_watch_block_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name, value in {"COLUMNS": "30", "LINES": "5", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    stream = Stream()
    with live_view(stream) as view:
        show_block(view, "\n".join(["x" * 35] * 10))
        assert stream.getvalue().replace("\x1b[?25l", "") == "\n".join(["x" * 30] * 5)
        stream.seek(0)
        stream.truncate()
        show_block(view, "\x1b[32my\x1b[0m")
        assert stream.getvalue() == "\r\x1b[2K" + "\x1b[1A\x1b[2K" * 4 + "\x1b[32my\x1b[0m"


def test_ctrl_c_ends_watching_and_keeps_the_run(tmp_path: Path) -> None:
    console = Console(home=tmp_path / "home", cwd=tmp_path)
    live = Live(console.home)
    watched = console.start("status", "one", "-w")
    assert watched.stdout is not None
    assert watched.stdout.readline() == "one\n"  # it watches now
    watched.send_signal(signal.SIGINT)
    _, err = watched.communicate(timeout=20)
    assert watched.returncode == 130
    assert "error[interrupted]: stopped following; the job continues" in err
    assert not live.run.cancel_file.exists()
    live.end()
