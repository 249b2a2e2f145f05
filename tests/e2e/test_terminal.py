"""A session at a real terminal: submit, Ctrl-C, attach, Ctrl-C, cancel, resume, as one would type it into a shell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.conftest import Console, write_spec

PROMPT = "ready> "
SECONDS = 120


class Terminal:
    """A shell in a pseudo-terminal of 80 columns, and `orchestrator` in it."""

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
        """Types a line, and waits until it stands there."""
        self.shell.sendline(line)
        self.shell.expect_exact(line[-20:])

    def see(self, text: str) -> None:
        """Waits until a text comes."""
        self.shell.expect_exact(text)

    def finish(self) -> str:
        """Waits for the prompt; what came before it."""
        self.shell.expect_exact(PROMPT)
        return str(self.shell.before)

    def run(self, line: str) -> tuple[int, str]:
        """A command to its end: exit code and everything that it showed."""
        self.type(line)
        shown = self.finish()
        self.type("echo code=$?")
        self.shell.expect(r"code=(\d+)")
        code = int(self.shell.match.group(1))
        self.finish()
        return code, shown

    def interrupt(self) -> tuple[int, str]:
        """Ctrl-C: exit code and what was shown."""
        self.shell.sendintr()
        shown = self.finish()
        self.type("echo code=$?")
        self.shell.expect(r"code=(\d+)")
        code = int(self.shell.match.group(1))
        self.finish()
        return code, shown


@pytest.fixture
def terminal(console: Console) -> Iterator[Terminal]:
    """A terminal; it is closed before the console looks for what was left behind."""
    terminal = Terminal(console)
    yield terminal
    terminal.shell.close(force=True)


def test_a_session(console: Console, terminal: Terminal, corpus: Path) -> None:
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
    assert code == 75  # the job's own
    code, shown = terminal.run("orchestrator list")
    assert code == 0
    assert shown.count("micro-") == 1
    lines = [line.rstrip("\r") for line in shown.split("\n")]
    assert max(len(line) for line in lines) <= 80
