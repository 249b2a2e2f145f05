"""The unmodified driver of a sweep with an additional backend for runs of milliseconds, without MLflow.

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
from orchestrator.runs.status import RunStatus
from orchestrator.support.errors import AuthError, ServiceError
from orchestrator.sweeps.driver import driver
from orchestrator.sweeps.driver.parent import ParentRun

TRIAL = Path(__file__).with_name("quick_trial.py")
AWAY = "away"  # while this file exists in the home folder, the calls that it lists fail
REFUSED = "refused"  # while this file exists in the home folder, a cancel of the runs that it lists is refused


class QuickBackend(LocalBackend):
    """Runs below HOME/runs, like those of local; each is a quick_trial.py process, its own supervisor."""

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
        file = self._home / REFUSED
        if file.exists() and name in file.read_text().split():
            raise AuthError(f"the cancel of {name} is refused")
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
        process.returncode = 0  # detached: the lock shows whether it is running, not the parent process


class NoParentRun(ParentRun):
    """MLflow parent run that records nothing."""

    def start_sync(self) -> None:
        pass


def register() -> None:
    """Register the backend in this process."""
    backends._BUILT_IN["quick"] = "tests.unit.sweeps.quick_driver:QuickBackend"


if __name__ == "__main__":
    register()
    RunFolder.queued_seconds = 1.0  # a queued run that has not started by then counts as lost
    driver.ParentRun = NoParentRun  # type: ignore[misc]
    sys.exit(driver.main())
