"""Pain 8: log streaming prints nothing, or only rank 0."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.runs.status import RunState
from tests.conftest import Console, last_step, wait_for, write_spec
from tests.run_folders import live_run

pytestmark = pytest.mark.usefixtures("untracked")

STOPPED = "stopped by SIGTERM"


@pytest.mark.slow
def test_all_ranks_followed_until_final_error(console: Console, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 5000})
    submitted = console("submit", "pretrain", "-f", "job.yaml", "--processes", "2", "-d", "-o", "json")
    name = submitted.json["name"]
    following = console.start("logs", name, "-f", "--all-ranks")
    outputs: list[tuple[str, str]] = []
    reader = threading.Thread(target=lambda: outputs.extend([following.communicate()]))
    reader.start()
    wait_for(lambda: last_step(console.folder(name)) >= 4, what="step 4")
    assert console("cancel", name).code == 0
    reader.join(timeout=60)
    ((out, err),) = outputs
    assert following.returncode == 0, err
    lines = out.splitlines()
    assert [line for line in lines if not line.startswith(("[0:0] ", "[0:1] "))] == []
    assert any(line.startswith("[0:0] step ") for line in lines)
    for rank in (0, 1):
        log = (console.folder(name) / "logs" / f"rank-{rank}.log").read_text()
        assert STOPPED in log
        mine = [line.removeprefix(f"[0:{rank}] ") for line in lines if line.startswith(f"[0:{rank}] ")]
        assert mine == log.splitlines()
        assert console("logs", name, "--rank", str(rank)).out == log
    assert err.endswith(f"cancelled  local://{name}\n")

    every_rank = console("logs", name, "--all-ranks", "--grep", STOPPED).out.splitlines()
    assert sorted(line.partition(STOPPED)[0] for line in every_rank) == ["[0:0] ", "[0:1] "]
    times = (console.folder(name) / "logs" / "rank-0.times").read_text().splitlines()
    assert len(times) >= 2  # recorded by the supervisor during the run
    launched = console("logs", name, "--launcher")
    assert (launched.code, launched.err) == (0, "")


IMPATIENT = """
import sys
from orchestrator.cli.ui import follow; from orchestrator.cli import main
follow.QUIET_SECONDS = 0.1
sys.exit(main.main(["logs", "run", "-f"]))
"""


def test_follow_shows_waiting_status_for_silent_run(console: Console) -> None:
    """A user at a terminal would otherwise wonder whether the command is working."""
    screen, terminal = pty.openpty()
    with live_run(console.home, "run", RunState.STARTING):
        command = [sys.executable, "-c", IMPATIENT]
        following = subprocess.Popen(command, env=console.environ(), stdout=subprocess.PIPE, stderr=terminal)
        os.close(terminal)
        shown = b""
        while b"waiting: starting" not in shown:
            shown += os.read(screen, 1000)
        following.send_signal(signal.SIGINT)
        out, _ = following.communicate(timeout=30)
        while b"interrupted" not in shown:
            shown += os.read(screen, 1000)
    os.close(screen)
    assert out == b""
    assert following.returncode == 130
    assert re.fullmatch(rb"(\r\x1b\[Kwaiting: starting, nothing printed for \d s)+\r\x1b\[K\r\n  .*", shown, re.DOTALL)
