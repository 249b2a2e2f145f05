"""Commands that meet: equal submissions at one moment, and a resume while the webhook of the run hangs."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from tests.conftest import Console, write_spec
from tests.run_folders import run_script


def test_simultaneous_equal_submits_return_one_run(console: Console, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]})
    started = [console.start("submit", "pretrain", "-f", "job.yaml", "-d", "-o", "json") for _ in range(3)]
    answers = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], [err for _, err in answers]
    (name,) = {json.loads(out)["name"] for out, _ in answers}
    assert [run["name"] for run in console("list", "-o", "json").json] == [name]
    assert console("wait", name).code == 0


def test_hanging_webhook_does_not_block_resume(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server accepts connections and never answers: a message is given up after half a minute."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("ORCHESTRATOR_WEBHOOK", f"http://127.0.0.1:{server.getsockname()[1]}")
        name = run_script(console.home, "exit 3", **{"notify.on": ["failed"], "notify.allow_private": True})
        assert console("wait", name).code == 3
        ended = time.monotonic()
        resumed = console("resume", name, "-d")
        assert resumed.code == 0, resumed.err
        assert time.monotonic() - ended < 20
        assert console("wait", name).code == 3
