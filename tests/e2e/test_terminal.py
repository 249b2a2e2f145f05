"""Commands in a real terminal: submit, Ctrl-C, attach, Ctrl-C, cancel and resume, typed into a shell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.conftest import Console, write_spec

pytestmark = pytest.mark.usefixtures("untracked")
PROMPT = "ready> "
SECONDS = 120


class Terminal:
    """A shell with `orchestrator` in a pseudo-terminal of 80 columns."""

    def __init__(self, console: Console) -> None:
        environ = console.environ(PS1=PROMPT, TERM="xterm", COLUMNS="80", NO_COLOR="1")
        self.shell = pexpect.spawn(
            "/bin/bash",
            ["--norc", "--noprofile"],
            env=environ,
            cwd=str(console.cwd),
            encoding="utf-8",
            timeout=SECONDS,
            dimensions=(40, 80),
        )
        self.shell.expect_exact(PROMPT)
        self.type(f'orchestrator() {{ {sys.executable} -m orchestrator.cli.main "$@"; }}')
        self.shell.expect_exact(PROMPT)

    def type(self, line: str) -> None:
        """Type a line and wait for its echo."""
        self.shell.sendline(line)
        self.shell.expect_exact(line[-20:])

    def see(self, text: str) -> None:
        """Wait for a text."""
        self.shell.expect_exact(text)

    def finish(self) -> str:
        """Wait for the prompt and return the output before it."""
        self.shell.expect_exact(PROMPT)
        return str(self.shell.before)

    def run(self, line: str) -> tuple[int, str]:
        """Run a command and return its exit code and output."""
        self.type(line)
        shown = self.finish()
        self.type("echo code=$?")
        self.shell.expect(r"code=(\d+)")
        code = int(self.shell.match.group(1))
        self.finish()
        return code, shown

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C and return the exit code and the output."""
        self.shell.sendintr()
        shown = self.finish()
        self.type("echo code=$?")
        self.shell.expect(r"code=(\d+)")
        code = int(self.shell.match.group(1))
        self.finish()
        return code, shown


@pytest.fixture
def terminal(console: Console) -> Iterator[Terminal]:
    """Yield a terminal; it is closed before the console checks for leftover processes."""
    terminal = Terminal(console)
    yield terminal
    terminal.shell.close(force=True)


def test_terminal_submit_attach_cancel_resume(console: Console, terminal: Terminal, corpus: Path) -> None:
    write_spec(
        console.cwd / "job.yaml",
        data={"text": [str(corpus)]},
        train={"steps": 1500, "log_every": 2},
        checkpoint={"every": 50},
        validation={"every": 1500},
    )
    terminal.type("orchestrator submit pretrain -f job.yaml")
    terminal.see("submitted  local://micro-")
    terminal.see("orchestrator cancel micro-")
    terminal.see("step ")
    code, shown = terminal.interrupt()
    assert code == 130
    assert "the job continues" in shown
    for command in ("logs", "cancel", "status"):
        assert f"orchestrator {command} micro-" in shown

    code, shown = terminal.run("orchestrator status @last")
    assert code == 0
    assert "running" in shown

    terminal.type("orchestrator attach @last")
    terminal.see("step ")
    code, shown = terminal.interrupt()
    assert code == 130
    assert "the job continues" in shown

    code, shown = terminal.run("orchestrator cancel @last")
    assert code == 0
    assert "cancelled" in shown
    assert "orchestrator resume micro-" in shown

    code, shown = terminal.run("orchestrator resume @last -d")
    assert code == 0
    terminal.type("orchestrator attach @last")
    terminal.see("resumed at step")
    code, shown = terminal.interrupt()
    assert code == 130

    code, shown = terminal.run("orchestrator cancel @last")
    assert (code, "cancelled" in shown) == (0, True)
    code, shown = terminal.run("orchestrator wait @last")
    assert code == 75  # the exit code of the job
    code, shown = terminal.run("orchestrator list")
    assert code == 0
    assert shown.count("micro-") == 1
    lines = [line.rstrip("\r") for line in shown.split("\n")]
    assert max(len(line) for line in lines) <= 80
