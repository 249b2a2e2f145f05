"""Processes of the double's jobs: what kills them leaves none, whenever it comes."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.testing.jobs.processes import JOB_VARIABLE, Launch


def test_a_machine_may_go_away_the_moment_its_processes_start(tmp_path: Path) -> None:
    for number in range(60):  # one in thirty was missed: a process that begins a program has no environment yet
        common = {**os.environ, JOB_VARIABLE: f"{tmp_path}/{number}"}
        launch = Launch("sleep 600", tmp_path, {tmp_path / "log": {}}, common)
        launch.kill()
        launch.stop()  # what was missed would end by this one, -15
        assert launch.wait() == (0, -9)
