"""Processes of the double's jobs: killing a job leaves no process, at any moment."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.testing.jobs.processes import JOB_VARIABLE, Launch


def test_node_may_vanish_while_its_processes_start(tmp_path: Path) -> None:
    for number in range(60):  # one in thirty survived: a process has no environment until it executes its program
        common = {**os.environ, JOB_VARIABLE: f"{tmp_path}/{number}"}
        launch = Launch("sleep 600", tmp_path, {tmp_path / "log": {}}, common)
        launch.kill()
        launch.stop()  # a surviving process would end with SIGTERM, -15
        assert launch.wait() == (0, -9)
