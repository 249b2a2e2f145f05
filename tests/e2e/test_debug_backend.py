"""The debug backend at a terminal: a breakpoint in a training step of user code opens the debugger."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pexpect
import pytest

from tests.conftest import Console, write_spec

MY_STEP = """\
import sys

import train_jobs.pretrain
from train_jobs.engine.loop.loop import Loop

step = Loop._step


def stopping(self):
    if self.state.step == 3:
        breakpoint()
    return step(self)


Loop._step = stopping
sys.exit(train_jobs.pretrain.main())
"""


@pytest.mark.slow
def test_breakpoint_in_training_step_opens_debugger(console: Console, corpus: Path) -> None:
    code = console.cwd / "mine"
    code.mkdir()
    (code / "my_step.py").write_text(MY_STEP)
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, code={"folder": "mine", "entry": "my_step"})
    command = pexpect.spawn(
        sys.executable,
        ["-m", "orchestrator.cli.main", "submit", "pretrain", "-f", "job.yaml", "-b", "debug"],
        cwd=str(console.cwd),
        env=console.environ(TERM="xterm"),
        encoding="utf-8",
        timeout=120,
    )
    command.expect_exact("(Pdb)")
    command.sendline("p ('at step', self.state.step)")
    command.expect_exact("('at step', 3)")
    command.sendline("continue")
    command.expect_exact("completed")
    command.expect(pexpect.EOF)
    command.close()
    assert command.exitstatus == 0
    (run,) = (console.home / "debug-runs").iterdir()
    assert json.loads((run / "outputs" / "result.json").read_text())["steps"] == 12
    assert "exported" in (run / "logs" / "rank-0.log").read_text()


PRINTS = """\
import logging, os, sys

value = os.environ["NOTE_PASS"]
print("printed", value)
print("in two", value[:7], sep=" ", end="", flush=True)
print(value[7:], file=sys.stderr)
logging.basicConfig(stream=sys.stderr)
logging.warning("logged %s", value)
raise RuntimeError(value)
"""


def test_debug_run_does_not_show_a_printed_secret(console: Console, untracked: None, corpus: Path) -> None:
    code = console.cwd / "mine"
    code.mkdir()
    (code / "my_prints.py").write_text(PRINTS)
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, code={"folder": "mine", "entry": "my_prints"})
    value = "correct-horse-4711"
    words = ("submit", "pretrain", "-f", "job.yaml", "-b", "debug", "--env", "NOTE_PASS")
    done = console(*words, NOTE_PASS=value)
    assert "printed REDACTED\nin two REDACTED\n" in done.err
    assert "logged REDACTED" in done.err
    assert value not in done.out + done.err
    written = b"".join(path.read_bytes() for path in console.home.rglob("*") if path.is_file())
    assert value.encode() not in written
