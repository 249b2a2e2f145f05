"""The driver of a sweep as it is, with one more backend, of runs that take milliseconds, and without MLflow.

python quick_driver.py SWEEP_FOLDER HOME READY_FD
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orchestrator.backends as backends
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.runs.status import RunState, RunStatus
from orchestrator.support.errors import ServiceError
from orchestrator.sweeps.driver import driver
from orchestrator.sweeps.driver.parent import ParentRun

TRIAL = Path(__file__).with_name("quick_trial.py")
AWAY = "away"  # in the home folder: what the backend does not answer, as long as this is there


class QuickBackend(LocalBackend):
    """Runs below HOME/runs, as local's; what runs is quick_trial.py, which is its own supervisor."""

    name = "quick"
    poll_seconds = 0.01

    def describe(self, name: str) -> RunStatus:
        self._answer("describe")
        return super().describe(name)

    def metrics(self, name: str, *, seed: int | None = None) -> Iterator[dict[str, Any]]:
        self._answer("metrics")
        return super().metrics(name, seed=seed)

    def cancel(self, name: str) -> None:
        self._answer("cancel")
        super().cancel(name)

    def _answer(self, question: str) -> None:
        file = self._home / AWAY
        if file.exists() and question in file.read_text().split():
            raise ServiceError(f"the backend is away: {question}")

    def _supervise(self, run: RunFolder) -> None:
        with (run.logs / "supervisor.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-S", str(TRIAL), str(run.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        process.returncode = 0  # ours no longer: it is watched by its lock, not by its parent


class NoParentRun(ParentRun):
    """Opens no run."""

    def open(self, run_id: str | None) -> str | None:
        return None

    def end(self, state: RunState) -> None:
        pass


def register() -> None:
    """Makes the backend known, in this process."""
    backends._OURS["quick"] = "tests.unit.sweeps.quick_driver:QuickBackend"


if __name__ == "__main__":
    register()
    RunFolder.queued_seconds = 1.0  # after which a run that was never started is lost
    driver.ParentRun = NoParentRun  # type: ignore[misc]
    sys.exit(driver.main())
