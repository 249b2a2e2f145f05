"""Sweeps of quick runs (quick_trial.py) in an isolated home, for tests of the driver."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.runs.status import RunState
from orchestrator.runs.supervised_folder import KILLED
from orchestrator.specs.sweep_spec import SweepSpec
from orchestrator.sweeps.design.sweep_plan import SpecContext, resolve_sweep
from orchestrator.sweeps.design.sweep_record import SweepRecord
from orchestrator.sweeps.driver.control import make_sweep, start_driver
from orchestrator.sweeps.driver.history import read_history
from orchestrator.sweeps.driver.planning import plan_sweep
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.driver.sweep_status import TrialRow, sweep_status
from tests.conftest import MICRO, SMALL_TEXT, wait_for
from tests.unit.sweeps.conftest import NO_GPU

QUICK = (str(Path(__file__).with_name("quick_driver.py")),)
DRIVER_LOST = f"driver lost: {KILLED}"
RATE: dict[str, Any] = {"optimizer.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}}


class Sweeps:
    """Sweeps in an isolated home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folders: list[SweepFolder] = []
        self.python_path = [str(Path(__file__).resolve().parents[3])]
        """Folders of modules for drivers and trials."""

    def make(
        self, *, steps: int = 4, pause: int = 1, trial: dict[str, Any] | None = None, **sections: Any
    ) -> SweepFolder:
        """Create a sweep of quick runs, without a driver."""
        Path("notes.txt").write_text(SMALL_TEXT)
        job = json.loads(json.dumps(MICRO))
        job |= {"backend": "quick", "data": {**job["data"], "text": ["notes.txt"]}}
        job["train"] |= {"steps": steps, "log_every": pause}
        for section, values in (trial or {}).items():
            job[section] = {**job.get(section, {}), **values}
        document = {"space": RATE, "trial": job, **sections}
        document["limits"] = {"trials": 4, "concurrent": 2, **sections.get("limits", {})}
        Path("sweep.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        sweep = resolve_sweep(file=Path("sweep.yaml"), context=SpecContext(environ=NO_GPU))
        earlier = [record_and_rows(folder) for folder in self.folders if folder.name in sweep.spec.warm_start]
        history = read_history(sweep.spec, "pretrain", earlier)
        self.folders.append(make_sweep(plan_sweep(sweep, self.home, history)[0], self.home, history=history))
        return self.folders[-1]

    def start(self, folder: SweepFolder, command: tuple[str, ...] = QUICK) -> None:
        os.environ["PYTHONPATH"] = os.pathsep.join(self.python_path)
        start_driver(folder, self.home, command)

    def end(self, folder: SweepFolder) -> RunState:
        """Wait for the end of a driver; return the state."""
        return wait_for(lambda: (state := folder.state().state).terminal and state, what="the end of the sweep")

    def run(self, **sections: Any) -> SweepFolder:
        """Create a sweep and run it to completion."""
        folder = self.make(**sections)
        self.start(folder)
        assert self.end(folder) == RunState.COMPLETED, (folder.path / "driver.log").read_text()
        return folder

    def runs(self, folder: SweepFolder) -> list[RunFolder]:
        return [RunFolder(path) for path in sorted((self.home / "runs").glob(f"{folder.name}-t*"))]

    def starts(self, folder: SweepFolder) -> dict[str, list[str]]:
        """Return run -> the number of its attempts."""
        logs = {run.name: run.path / "started.log" for run in self.runs(folder)}
        return {name: log.read_text().split() for name, log in logs.items() if log.exists()}


def kill(folder: SweepFolder) -> None:
    """Send SIGKILL to its driver, if it has one."""
    pid = folder.stored_state().pid
    if pid is not None and folder.locked():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not folder.locked() and not folder.stored_state().has_process(), what="the driver's death")


def kill_after_report(folder: SweepFolder, number: int) -> int:
    """Kill the driver after a report of a trial; return the number of reports in the study."""
    study = folder.study()
    wait_for(lambda: len(study.trials) > number and study.trials[number].intermediate_values, what="a report")
    kill(folder)
    return len(folder.study().trials[number].intermediate_values)


def spec_of(folder: SweepFolder) -> SweepSpec:
    return folder.record().spec


def record_and_rows(folder: SweepFolder) -> tuple[SweepRecord, list[TrialRow]]:
    """Return record and trials of a sweep for a later one."""
    return folder.record(), sweep_status(folder).rows


def settings(folder: SweepFolder) -> list[dict[str, Any]]:
    return [trial.user_attrs["settings"] for trial in folder.study().trials]


def trials_with_weights(sweeps: Sweeps, folder: SweepFolder) -> dict[int, int]:
    """Return trial -> number of files of its checkpoints and models, for trials that have any."""
    found = {number: len(list(run.outputs.glob("**/weights"))) for number, run in enumerate(sweeps.runs(folder))}
    return {number: files for number, files in found.items() if files}
